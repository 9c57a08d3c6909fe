"""Reading of a running job: files are added, some late, some still incomplete."""

import gzip
import json
import os
import shutil
import time

import pytest

from sm_profiler.errors import ConfigError
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.layout import END_MARKERS
from sm_profiler.source import open_source


@pytest.fixture
def live(job, tmp_path):
    """A growing copy of a job: `live(n)` brings the next n files in the order of their times."""
    files = sorted((path for path in job.rglob("*.json")), key=lambda path: path.name)
    root = tmp_path / "live"

    def bring(count, *, skip=0):
        chosen = files[skip : skip + count]
        for path in chosen:
            files.remove(path)
            target = root / path.relative_to(job)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        return chosen

    bring.root, bring.job, bring.left = root, job, files
    return bring


def end(root, at=None):
    for part in ("system", "framework"):
        marker = root / part / "training_job_end.ts"
        marker.touch()
        if at is not None:
            os.utime(marker, (at, at))


def test_delivers_each_file_once(live, assert_same):
    live(4)
    source = open_source(live.root, cache=False)
    batches = list(source.batches())
    while live.left:
        count = len(live(3))
        assert source.refresh() == count
        batches += source.batches()
    assert source.refresh() == 0
    assert list(source.batches()) == []
    assert not source.finished
    end(live.root)
    source.refresh()
    assert source.finished
    whole = open_source(live.job, cache=False)
    for part, kind in (("system", SystemColumns), ("events", EventColumns)):
        together = kind.concat([getattr(batch, part) for batch in batches])
        expected = getattr(whole, part)()
        first = kind is SystemColumns
        key = (lambda t: sorted(zip(t.timestamp, t.value, t.node.decode(), t.name.decode(), strict=True))) if first else (
            lambda t: sorted(zip(t.start_us, t.duration_us, t.node.decode(), t.name.decode(), t.step, strict=True))
        )  # fmt: skip
        assert key(together) == key(expected)


def test_finds_late_files(live):
    (late,) = live(1, skip=2)
    shutil.rmtree(live.root)
    live(8)
    source = open_source(live.root, cache=False)
    list(source.batches())
    target = live.root / late.relative_to(live.job)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(late, target)
    assert source.refresh() == 1
    (batch,) = source.batches()
    assert len(batch.system) + len(batch.events) > 0


def test_waits_for_incomplete_files(live):
    live(6)
    source = open_source(live.root, cache=False)
    list(source.batches())
    (path,) = live(1)
    target = live.root / path.relative_to(live.job)
    whole = target.read_bytes()
    target.write_bytes(whole[: len(whole) // 2])
    assert source.refresh() == 1
    assert list(source.batches()) == []
    target.write_bytes(whole)
    source.refresh()
    (batch,) = source.batches()
    expected = whole.count(b"\n") if "system" in str(path) else whole.count(b'"ph": "X"') + whole.count(b'"ph": "E"')
    assert len(batch.system) + len(batch.events) == expected
    assert all(quality.status == "read" for quality in source.quality())


def test_reads_damaged_files_that_no_longer_change(live):
    (path,) = live(1)
    target = live.root / path.relative_to(live.job)
    target.write_bytes(target.read_bytes()[:-50])
    assert list(open_source(live.root, cache=False).batches(unsettled=True))
    source = open_source(live.root, cache=False)
    assert list(source.batches()) == []
    long_ago = time.time() - 3600
    os.utime(target, (long_ago, long_ago))
    source.refresh()
    (batch,) = source.batches()
    assert len(batch.system) + len(batch.events) > 0
    assert source.quality()[0].status == "repaired"


def test_is_not_finished_with_a_file_later_than_the_marker(live):
    live(100)
    source = open_source(live.root, cache=False)
    assert not source.finished
    end(live.root, at=1_700_000_000 + 600)
    source.refresh()
    assert source.finished
    later = live.root / "system" / "incremental" / "2023111422" / "1700001000.algo-1.json"
    later.write_text(
        '{"Type":"cpu","Name":"cpu0","Dimension":"CPUUtilization","Value":1.0,"NodeId":"algo-1","Timestamp":1700001001.5}\n'
    )
    assert source.refresh() == 1
    assert not source.finished


def test_lists_only_files_that_can_be_new(live, monkeypatch):
    live(100)
    source = open_source(live.root, cache=False)
    asked = []
    storage = source.storage
    real = storage.list

    class Noted:
        uri, parallel_reads, read = storage.uri, 1, staticmethod(storage.read)

        def list(self, prefix="", start_after=None):
            asked.append((prefix, start_after))
            return real(prefix, start_after)

    monkeypatch.setattr(source._catalog, "storage", Noted())
    source.refresh()
    latest = max(int(path.name.split(".")[0]) for path in (live.root / "system").rglob("*.json"))
    assert asked[0] == ("system/", f"system/incremental/2023111422/{latest - 300}")
    assert asked[1][1].startswith("framework/pevents/2023111422/16999")
    monkeypatch.setenv("TRAILING_DURATION_MICROSECONDS", "0")
    source.refresh()
    assert asked[2][1] == f"system/incremental/2023111422/{latest}"
    monkeypatch.setenv("TRAILING_DURATION_MICROSECONDS", "soon")
    with pytest.raises(ConfigError, match="TRAILING_DURATION_MICROSECONDS: expected a number of microseconds"):
        source.refresh()


def test_corrects_the_start_of_a_trace_by_a_late_metadata_file(tmp_path):
    folder = tmp_path / "framework/tensorflow/detailed_profiling/2023111422/000000003"
    (folder / "plugins/profile/x").mkdir(parents=True)
    trace = {"traceEvents": [{"ph": "X", "name": "op", "pid": 1, "ts": 5, "dur": 2}]}
    (folder / "plugins/profile/x/host.trace.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    source = open_source(tmp_path, cache=False)
    assert source.events().start_us.tolist() == [1_699_999_200_000_005]
    (folder / "0-algo-1_1700000000000000_1700000001000000.metadata").touch()
    source.refresh()
    assert source.events().start_us.tolist() == [1_700_000_000_000_005]
    assert source.events().node.decode().tolist() == ["algo-1-0"]


def test_each_trace_of_a_folder_has_the_process_and_the_time_of_its_own_metadata(tmp_path):
    """Ranks, and attempts of a job that was interrupted, trace the same step in the same hour."""
    folder = tmp_path / "framework/pytorch/detailed_profiling/2023111422/000000005"
    folder.mkdir(parents=True)
    trace = {"traceEvents": [{"ph": "X", "name": "op", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 5, "dur": 2}]}
    packed = gzip.compress(json.dumps(trace).encode())
    for source, start in (("11-algo-1", 1_700_000_000_000_000), ("22-algo-1", 1_700_000_060_000_000)):
        (folder / f"{source}.trace.json.gz").write_bytes(packed)
        (folder / f"{source}_{start}_{start + 1_000_000}.metadata").touch()
    events = open_source(tmp_path, cache=False).events()
    found = dict(zip(events.node.decode().tolist(), events.start_us.tolist(), strict=True))
    assert found == {"algo-1-11": 1_700_000_000_000_005, "algo-1-22": 1_700_000_060_000_005}
    # The second attempt of a rank writes its trace over that of the first.
    (folder / "11-algo-1_1700000120000000_1700000121000000.metadata").touch()
    events = open_source(tmp_path, cache=False).events()
    assert sorted(events.start_us.tolist()) == [1_700_000_060_000_005, 1_700_000_120_000_005]


@pytest.mark.parametrize("name", ["2160000000000000", "999999999999999999"])
def test_far_off_names_hide_no_new_files_and_do_not_revoke_the_end(tmp_path, name):
    make = "[]"
    for file in (f"framework/pevents/2023111422/{name}_0-algo-1_pythontimeline.json",):
        path = tmp_path / file
        path.parent.mkdir(parents=True)
        path.write_text(make)
    source = open_source(tmp_path, cache=False)
    (tmp_path / "framework/pevents/2023111422/1700000000200000_0-algo-1_pythontimeline.json").write_text(make)
    assert source.refresh() == 1
    for marker in END_MARKERS:
        (tmp_path / marker).parent.mkdir(exist_ok=True)
        (tmp_path / marker).touch()
    source.refresh()
    assert source.finished
