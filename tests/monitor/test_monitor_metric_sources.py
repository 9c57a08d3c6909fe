"""Metric sources on fake /proc files and cgroup trees."""

from pathlib import Path

import pytest

from sm_profiler.limits import Limits, core_list
from sm_profiler.monitor.procfs import ProcFile, core_times, disk_counts
from sm_profiler.monitor.sampler import Cpu, Disk, Memory, Network

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:   12000000 kB\nBuffers: 5 kB\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def limits(tmp_path: Path, files: dict[str, str], membership: str = "0::/\n") -> Limits:
    (tmp_path / "membership").write_text(membership)
    return Limits(write(tmp_path / "cgroup", files), tmp_path / "membership")


def unlimited(tmp_path: Path) -> Limits:
    return limits(tmp_path, {"cgroup.controllers": ""})


def values(rows) -> dict[tuple[str, str], float]:
    return {(row.name, row.dimension): row.value for row in rows}


def stat(*cores: tuple[int, ...]) -> str:
    lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
    lines += [f"cpu{number} " + " ".join(map(str, ticks)) for number, ticks in enumerate(cores)]
    return "\n".join([*lines, "intr 12345 0 0 0", "ctxt 99", ""])


class TestCpu:
    def test_utilization_of_each_core_from_the_second_tick(self, tmp_path):
        path = tmp_path / "stat"
        path.write_text(stat((100, 0, 50, 1000, 10, 0, 0, 0, 7, 0), (0, 0, 0, 1000, 0, 0, 0, 0, 0, 0)))
        cpu = Cpu(unlimited(tmp_path), path)
        assert cpu.measure(0.0) == []
        # core 0: 30 user (5 of them a guest's), 10 system, 40 idle, 20 waiting; core 1: idle
        path.write_text(stat((130, 0, 60, 1040, 30, 0, 0, 0, 12, 0), (0, 0, 0, 1100, 0, 0, 0, 0, 0, 0)))
        assert values(cpu.measure(1.0)) == {
            ("cpu0", "CPUUtilization"): 40, ("cpu0", "I/OWaitPercentage"): 20,
            ("cpu1", "CPUUtilization"): 0, ("cpu1", "I/OWaitPercentage"): 0,
        }  # fmt: skip

    def test_decreasing_counters_stay_between_0_and_100_percent(self, tmp_path):
        path = tmp_path / "stat"
        path.write_text(stat((100, 0, 0, 1000, 50, 0, 0, 0)))
        cpu = Cpu(unlimited(tmp_path), path)
        cpu.measure(0.0)
        path.write_text(stat((150, 0, 0, 1000, 40, 0, 0, 0)))  # I/O wait may decrease
        assert set(values(cpu.measure(1.0)).values()) == {100.0, 0.0}

    def test_a_new_core_has_no_rate_at_first(self, tmp_path):
        path = tmp_path / "stat"
        path.write_text(stat((0, 0, 0, 100, 0, 0, 0, 0)))
        cpu = Cpu(unlimited(tmp_path), path)
        cpu.measure(0.0)
        path.write_text(stat((0, 0, 0, 200, 0, 0, 0, 0), (9, 0, 0, 9, 0, 0, 0, 0)))
        assert {name for name, _ in values(cpu.measure(1.0))} == {"cpu0"}

    @pytest.mark.parametrize(
        "files",
        [
            {"cpuset.cpus.effective": "1,3\n"},
            {"cpuset/cpuset.cpus": "1,3\n"},
            {"cpuset/cpuset.effective_cpus": "1,3\n", "cpuset/cpuset.cpus": "0-3\n"},
        ],
        ids=["v2", "v1", "v1-effective"],
    )
    def test_reports_only_the_containers_cores(self, tmp_path, files):
        path = tmp_path / "stat"
        path.write_text(stat(*[(0, 0, 0, 100, 0, 0, 0, 0)] * 4))
        cpu = Cpu(limits(tmp_path, files), path)
        cpu.measure(0.0)
        path.write_text(stat(*[(50, 0, 0, 150, 0, 0, 0, 0)] * 4))
        rows = values(cpu.measure(1.0))
        assert {name for name, _ in rows} == {"cpu1", "cpu3"}
        assert rows["cpu1", "CPUUtilization"] == 50

    @pytest.mark.parametrize("version", [1, 2])
    def test_percentages_refer_to_the_quota(self, tmp_path, version):
        files = (
            {"cpu.max": "150000 100000\n", "cpu.stat": "usage_usec 1000000\nuser_usec 5\n"}
            if version == 2
            else {
                "cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n",
                "cpuacct/cpuacct.usage": "1000000000\n",
            }
        )  # fmt: skip
        path = tmp_path / "stat"
        path.write_text(stat(*[(0, 0, 0, 100, 0, 0, 0, 0)] * 8))
        cpu = Cpu(limits(tmp_path, files), path)
        assert cpu.measure(10.0) == []
        more = {"cpu.stat": "usage_usec 3400000\n"} if version == 2 else {"cpuacct/cpuacct.usage": "3400000000\n"}
        write(tmp_path / "cgroup", more)
        # In 2 s it may use 3 s of CPU time and used 2.4; one core of the machine waited for 15 % of the time
        path.write_text(stat((0, 0, 0, 185, 15, 0, 0, 0), *[(0, 0, 0, 200, 0, 0, 0, 0)] * 7))
        rows = values(cpu.measure(12.0))
        assert {name for name, _ in rows} == {"cpu0", "cpu1"}
        assert rows["cpu1", "CPUUtilization"] == pytest.approx(80)
        assert rows["cpu1", "I/OWaitPercentage"] == pytest.approx(10)

    def test_a_quota_above_the_machine_is_ignored(self, tmp_path):
        path = tmp_path / "stat"
        path.write_text(stat((0, 0, 0, 100, 0, 0, 0, 0)))
        cpu = Cpu(limits(tmp_path, {"cpu.max": "400000 100000", "cpu.stat": "usage_usec 1"}), path)
        cpu.measure(0.0)
        path.write_text(stat((10, 0, 0, 190, 0, 0, 0, 0)))
        assert values(cpu.measure(1.0))["cpu0", "CPUUtilization"] == 10

    def test_reads_192_cores_and_a_long_interrupt_line(self):
        text = stat(*[(1, 0, 0, 100, 0, 0, 0, 0)] * 192).replace("intr 12345", "intr 12345" + " 0" * 20_000)
        assert len(core_times(text.encode())) == 192


class TestLimits:
    def test_the_tightest_limit_of_nested_v2_groups_applies(self, tmp_path):
        found = limits(
            tmp_path,
            {
                "memory.stat": "", "job/memory.max": "1000\n", "job/memory.current": "600\n",
                "job/memory.stat": "anon 5\ninactive_file 100\n", "job/inner/memory.max": "max\n",
                "job/inner/cpu.max": "max 100000\n", "job/cpu.max": "200000 100000\n",
            },
            "0::/job/inner\n",
        )  # fmt: skip
        memory = found.memory()
        assert (memory.used, memory.limit) == (500, 1000)
        assert found.cpu_quota == 2

    def test_the_tightest_limit_of_nested_v1_groups_applies(self, tmp_path):
        found = limits(
            tmp_path,
            {
                "memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n", "memory/docker/abc/memory.limit_in_bytes": "4000\n",
                "memory/docker/abc/memory.usage_in_bytes": "3000\n", "memory/docker/abc/memory.stat": "total_inactive_file 1000\n",
                "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "50000", "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/docker/abc/cpuacct.usage": "2500000000",
            },
            "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/docker/abc\n",
        )  # fmt: skip
        memory = found.memory()
        assert (memory.used, memory.limit) == (2000, 4000)
        assert (found.cpu_quota, found.cpu_seconds()) == (0.5, 2.5)

    def test_a_container_uses_the_mounted_root(self, tmp_path):
        found = limits(
            tmp_path,
            {"memory/memory.limit_in_bytes": "4000", "memory/memory.usage_in_bytes": "1000"},
            "4:memory:/docker/abc\n",
        )
        assert found.memory().limit == 4000

    @pytest.mark.parametrize("text", ["", "max", "garbage", "-1", str((1 << 63) - 4096)])
    def test_without_a_limit(self, tmp_path, text):
        found = limits(tmp_path, {"memory.max": text, "memory/memory.limit_in_bytes": text, "cpu.max": text})
        assert (found.memory(), found.cpu_quota, found.cpu_seconds(), found.cores()) == (None, None, None, None)

    def test_without_cgroups(self, tmp_path):
        found = Limits(tmp_path / "nothing", tmp_path / "nowhere")
        assert (found.memory(), found.cpu_quota, found.cores()) == (None, None, None)

    def test_core_list(self):
        assert core_list("0-2,8, 10-11") == {0, 1, 2, 8, 10, 11}


class TestMemory:
    def test_memory_of_the_machine(self, tmp_path):
        (tmp_path / "meminfo").write_text(MEMINFO)
        assert values(Memory(unlimited(tmp_path), tmp_path / "meminfo").measure(0.0)) == {("MemoryUsedPercent", ""): 25}

    def test_memory_of_the_container(self, tmp_path):
        (tmp_path / "meminfo").write_text(MEMINFO)
        found = limits(
            tmp_path, {"memory.max": "8000", "memory.current": "5000", "memory.stat": "inactive_file 1000\n"}
        )
        assert values(Memory(found, tmp_path / "meminfo").measure(0.0)) == {("MemoryUsedPercent", ""): 50}

    def test_a_limit_above_the_machines_memory_is_ignored(self, tmp_path):
        (tmp_path / "meminfo").write_text(MEMINFO)
        found = limits(tmp_path, {"memory.max": str(1 << 50), "memory.current": "5000"})
        assert values(Memory(found, tmp_path / "meminfo").measure(0.0)) == {("MemoryUsedPercent", ""): 25}


def diskstats(*disks: tuple[str, int, int, int, int]) -> str:
    return "".join(
        f" 259 0 {name} {reads} 0 {read} 0 {writes} 0 {written} 0 0 0 0\n"
        for name, reads, read, writes, written in disks
    )


class TestDisk:
    def test_counts_whole_disks_once(self, tmp_path):
        path = tmp_path / "diskstats"
        names = ("loop0", "nvme0n1", "nvme0n1p1", "nvme1n1", "sda", "sda1", "dm-0")
        path.write_text(diskstats(*[(name, 0, 0, 0, 0) for name in names]))
        disk = Disk(path)
        assert disk.measure(0.0) == []
        path.write_text(diskstats(*[(name, 10, 8, 20, 16) for name in names]))
        assert values(disk.measure(2.0)) == {
            ("IOPS", ""): 3 * 30 / 2,
            ("ReadThroughputInBytesPerSecond", ""): 3 * 8 * 512 / 2,
            ("WriteThroughputInBytesPerSecond", ""): 3 * 16 * 512 / 2,
        }

    def test_mapped_disks_count_if_there_are_no_others(self):
        assert list(disk_counts(diskstats(("loop0", 1, 1, 1, 1), ("dm-0", 1, 1, 1, 1)).encode())) == ["dm-0"]

    def test_new_and_reset_disks_add_nothing(self, tmp_path):
        path = tmp_path / "diskstats"
        path.write_text(diskstats(("sda", 100, 100, 100, 100)))
        disk = Disk(path)
        disk.measure(0.0)
        path.write_text(diskstats(("sda", 1, 1, 1, 1), ("sdb", 50, 50, 50, 50)))
        assert set(values(disk.measure(1.0)).values()) == {0}

    def test_without_disks(self, tmp_path):
        (tmp_path / "diskstats").write_text("")
        disk = Disk(tmp_path / "diskstats")
        assert disk.measure(0.0) == disk.measure(1.0) == []


def net_dev(**cards: tuple[int, int]) -> str:
    head = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n"
    return head + "".join(f"{name}: {got} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n" for name, (got, sent) in cards.items())


class TestNetwork:
    def measure(self, tmp_path, algorithm="", hardware=(), **cards):
        for name in hardware:
            (tmp_path / "net" / name / "device").mkdir(parents=True)
        path = tmp_path / "dev"
        path.write_text(net_dev(**dict.fromkeys(cards, (1000, 1000))))
        network = Network(algorithm, path, tmp_path / "net")
        assert network.measure(0.0) == []
        path.write_text(net_dev(**{name: (1000 + got, 1000 + sent) for name, (got, sent) in cards.items()}))
        return values(network.measure(2.0))

    def test_interfaces_in_a_container(self, tmp_path):
        assert self.measure(tmp_path, lo=(500, 500), ifb0=(9, 9), eth0=(200, 100)) == {
            ("ReceiveBytesPerSecond", "Algorithm"): 100, ("TransmitBytesPerSecond", "Algorithm"): 50,
        }  # fmt: skip

    def test_only_hardware_interfaces_count_on_a_host(self, tmp_path):
        found = self.measure(tmp_path, hardware=("ens5",), lo=(9, 9), docker0=(70, 70), weird=(70, 70), ens5=(200, 100))
        assert found["ReceiveBytesPerSecond", "Algorithm"] == 100

    def test_separates_the_jobs_interface_from_the_platforms(self, tmp_path):
        found = self.measure(tmp_path, "eth1", lo=(9, 9), eth0=(20, 40), eth1=(200, 100))
        assert found == {
            ("ReceiveBytesPerSecond", "Algorithm"): 100, ("TransmitBytesPerSecond", "Algorithm"): 50,
            ("ReceiveBytesPerSecond", "Platform"): 10, ("TransmitBytesPerSecond", "Platform"): 20,
        }  # fmt: skip


def test_a_proc_file_is_read_completely_and_repeatedly(tmp_path):
    (tmp_path / "long").write_bytes(b"x" * 200_000)
    file = ProcFile(tmp_path / "long")
    assert len(file.read()) == len(file.read()) == 200_000


def test_measures_this_machine():
    for family in (Cpu(Limits()), Memory(Limits()), Disk(), Network()):
        family.measure(0.0)
    assert 0 < Memory(Limits()).measure(0.0)[0].value < 100
