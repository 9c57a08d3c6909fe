"""Every number that depends on the machine's size follows the container's limits: cgroup v1 and v2, made up and real."""

import json
import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sm_profiler import limits, processes
from sm_profiler.cli import try_loader
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.inputs import Workers, left_after, workers_of
from sm_profiler.hook import scheduling
from sm_profiler.limits import Limits
from sm_profiler.monitor.sampler import Cpu, Memory
from sm_profiler.source.parse import machine_bytes
from tests.support.reports import metrics_of, training

CORES = 64
TICKS = 100  # of each core
GB = 1 << 30
QUOTA = "150000"
TREES = {
    "v2": ("0::/\n", {
        "cpu.max": f"{QUOTA} 100000\n", "cpu.stat": "usage_usec {used_us}\n",
        "memory.max": f"{2 * GB}\n", "memory.current": f"{GB}\n", "memory.stat": "inactive_file 0\n",
    }),
    "v2, nested": ("0::/job.slice/step\n", {
        "job.slice/cpu.max": f"{QUOTA} 100000\n", "job.slice/cpu.stat": "usage_usec {used_us}\n",
        "job.slice/memory.max": f"{2 * GB}\n", "job.slice/memory.current": f"{GB}\n",
        "job.slice/memory.stat": "inactive_file 0\n",
        "job.slice/step/cpu.max": "max 100000\n", "job.slice/step/memory.max": "max\n",
    }),
    "v1": ("5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n", {
        "cpu/docker/a/cpu.cfs_quota_us": f"{QUOTA}\n", "cpu/docker/a/cpu.cfs_period_us": "100000\n",
        "cpuacct/docker/a/cpuacct.usage": "{used_us}000\n", "memory/docker/a/memory.limit_in_bytes": f"{2 * GB}\n",
        "memory/docker/a/memory.usage_in_bytes": f"{GB}\n", "memory/docker/a/memory.stat": "total_inactive_file 0\n",
    }),
}  # fmt: skip


@pytest.fixture(params=TREES)
def container(request, tmp_path, monkeypatch):
    """A container of 1.5 cores and 2 GB on a machine of 64 cores; returns how to set the CPU time used."""
    membership, files = TREES[request.param]
    (tmp_path / "membership").write_text(membership)

    def use(seconds: float) -> None:
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.format(used_us=int(seconds * 1e6)))

    use(0.0)
    here = partial(Limits, tmp_path / "cgroup", tmp_path / "membership")
    for module in (limits, processes, scheduling):
        monkeypatch.setattr(module, "Limits", here)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: frozenset(range(CORES)))
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 512 * GB // 4096}[name])
    return use


def stat_of(ticks: int) -> str:
    return "cpu 0 0 0 0\n" + "".join(f"cpu{core} 0 0 0 {ticks} 0 0 0 0\n" for core in range(CORES))


def sampled(tmp_path, container, used: float):
    """Return the rows of CPU and memory of the second in which the container used so much CPU time."""
    stat, meminfo = tmp_path / "stat", tmp_path / "meminfo"
    stat.write_text(stat_of(TICKS))
    meminfo.write_text(f"MemTotal: {512 * GB // 1024} kB\nMemAvailable: {500 * GB // 1024} kB\n")
    cpu, memory = Cpu(limits.Limits(), stat), Memory(limits.Limits(), meminfo)
    cpu.measure(10.0)
    container(used)
    stat.write_text(stat_of(2 * TICKS))
    return [*cpu.measure(11.0), *memory.measure(11.0)]


def test_the_monitor_reports_the_containers_share(tmp_path, container):
    rows = sampled(tmp_path, container, 1.2)
    use = {row.name: row.value for row in rows if row.dimension == "CPUUtilization"}
    assert use == {"cpu0": pytest.approx(80), "cpu1": pytest.approx(80)}  # 1.2 of 1.5 CPU seconds
    assert [row.value for row in rows if row.name == "MemoryUsedPercent"] == [50]


@pytest.mark.usefixtures("container")
def test_our_own_work_follows_the_containers_share():
    assert scheduling.usable_cores() == 1.5  # of verdicts about threads
    assert processes.processors() == 2  # processes that read files, fold and lend themselves to others
    assert try_loader.resources()[0] == 2
    assert limits.memory_total() == machine_bytes() == 2 * GB


def test_advice_and_report_count_the_containers_cores(tmp_path, container):
    second = sampled(tmp_path, container, 1.4)
    rows = [(1 + tick, row.value, "algo-1", row.type, row.name, row.dimension) for tick in range(60) for row in second]
    loop = training(500, wait=0.1)  # loading takes ten times as long as the step
    metrics = metrics_of(loop, rows)
    assert workers_of(Case(metrics, {})).suggested <= 2
    assert metrics.system.cores == {"algo-1": 2}


REPORT = """
import json
from sm_profiler.hook.scheduling import usable_cores
from sm_profiler.limits import Limits, memory_total
from sm_profiler.processes import processors
found = Limits()
print(json.dumps([found.cpu_quota, usable_cores(), processors(), found.memory() and found.memory().limit, memory_total()]))
"""
LIMITS = {  # controller → file → content
    "cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"},
    "memory": {"memory.limit_in_bytes": str(GB)},
}


@pytest.fixture
def real_groups():
    """Join cgroups of half a core and 1 GB; returns the files to which a process writes its id."""
    root, made = Path("/sys/fs/cgroup"), []
    name = f"sm-profiler-test-{os.getpid()}"
    try:
        if (root / "cgroup.controllers").exists():
            folder = root / name
            folder.mkdir()
            made.append(folder)
            (folder / "cpu.max").write_text("50000 100000")
            (folder / "memory.max").write_text(str(GB))
        else:
            for controller, files in LIMITS.items():
                folder = root / controller / name
                folder.mkdir()
                made.append(folder)
                for file, text in files.items():
                    (folder / file).write_text(text)
    except OSError as error:
        for folder in made:
            folder.rmdir()
        pytest.skip(f"this user may not make cgroups: {error}")
    yield [folder / "cgroup.procs" for folder in made]
    for folder in made:
        for _ in range(100):  # the kernel may still be clearing up
            with suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


def test_limits_of_a_real_container(real_groups):
    def join() -> None:
        for path in real_groups:
            path.write_text(str(os.getpid()))

    done = subprocess.run(
        [sys.executable, "-c", REPORT], preexec_fn=join, capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(done.stdout) == [0.5, 0.5, 1, GB, GB]


ALLOCATE = """
import numpy as np
from pathlib import Path
from sm_profiler.processes import trim_heap
trim_heap()
held = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096
np.ones(4 << 20)  # from now on, the C library would put smaller arrays into its heap
before = held()
large = [np.ones(3 << 17) for _ in range(40)]
small = np.ones(40_000)
del large
print(held() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_memory_of_large_arrays_is_returned_although_later_ones_remain():
    done = subprocess.run([sys.executable, "-c", ALLOCATE], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 8 << 20


def test_workers_that_wait_still_share_the_cores():
    """79 workers on one core, and a job 69 times as fast: what the loading computes is as long as without workers."""
    wait, compute = np.full(100, 0.0722), np.full(100, 0.0009)
    pool = Workers(0, 1, 20, 0.0722, 0.0036, idle=True, computing=0.0036)
    assert pool.suggested == 8
    assert min(left_after(pool, wait, compute, 1.0, [0.05])) == pytest.approx(0.0027)
