"""Names and files that no writer makes, and files that must not be read: each is counted, none ends the reading."""

import os
import shutil
import sys
import time

import pytest

from sm_profiler.errors import SourceError
from sm_profiler.formats import layout, trace_records
from sm_profiler.formats.system_writer import recover_minutes
from sm_profiler.formats.trace_rows import OpenEvent, TraceRows
from sm_profiler.source import open_source, parse
from sm_profiler.source import parse as memory
from sm_profiler.source.opening import job_name
from sm_profiler.source.profile import Options, ProfileSource
from sm_profiler.storage import AccessDeniedError, LocalStorage, base

LINE = b'{"Type":"cpu","Name":"cpu0","Dimension":"CPUUtilization","Value":1,"NodeId":"algo-1","Timestamp":%d}\n'
MINUTE = 1_700_000_040


def add_system(root, minute, name=None):
    path = root / "system/incremental/2023111422" / (name or f"{minute}.algo-1.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(LINE % minute)
    return path


def reasons(source):
    return {one.path.rpartition("/")[2]: one.reason for one in source.quality() if one.status == "refused"}


FAR = ["0.algo-1.json", "60.algo-1.json", "1200000000.algo-1.json"]
FUTURE = ["2145916800.algo-1.json", "99999999999.algo-1.json"]


@pytest.mark.parametrize("name", FAR + FUTURE)
def test_far_off_times_in_names_are_counted_and_not_read(tmp_path, name):
    for at in range(3):
        add_system(tmp_path, MINUTE + 60 * at)
    add_system(tmp_path, 1, name)
    source = open_source(tmp_path, cache=False)
    assert source.first_timestamp_us == MINUTE * 1e6
    assert source.last_timestamp_us == (MINUTE + 180) * 1e6
    assert len(source.system()) == 3
    assert reasons(source) == {
        name: "named by a time in the future" if name in FUTURE else "named by a time far from the job's other files"
    }
    assert [batch.minute_us for batch in open_source(tmp_path, cache=False).batches()] == [
        (MINUTE + 60 * at) * 1e6 for at in range(3)
    ]


def test_traces_with_far_off_names_are_counted_and_not_read(tmp_path):
    for end in (MINUTE * 10**6, MINUTE * 10**6 + 5, 999_999_999_999_999_999):
        path = tmp_path / f"framework/pevents/2023111422/{end}_0-algo-1_pythontimeline.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'[{"ph":"X","name":"a","pid":1,"ts":%d,"dur":1}]' % (MINUTE * 10**6))
    source = open_source(tmp_path, cache=False)
    assert len(source.events()) == 2
    assert list(reasons(source).values()) == ["named by a time in the future"]


def test_a_file_from_the_future_does_not_hide_new_ones(tmp_path):
    add_system(tmp_path, MINUTE)
    add_system(tmp_path, 1, "99999999999.algo-1.json")
    source = open_source(tmp_path, cache=False)
    assert len(list(source.batches())) == 1
    add_system(tmp_path, MINUTE + 60)
    assert source.refresh() == 1
    assert len(list(source.batches())) == 1


def test_strict_reading_refuses_far_off_names(tmp_path):
    for at in range(3):
        add_system(tmp_path, MINUTE + 60 * at)
    add_system(tmp_path, 0)
    with pytest.raises(SourceError, match="far from the job's other files"):
        open_source(tmp_path, cache=False, strict=True).system()


def test_a_pause_of_weeks_is_no_far_off_time(tmp_path):
    for at in (0, 20, 40):
        add_system(tmp_path, MINUTE + at * 86400)
    assert len(open_source(tmp_path, cache=False).system()) == 3


@pytest.mark.parametrize("key", [
    "system/incremental/2023111422/{big}.algo-1.json", "system/incremental/2023111422/²².algo-1.json",
    "system/incremental/2023111422/1700000040.algo-{big}.json", "system/incremental/2023111422/١٧٠٠٠٠٠٠٤٠.algo-1.json",
    "framework/pevents/2023111422/{big}_0-algo-1_pythontimeline.json", "framework/pevents/2023111422/²_0-algo-1_pythontimeline.json",
    "framework/pytorch/detailed_profiling/2023111422/{big}/a.trace.json", "framework/pytorch/detailed_profiling/²/000000001/a.trace.json",
    "framework/pytorch/detailed_profiling/2023111422/1/0-algo-1_{big}_{big}.metadata",
    "framework/pytorch/cprofile/0-algo-1/train-{big}-stepstart-{big}_train-{big}-stepend-{big}/python_stats",
    "framework/pytorch/cprofile/0-algo-1/train-1-stepstart-{big}.{big}_train-2-stepend-{big}.5/python_stats",
    "framework/pytorch/cprofile/{big}_{big}_0-algo-1_{big}/python_stats",
])  # fmt: skip
def test_numbers_of_any_length_and_script_in_names(tmp_path, key):
    add_system(tmp_path, MINUTE)
    key = key.format(big="9" * 310)
    layout.parse_path(key)
    if all(len(part) < 255 for part in key.split("/")):
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"[]")

    class Bucket(LocalStorage):
        def list(self, prefix="", start_after=None):
            listed = list(super().list(prefix, start_after))
            info = listed[0] if listed else None
            yield from listed
            if key.startswith(prefix):
                yield type(info)(key, 2, time.time()) if info else next(super().list("system/"))

        def read(self, name, start=None, end=None):
            return b"[]" if name == key else super().read(name, start, end)

    source = open_source(Bucket(tmp_path), cache=False)
    assert len(source.system()) == 1
    assert len(source.events()) == 0
    list(open_source(Bucket(tmp_path), cache=False).batches())


@pytest.mark.skipif(sys.platform == "darwin", reason="names are UTF-8 there")
def test_folders_and_files_with_names_that_are_not_utf8(job, tmp_path, assert_same, monkeypatch):
    from sm_profiler.source import cache

    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    shutil.copytree(job, folder)
    (tmp_path / folder / "system/incremental" / os.fsdecode(b"\xff.algo-1.json")).write_bytes(b"x")
    nested = tmp_path / folder / "system/incremental" / os.fsdecode(b"\xff")
    nested.mkdir()
    (nested / f"{MINUTE}.algo-1.json").write_bytes(b"x")
    monkeypatch.setattr(cache, "WORTH_BYTES", 0)
    monkeypatch.setattr("sm_profiler.source.profile.WORTH_BYTES", 0)
    expected = open_source(job, cache=False)
    for processes in (1, 3, 1):
        source = open_source(folder, processes=processes)
        assert_same(source.events(), expected.events())
        assert_same(source.system(), expected.system())
        cache.wait_for_copies()


class Guarded(LocalStorage):
    """A storage that denies access to some keys."""

    def __init__(self, root, denied):
        super().__init__(root)
        self.denied = denied

    def read(self, key, start=None, end=None):
        if self.denied(key):
            raise AccessDeniedError(f"{key}: access denied")
        return super().read(key, start, end)


def test_one_denied_file_is_counted(job):
    keys = [info.key for info in LocalStorage(job).list("framework/pevents")]
    expected = open_source(job, cache=False)
    total = len(expected.events())
    source = open_source(Guarded(job, lambda key: key == keys[0]), cache=False, processes=1)
    assert 0 < len(source.events()) < total
    assert reasons(source) == {keys[0].rpartition("/")[2]: "access denied"}


@pytest.mark.parametrize("processes", [1, 3])
def test_unreadable_local_files_are_counted(job, tmp_path, processes, monkeypatch):
    copy = shutil.copytree(job, tmp_path / "copy")
    path = min(copy.rglob("*pythontimeline.json"))
    real = base.open_regular

    def denied(wanted, **options):
        if wanted.name == path.name:
            raise PermissionError(13, "Permission denied")
        return real(wanted, **options)

    path.chmod(0)
    monkeypatch.setattr(base, "open_regular", denied)  # root may read any file
    source = open_source(copy, cache=False, processes=processes)
    assert len(source.events()) > 0
    if processes == 1:
        assert reasons(source) == {path.name: "access denied"}


def test_access_denied_to_all_files_is_an_error(job):
    for read in (lambda source: source.system(), lambda source: list(source.batches())):
        source = open_source(Guarded(job, lambda _: True), cache=False, processes=1)
        with pytest.raises(SourceError, match=r"access denied to each of its [0-9]+ files"):
            read(source)


def test_too_large_files_are_refused_without_reading_them(job, monkeypatch):
    sizes = sorted(info.size for info in LocalStorage(job).list("system/"))
    monkeypatch.setattr(memory, "MAX_FILE_BYTES", sizes[-1] - 1)
    source = open_source(Guarded(job, lambda _: False), cache=False, processes=1)
    source.system()
    assert set(reasons(source).values()) == {f"larger than {(sizes[-1] - 1) / (1 << 30):.3g} GB"}


def test_a_file_may_take_a_share_of_the_memory(monkeypatch):
    monkeypatch.setattr(memory, "machine_bytes", lambda: 400)
    assert memory.largest_file_bytes() == 100
    monkeypatch.setattr(memory, "machine_bytes", lambda: 1 << 50)
    assert memory.largest_file_bytes() == memory.MAX_FILE_BYTES


def test_open_events_of_a_stream_are_bounded(monkeypatch):
    monkeypatch.setattr(trace_records, "MAX_UNJOINED", 10)
    open_streams = trace_records.Streams()
    lost = 0
    for file in range(5):
        key = [(f"phase {file} {at}", 0) for at in range(6)]
        opened = tuple(OpenEvent(one, ("a", "b", 0, 0), 1.0, "") for one in key)
        _, outcome = open_streams.take(empty_rows(opened), parse.Outcome())
        lost += outcome.lost
    left = list(open_streams.left())
    assert len(left) <= 10
    assert len(left) + lost == 30
    assert left[-1][2].key == ("phase 4 5", 0)


def empty_rows(opened):
    from sm_profiler.formats.trace_reader import read_trace

    rows, _ = read_trace(b"[]", "algo-1-0", "k")
    return TraceRows(*(getattr(rows, field.name) for field in TraceRows.__attrs_attrs__[:-1]), opened)


def test_leftovers_with_strange_numbers_are_not_recovered(tmp_path):
    folder = tmp_path / "system/incremental"
    folder.mkdir(parents=True)
    for number in ("²", "1" * 200, "-5", "x"):
        (folder / f"{number}.algo-1.json.tmp").write_bytes(LINE % 5)
    assert recover_minutes(tmp_path, "algo-1") == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_links_that_lead_out_of_the_profile_are_counted_and_not_read(tmp_path, processes):
    root = tmp_path / "profile"
    elsewhere = add_system(tmp_path / "elsewhere", MINUTE)
    inside = add_system(root, MINUTE)
    inside.with_name(f"{MINUTE + 60}.algo-1.json").symlink_to(elsewhere)
    inside.with_name(f"{MINUTE + 120}.algo-1.json").symlink_to(inside.name)
    source = ProfileSource(LocalStorage(root), Options(cache=False, processes=processes))
    assert len(source.system()) == 2
    ((name, reason),) = reasons(source).items()
    assert name == f"{MINUTE + 60}.algo-1.json"
    assert reason.endswith("is a link that leads out of the profile")


def test_a_name_of_a_job_is_no_way_to_another_folder(tmp_path, monkeypatch):
    """The report of `..` was written into the current folder, and that of a data set whose profile was in `x/..`."""
    (tmp_path / "run/system").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "run/system")
    assert [job_name(place) for place in ("..", "../", ".", "./x/..", "../profiler-output")] == [
        "run", "run", "system", "system", "run",
    ]  # fmt: skip
    assert [job_name(uri) for uri in ("s3://bucket/..", "s3://bucket/../profiler-output", "/..")] == [
        "training job"
    ] * 3
