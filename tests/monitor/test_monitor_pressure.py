"""Swapping, pressure and NFS on made-up files of /proc."""

import pytest

from sm_profiler.monitor.procfs import PAGE, Nfs, Pressure, Swapping, nfs_counters

MOUNTSTATS = """device proc mounted on /proc with fstype proc
device fs-1.efs:/ mounted on /opt/ml/input/data/train with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.1
\tage:\t100
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: {reads} {reads} 0 300 400 5 90 {milliseconds} 0
\t        BROKEN: x y
device /dev/sda mounted on / with fstype ext4
\tper-op statistics
\t        READ: 9 9 9 9 9 9 9 9 9
"""


def values(rows):
    return {row.name: row.value for row in rows}


def test_swapping_is_the_growth_of_the_counters(tmp_path):
    path = tmp_path / "vmstat"
    path.write_text("pswpin 10\npswpout 20\npgmajfault 5\nallocstall x\n")
    source = Swapping(path)
    assert source.measure(0.0) == []
    path.write_text("pswpin 30\npswpout 20\npgmajfault 105\n")
    assert source.measure(0.5) == []
    assert values(source.measure(2.0)) == {
        "SwapInBytesPerSecond": 10 * PAGE, "SwapOutBytesPerSecond": 0, "MajorFaultsPerSecond": 50,
    }  # fmt: skip


def test_pressure_is_a_percentage_of_the_time(tmp_path):
    def write(memory, io):
        (tmp_path / "memory").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={memory}\nfull total=1\n")
        (tmp_path / "io").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={io}\nfull total=1\n")

    write(1_000_000, 0)
    source = Pressure(tmp_path)
    assert source.measure(0.0) == []
    write(1_500_000, 9_000_000)
    assert values(source.measure(2.0)) == {"MemoryPressurePercent": 25, "IOPressurePercent": 100}


def test_nfs_operations_and_their_duration(tmp_path):
    path = tmp_path / "mountstats"
    path.write_text(MOUNTSTATS.format(reads=100, milliseconds=1_000))
    source = Nfs(path)
    assert source.measure(0.0) == []
    path.write_text(MOUNTSTATS.format(reads=200, milliseconds=2_600))
    assert values(source.measure(2.0)) == {
        "NFSOperationsPerSecond": 50, "NFSOperationsInProgress": 0.8, "NFSLatencyMilliseconds": 16,
    }  # fmt: skip


@pytest.mark.parametrize("source", [Swapping, Pressure, Nfs])
def test_kernels_without_the_file_have_no_rows(source, tmp_path):
    measured = source(tmp_path / "none")
    assert measured.measure(0.0) == measured.measure(2.0) == []


def test_machines_without_nfs_have_no_rows(tmp_path):
    assert nfs_counters("device proc mounted on /proc with fstype proc\n") == {}
    path = tmp_path / "mountstats"
    path.write_text("device proc mounted on /proc with fstype proc\n")
    source = Nfs(path)
    assert source.measure(0.0) == source.measure(2.0) == []
