"""A job folded in parts has the digits of one process, for all executors and all orders of arrival."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm_profiler import folding as engine
from sm_profiler.compact import compact
from sm_profiler.errors import SourceError
from sm_profiler.metrics import step_fold, step_sample
from sm_profiler.metrics.metric_folds import new_folds
from sm_profiler.metrics.scaling import codec, folding, part
from sm_profiler.metrics.scaling import part as plan
from sm_profiler.metrics.scaling.part import plan_parts
from sm_profiler.report import build_report
from sm_profiler.report.report_json import to_json
from sm_profiler.source import open_source
from sm_profiler.source.item_table import ItemTable
from sm_profiler.source.opening import open_listed
from sm_profiler.storage import LocalStorage
from tests.support.executors import ShuffledExecutor
from tests.support.jobs import shared_job
from tests.tools.make_job import SCENARIOS

QUICK = ("healthy", "dataloader-slow", "no-framework")
SPARSE = ("--interval-ms", "8000", "--steps-per-second", "0.6", "--gpus", "2", "--cpus", "2")


@pytest.fixture(autouse=True)
def short_slices(monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CACHE", "off")
    monkeypatch.setattr(engine, "SLICE_WINDOWS", 3)


def text(where, **options):
    found = json.loads(to_json(build_report(open_source(where), **options)))
    del found["generated"]
    return json.dumps(found)


def folded(where, executor, **options):
    """Fold with an executor; None if the job was not cut."""
    source = open_source(where)
    return folding.fold_with(source, executor, parameters={}, interval_us=60_000_000, **options)


def seen_parts(monkeypatch):
    """Return a list that receives the parts of each way in which a job is cut."""
    seen, real = [], folding._folded
    monkeypatch.setattr(
        folding,
        "_folded",
        lambda source, pool, cut, planned: (seen.append(planned), real(source, pool, cut, planned))[1],
    )
    return seen


@pytest.mark.parametrize(
    "scenario", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in SCENARIOS]
)
def test_every_scenario_has_the_digits_of_one_process(scenario):
    job = shared_job("--minutes", "20", "--scenario", scenario, *SPARSE)
    assert text(job, executor=ShuffledExecutor(1)) == text(job)


@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.long), 3])
def test_sampled_steps_have_the_digits_of_one_process(monkeypatch, groups):
    job = shared_job("--minutes", "26", "--nodes", "3", "--horovod", "--start-epoch", "1700000017", *SPARSE)
    for module in (step_sample, step_fold):
        monkeypatch.setattr(module, "MAX_STEPS", 200)
    monkeypatch.setattr(step_sample, "MIN_STEPS", 16)
    whole = text(job)
    assert "judged_steps" in whole
    monkeypatch.setattr(ShuffledExecutor, "_max_workers", groups)
    cut = seen_parts(monkeypatch)
    assert text(job, executor=ShuffledExecutor(3)) == whole
    assert [len({one.group for one in planned}) for planned in cut] == [groups]


def check(monkeypatch, drawn):
    """Compare for drawn numbers of parts and groups of nodes, lengths of slices and windows, and orders of arrival."""
    parts, groups, length, seed, interval = drawn
    job = shared_job("--minutes", "26", "--nodes", "3", "--horovod", "--start-epoch", "1700000017", *SPARSE)
    monkeypatch.setattr(engine, "SLICE_WINDOWS", length)
    monkeypatch.setattr(folding, "PARTS_PER_WORKER", parts)
    monkeypatch.setattr(folding, "groups_needed", lambda _: groups)
    monkeypatch.setattr(ShuffledExecutor, "_max_workers", min(groups, 2))
    parameters = {"scan_interval_us": interval}
    assert text(job, parameters=parameters, executor=ShuffledExecutor(seed)) == text(job, parameters=parameters)


DRAWN = st.tuples(
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 7),
    st.integers(0, 100),
    st.sampled_from([30_000_000, 60_000_000, 90_000_000]),
)
HERE = [HealthCheck.function_scoped_fixture]


@given(DRAWN)
@settings(max_examples=1, deadline=None, suppress_health_check=HERE)
def test_any_parts_in_any_order(monkeypatch, drawn):
    check(monkeypatch, drawn)


@pytest.mark.long
@given(DRAWN)
@settings(max_examples=40, deadline=None, suppress_health_check=HERE)
def test_many_parts_in_any_order(monkeypatch, drawn):
    check(monkeypatch, drawn)


def test_profile_in_parquet(tmp_path):
    job = shared_job("--minutes", "26", "--nodes", "2", "--horovod", "--start-epoch", "1700000017", *SPARSE)
    compact(open_source(job), LocalStorage(tmp_path), job="j")
    assert folded(tmp_path, ShuffledExecutor()) is not None
    whole = text(job)
    assert text(tmp_path, executor=ShuffledExecutor()) == whole
    shutil.rmtree(tmp_path / "states")
    assert text(tmp_path, executor=ShuffledExecutor()) == whole


def test_damaged_files_are_counted_once(tmp_path):
    job = shutil.copytree(shared_job("--minutes", "31", *SPARSE), tmp_path / "job")
    files = sorted(job.rglob("*.json"))
    for file in files[::7]:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    for file in files[3::11]:
        file.write_bytes(b"nothing")
    found = json.loads(text(job, executor=ShuffledExecutor()))["data_quality"]
    assert found == json.loads(text(job))["data_quality"]
    assert found["states"]["refused"] > 1


@pytest.mark.parametrize("shift", [-4, pytest.param(-12, marks=pytest.mark.long)])
def test_job_whose_files_have_wrong_names_is_read_in_one_process(tmp_path, shift):
    job = shutil.copytree(shared_job("--minutes", "31", *SPARSE), tmp_path / "job")
    file = sorted(job.glob("system/**/*.json"))[20]
    minute, _, rest = file.name.partition(".")
    file.rename(
        file.with_name(f"{int(minute) + 60 * shift}.{rest}x".replace(".jsonx", ".json").replace("algo-1", "algo-7"))
    )
    assert folded(job, ShuffledExecutor()) is None
    assert text(job, executor=ShuffledExecutor()) == text(job)


def test_late_and_long_events_count_in_the_same_window(tmp_path):
    job = shutil.copytree(shared_job("--minutes", "31", *SPARSE), tmp_path / "job")
    start = 1_700_000_000_000_000
    for end_s, length_s in ((1100, 1000), (700, 30), (1500, 420)):
        name = f"{start + end_s * 1_000_000}_9-algo-1_pythontimeline.json"
        rows = [
            {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": start}},
            {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "Step:ModeKeys.TRAIN"}},
            {
                "name": "Step:ModeKeys.TRAIN",
                "ph": "X",
                "pid": 1,
                "ts": (end_s - length_s) * 10**6,
                "dur": length_s * 10**6,
            },
        ]
        next((job / "framework/pevents").iterdir()).joinpath(name).write_text(json.dumps(rows))
    assert folded(job, ShuffledExecutor()) is not None
    assert text(job, executor=ShuffledExecutor()) == text(job)


def write_steps(job, node, rank, spans_s):
    """Add files with one step each, from a moment to another; they have the names of their ends."""
    start = 1_700_000_000_000_000
    for begin_s, end_s in spans_s:
        name = f"{start + end_s * 1_000_000}_{rank}-{node}_pythontimeline.json"
        step = {
            "name": "Step:ModeKeys.TRAIN",
            "ph": "X",
            "pid": 1,
            "ts": begin_s * 10**6,
            "dur": (end_s - begin_s) * 10**6,
        }
        rows = [
            {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": start}},
            {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "Step:ModeKeys.TRAIN"}},
            step,
        ]
        folder = next((job / "framework/pevents").iterdir())
        (folder / name).write_text(json.dumps(rows))


def counted(windows):
    """Return how often each event counts in each window."""
    events = ((window.start_us, window.new_events) for window in windows)
    return Counter(
        (start_us, *row) for start_us, rows in events for row in zip(rows.node.decode(), rows.end_us, strict=True)
    )


@pytest.mark.long
def test_files_of_other_nodes_decide_which_events_are_late(tmp_path, monkeypatch):
    job = shutil.copytree(
        shared_job("--minutes", "26", "--nodes", "3", "--horovod", "--start-epoch", "1700000017", *SPARSE),
        tmp_path / "job",
    )
    for file in job.rglob("*algo-2*.json"):  # a node without files for ten minutes
        seconds = int(file.name.partition("." if "system" in file.parts else "_")[0][:10]) - 1_700_000_000
        if 420 <= seconds < 1020:
            file.unlink()
    write_steps(job, "algo-2", 9, [(450, 1021), (451, 1150), (900, 1190), (1300, 1301)])
    whole, cut = text(job), seen_parts(monkeypatch)
    assert text(job, executor=ShuffledExecutor(2)) == whole
    assert [len({one.group for one in planned}) for planned in cut] == [3]
    source = open_source(job)
    found = Counter()
    for task in folding._Cut({}, 60_000_000, 3).tasks(source, cut[0]):
        found += counted(part._windows(open_listed(task.uri, task.job, task.files), task, []))
    assert found == counted(engine.windows(open_source(job)))


def test_rows_of_another_node_than_their_file_are_not_divided_by_node(tmp_path, monkeypatch):
    job = shutil.copytree(
        shared_job("--minutes", "26", "--nodes", "3", "--horovod", "--start-epoch", "1700000017", *SPARSE),
        tmp_path / "job",
    )
    file = sorted(job.glob("system/**/*algo-2*.json"))[7]
    file.write_text(file.read_text().replace("algo-2", "algo-3"))
    cut = seen_parts(monkeypatch)
    assert text(job, executor=ShuffledExecutor(2)) == text(job)
    assert [len({one.group for one in planned}) for planned in cut] == [3, 1]


@pytest.mark.long
def test_minute_of_which_nothing_can_be_read_is_not_divided_by_node(tmp_path, monkeypatch):
    job = shutil.copytree(
        shared_job("--minutes", "26", "--nodes", "3", "--horovod", "--start-epoch", "1700000017", *SPARSE),
        tmp_path / "job",
    )
    items = open_source(job).files
    minute = items[len(items) // 2].at_us // 60_000_000
    for item in items:
        if item.at_us // 60_000_000 == minute:
            (job / item.info.key).write_bytes(b"nothing")
    cut = seen_parts(monkeypatch)
    assert text(job, executor=ShuffledExecutor(2)) == text(job)
    assert [len({one.group for one in planned}) for planned in cut] == [3, 1]


def test_nodes_are_divided_until_a_group_writes_little_enough(monkeypatch):
    items = open_source(
        shared_job("--minutes", "26", "--nodes", "3", "--horovod", "--start-epoch", "1700000017", *SPARSE)
    ).files
    minute = int(items.sizes.sum()) / 27
    found = []
    for share in (1.1, 0.6, 0.4, 0.01):
        monkeypatch.setattr(plan, "GROUP_BYTES", int(share * minute))
        groups = plan.group_nodes(items, plan.groups_needed(items))
        found.append(len(groups))
        assert sorted(host for group in groups for host in group) == ([1, 2, 3] if len(groups) > 1 else [])
    assert found == [1, 2, 3, 3]
    planned = plan_parts(items, 3, interval_us=60_000_000, slice_windows=3, groups=3)
    assert len(planned) == 9
    assert sorted(item.info.key for one in planned for item in one.own) == sorted(item.info.key for item in items)


def test_events_across_files_and_parts(tmp_path):
    job = shutil.copytree(shared_job("--minutes", "31", *SPARSE), tmp_path / "job")
    start = 1_700_000_000_000_000
    folder = next((job / "framework/pevents").iterdir())
    for at_s, kind in ((600, "B"), (660, "E"), (1200, "B"), (1380, "E"), (700, "B"), (1700, "E")):
        rows = [
            {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": start}},
            {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": f"tensor-{at_s // 500}"}},
            {"name": "NCCL_ALLREDUCE", "ph": kind, "pid": 1, "ts": at_s * 10**6},
        ]
        (folder / f"{start + at_s * 10**6}_0-algo-1_horovod_timeline.json").write_text(json.dumps(rows))
    assert text(job, executor=ShuffledExecutor()) == text(job)


def test_hours_of_many_ranks_are_cut_into_shorter_slices(monkeypatch):
    job = shared_job("--minutes", "31", *SPARSE)
    monkeypatch.setattr(engine, "SLICE_WINDOWS", 12)
    source = open_source(job)
    minute = sum(item.info.size for item in source.files) / 31
    lengths = []
    for share in (13, 7, 4, 1, 0.1):
        monkeypatch.setattr(engine, "SLICE_BYTES", share * minute)
        lengths.append(engine.slice_windows(source))
    assert lengths == [12, 6, 3, 1, 1]
    assert engine.slice_windows(source, 30_000_000) == 1
    monkeypatch.setattr(engine, "SLICE_BYTES", 4 * minute)
    monkeypatch.setattr(folding, "PART_BYTES", 6 * minute)
    assert text(job, executor=ShuffledExecutor()) == text(job)
    planned = plan_parts(source.files, 6, interval_us=60_000_000, slice_windows=3)
    assert max(sum(item.info.size for item in one.own) for one in planned) < 8 * minute


def test_file_that_arrives_while_workers_read_changes_nothing(tmp_path):
    job = shutil.copytree(shared_job("--minutes", "31", *SPARSE), tmp_path / "job")
    late = sorted(job.glob("system/**/*.json"))[9]
    data = late.read_bytes()
    late.unlink()
    expected = text(job)

    class Arriving(ShuffledExecutor):
        def run(self):
            late.write_bytes(data)
            super().run()

    source = open_source(job)
    found = json.loads(to_json(build_report(source, executor=Arriving())))
    del found["generated"]
    assert json.dumps(found) == expected
    assert text(job, executor=ShuffledExecutor()) == text(job) != expected


def test_tasks_that_run_twice_change_nothing():
    job = shared_job("--minutes", "24", "--scenario", "healthy", *SPARSE)
    ran = []

    class Twice(ShuffledExecutor):
        def submit(self, fn, /, *args):
            return super().submit(lambda data: (ran.append(fn(data)), fn(data))[1], *args)

    assert text(job, executor=Twice()) == text(job)
    assert len(ran) > 2


def test_files_that_leave_before_a_worker_reads_them_are_counted(tmp_path):
    job = shutil.copytree(shared_job("--minutes", "31", *SPARSE), tmp_path / "job")
    gone = sorted(job.glob("system/**/*.json"))[9]

    class Leaving(ShuffledExecutor):
        def run(self):
            gone.unlink()
            super().run()

    found = json.loads(to_json(build_report(open_source(job), executor=Leaving())))["data_quality"]
    (row,) = found["rows"]
    assert row["path"].endswith(gone.name)
    assert (row["status"], row["reason"]) == ("refused", "removed before it was read")


def test_short_jobs_and_gaps_are_not_cut():
    assert plan_parts(ItemTable().ordered(), 4, interval_us=60_000_000, slice_windows=3) == []


def test_parts_cover_all_files_once():
    items = open_source(shared_job("--minutes", "31", *SPARSE)).files
    planned = plan_parts(items, 5, interval_us=60_000_000, slice_windows=3)
    assert len(planned) == 5
    assert sorted(item.info.key for one in planned for item in one.own) == sorted(item.info.key for item in items)
    assert all(set(one.own) <= set(one.items) for one in planned)


def test_other_version_is_refused_in_one_line(monkeypatch):
    told = iter(["0.0.1"] * 100)

    class Older(ShuffledExecutor):
        def run(self):
            monkeypatch.setattr(part.fold_part, "_version", part.version)
            super().run()

    monkeypatch.setattr(part.fold_part, "_version", lambda: next(told))
    with pytest.raises(SourceError, match=r"sm-profiler is 0\.0\.1 where the command runs and .* on a worker"):
        text(shared_job("--minutes", "24", "--scenario", "healthy", *SPARSE), executor=Older())


def test_states_are_data_and_not_code():
    value = {("a", 1): [np.arange(3), (1.5, None), {2, 3}, 1 << 80], "x": b"y", frozenset({1}): np.int8(3)}
    again = codec.decode(codec.encode(value))
    np.testing.assert_array_equal(again["a", 1][0], np.arange(3))
    assert again["a", 1][1:] == [(1.5, None), {2, 3}, 1 << 80]
    numbers = [8 * number for number in range(40)]
    backwards = numbers[::-1]
    assert codec.encode(set(numbers)) == codec.encode(set(backwards))
    for bad in (object(), open, np.asarray([object()])):
        with pytest.raises(TypeError):
            codec.encode(bad)
    for bad in (
        ["o", "os:system", {}, None],
        ["o", "sm_profiler.cli.main:main", {}, None],
        ["o", "sm_profiler.storage.base:LocalStorage", {"root": "/"}, None],
        ["o", "sm_profiler.diagnosis.model:Report", {}, None],
        ["z"],
        ["r", "|O", [1], b"12345678"],
        ["r", "<f8", [1], b""],
        ["r", "<f8", [-1, -1], b"12345678"],
        ["r", "<i1", [1 << 62, 4], b""],
        [],
    ):
        with pytest.raises(ValueError, match="not a state"):
            codec.decode(codec.msgspec.msgpack.encode(bad))
    for name in (
        "sm_profiler.storage.base:LocalStorage",
        "sm_profiler.rules.runner:main",
        "sm_profiler.rules:nothing",
    ):
        with pytest.raises(ValueError, match="object"):
            codec.decode(codec.msgspec.msgpack.encode(["o", name, {}, None]), report=True)
    for data in (b"", b"\xc1", b"\x92\xa1l\x91" * 5000 + b"\xc0"):
        with pytest.raises(ValueError, match="state"):
            codec.decode(data)
    with pytest.raises(SourceError, match="damaged"):
        part.decode_slice(b"\xc1", {})


def test_local_processes_and_one_that_is_killed(monkeypatch):
    from sm_profiler.executors.pools import LocalExecutor

    job = shared_job("--minutes", "24", "--scenario", "healthy", *SPARSE)
    monkeypatch.setenv("SM_PROFILER_CACHE", "off")
    executor = LocalExecutor(2)
    receive = LocalExecutor._take
    killed = []

    def take(self, name):
        helper = receive(self, name)
        if not killed:
            killed.append(helper)
            helper.process.kill()
            helper.process.wait()
            helper.process.poll = lambda: None
        return helper

    monkeypatch.setattr(LocalExecutor, "_take", take)
    try:
        source = open_source(job)
        whole = folding.fold_with(source, executor, parameters={}, interval_us=60_000_000)
    finally:
        executor.shutdown()
    assert killed
    assert whole is not None
    expected = engine.run_sliced(open_source(job), lambda: new_folds({}))
    assert part.encode_slice(whole) == part.encode_slice(expected)
