"""The start of a job, broken down: from its description, the hook's metadata, and its first steps."""

import datetime as dt
import inspect
import json
import time

import attrs
import pytest

from sm_profiler.container import INPUT_CONFIG
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.hook.clock import birth, is_shared, shared_mounts
from sm_profiler.identity import host_id
from sm_profiler.metrics.ends import EndFacts
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from sm_profiler.metrics.startup import before_profile, start_parts
from sm_profiler.render.view import pictures
from sm_profiler.report import Class
from sm_profiler.report.write import to_json
from tests.support.reports import START_S, cause_found, metrics_of, report_from, training

SAMPLES = [(tick / 2, 30.0, "algo-1", "cpu", "cpu0", "CPUUtilization") for tick in range(1, 60)]


def process(loaded, *, started=None, container=None):
    """Return the metadata of a process, with times in seconds after START_S."""
    times = {"loaded_us": loaded, "process_us": started, "container_us": container}
    micros = {name: (START_S + at) * 1e6 for name, at in times.items() if at is not None}
    return ({"name": "algo-1-0", "rank": 0, "node": "algo-1", **micros},)


def transitions(**lengths):
    """Return a description whose states follow each other; the training starts at START_S."""
    at = START_S - sum(lengths.values())
    rows = []
    for status, length in (*lengths.items(), ("Training", 100)):
        start, end = (dt.datetime.fromtimestamp(moment, dt.timezone.utc) for moment in (at, at + length))
        rows.append({"Status": status, "StartTime": start, "EndTime": end, "StatusMessage": ""})
        at += length
    return {"SecondaryStatusTransitions": rows}


def seconds(metrics):
    return {part.key: pytest.approx(part.seconds, abs=0.01) for part in start_parts(metrics)}


def test_names_each_part_of_the_start():
    rows = training(1, at=20.0, forward=4.0) + training(300, at=24.1, number=1)
    metrics = metrics_of(rows, SAMPLES, metadata=process(8.0, started=5.0))
    described = transitions(Starting=60, DownloadingTrainingImage=40, Downloading=30)
    found = seconds(attrs.evolve(metrics, description=described))
    assert found["instance"] == 60
    assert found["image"] == 40
    assert found["download"] == 30
    assert found["install"] == 5
    assert found["imports"] == 3
    assert found["building"] == 12
    assert found["first_steps"] == pytest.approx(4.08, abs=0.1)
    report = json.loads(to_json(report_from(rows, SAMPLES, metadata=process(8.0, started=5.0))))
    assert [part["part"] for part in report["job"]["startup"]] == ["imports", "building", "first_steps"]


def test_compilation_is_part_of_the_first_steps():
    rows = training(1, at=5.0, forward=10.0) + training(300, at=15.1, number=1)
    rows.append(("sm_profiler/compile", "forward", 5.1, 8.0, "algo-1-0", 0, {}))
    found = seconds(metrics_of(rows, SAMPLES))
    assert found["compile"] == 8
    assert found["first_steps"] == pytest.approx(2.1, abs=0.1)


def judged(rows, metadata=(), description=None):
    metrics = metrics_of(rows, SAMPLES, metadata=metadata)
    return cause_found("INITIALIZATION_BOUND", Case(attrs.evolve(metrics, description=description or {}), {}))


@pytest.mark.parametrize("state", ["interrupted", "stopped", "crashed", "killed", "running", "completed"])
def test_only_a_job_that_ended_by_itself_has_a_share_of_start(state):
    """Three steps after 30 s were "98 % of the job is over before it", and how much there was to save."""
    facts = EndFacts(run=state)
    main = report_from(training(3, at=30.0), SAMPLES, metadata=process(4.0, started=0.5), facts=facts).verdict.main
    assert main.kind is (Class.INITIALIZATION_BOUND if state == "completed" else Class.INCONCLUSIVE)
    if state == "completed":
        assert main.doubt == "only 3 steps"
    else:
        assert main.gain is None
        assert next(one.value for one in main.evidence if one.metric == "initialization") > 25


def test_the_verdict_names_the_largest_part():
    found = judged(training(300, at=20.0), process(2.0, started=0.5))
    assert found.kind is Class.INITIALIZATION_BOUND
    assert "building model and dataset" in found.headline
    assert any(one.metric.startswith("building") and one.value == 18 for one in found.evidence)
    assert "index" in found.next_step


STACKS = tuple(
    Sampled("algo-1-0", phase, False, (Place("train.py", line, "main"),), leaf, seconds, 60)
    for phase, line, leaf, seconds in (
        ("start", 3, "import", 9.0), ("start", 12, "datasets.load", 4.0), ("first_steps", 30, "", 20.0), ("forward", 31, "", 9.0),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "named", "line"),
    [
        (training(300, at=24.0), "most of it is building model and dataset", 12),
        (training(1, at=3.0, forward=25.0) + training(600, at=28.1, number=1), "is the slow first steps", 30),
    ],
)
def test_the_lines_are_those_of_the_part_that_is_named(rows, named, line):
    """All lines before the first step were named, even if another part was the largest."""
    metrics = metrics_of(rows, SAMPLES, metadata=process(2.0, started=0.5))
    stacks = STACKS if rows[0][2] > 20 else tuple(one for one in STACKS if one.leaf != "import")
    found = decide(Case(attrs.evolve(metrics, samples=Samples(stacks)), {}))
    start = next(one for one in (found.main, *found.also) if one.kind is Class.INITIALIZATION_BOUND)
    assert named in start.headline
    assert [one.line for one in start.where] == [line]
    parts = {one.metric: one.value for one in start.evidence}
    assert sum(list(parts.values())[2:]) == pytest.approx(parts["initialization"], rel=0.05)
    assert start.gain.seconds.high > 10


def test_the_lines_of_compiling_are_those_that_call_the_compiled_functions():
    """JAX compiles in the first call, before any step begins, so that no sample of the first steps shows it."""
    rows = training(1, at=3.0, forward=25.0) + training(600, at=28.1, number=1)
    for line, start, length in ((40, 3.1, 20.0), (12, 2.0, 0.3)):
        place = {"file": "train.py", "line": line, "function": "main"}
        rows.append(("sm_profiler/compile", "update", start, length, "algo-1-0", -1, place))
    found = judged(rows, process(2.0, started=0.5))
    assert "most of the excess is compiling" in found.headline
    assert [one.line for one in found.where] == [40, 12]


def test_a_part_that_no_sample_saw_has_no_lines():
    found = judged(training(1000, at=4.0), process(3.0, started=0.6), transitions(Starting=200, Downloading=120))
    assert found.where == ()
    assert not any("instance" in one.metric for one in found.evidence)  # which is not paid, and no part of the sum


def test_a_long_download_counts_although_the_profile_begins_later():
    rows = training(1000, at=4.0)
    assert judged(rows, process(3.0, started=0.6)) is None
    found = judged(rows, process(3.0, started=0.6), transitions(Starting=200, Downloading=120))
    assert "downloading the data" in found.headline
    assert "FastFile" in found.next_step


def test_waiting_for_the_instance_is_shown_but_not_judged():
    assert judged(training(1000, at=4.0), process(3.0, started=0.6), transitions(Starting=900)) is None


def test_packages_installed_before_the_profile_begins_count():
    metrics = metrics_of(training(1000, at=4.0), SAMPLES, metadata=process(3.0, started=0.2, container=-90.0))
    earlier, imports = before_profile(metrics)
    assert earlier == pytest.approx(90.5, abs=0.01)
    assert imports == pytest.approx(0.3, abs=0.01)
    found = cause_found("INITIALIZATION_BOUND", Case(metrics, {}))
    assert "installing packages" in found.headline


def test_a_slow_first_step_counts():
    rows = training(1, at=3.0, forward=25.0) + training(600, at=28.1, number=1)
    found = judged(rows, process(2.0, started=0.6))
    assert "slow first steps" in found.headline


def test_usual_first_steps_do_not_count():
    rows = training(1, at=3.0, forward=1.5) + training(200, at=4.6, number=1)
    assert judged(rows, process(2.0, started=0.6)) is None


@pytest.mark.parametrize(
    "rows",
    [
        "text",
        [None, 7, "Training"],
        [{"Status": "Downloading", "StartTime": "soon", "EndTime": None}],
        [{"Status": "Downloading", "StartTime": 10**400, "EndTime": float("nan")}],
        [{"Status": {"a": 1}, "StartTime": True, "EndTime": -5}],
        [{"Status": "Downloading", "StartTime": 5000, "EndTime": 4000}],
    ],
)
def test_damaged_descriptions_are_ignored(rows):
    metrics = metrics_of(training(300, at=4.0), SAMPLES, metadata=process(3.0, started=0.6))
    described = attrs.evolve(metrics, description={"SecondaryStatusTransitions": rows})
    assert seconds(described) == seconds(metrics)


@pytest.mark.parametrize("value", [None, "x", 10**400, float("nan"), float("inf"), -1, [], True])
@pytest.mark.parametrize("name", ["loaded_us", "process_us", "container_us"])
def test_damaged_metadata_is_ignored(name, value):
    (record,) = process(3.0, started=0.6, container=0.1)
    metrics = metrics_of(training(300, at=4.0), SAMPLES)
    for part in start_parts(attrs.evolve(metrics, metadata=({**record, name: value},))):
        assert 0 < part.seconds < 10


def test_the_hook_records_when_its_process_started(tmp_path):
    now = time.time_ns() // 1000
    found = birth(now, input_config=tmp_path / "none")
    assert found.container_us is None
    assert 0 < (now - found.process_us) / 1e6 < 86_400
    in_container = birth(now, input_config=tmp_path)
    assert in_container.container_us is None or in_container.container_us <= found.process_us


def test_an_unreadable_proc_costs_the_birth_only(tmp_path):
    assert birth(1, proc=tmp_path / "none").process_us is None
    assert shared_mounts(tmp_path) == {}


def test_finds_shared_file_systems(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        "40 27 0:50 / /opt/ml/input/data/train\\040set rw shared:1 master:2 - nfs4 127.0.0.1:/ rw,vers=4.1\n"
        "41 27 0:51 / /fsx rw - lustre 10.0.0.1@tcp:/abc rw\n"
        "42 27 0:52 / /opt/ml/input/data/fast rw - fuse.sagemaker-fastfile x rw\n"
        "43 27 0:53 / /mnt/ssh rw - fuse.sshfs host:/ rw\n"
        "broken line\n44 - \n"
    )
    assert shared_mounts(tmp_path) == {
        "/opt/ml/input/data/train set": "nfs4", "/fsx": "lustre", "/opt/ml/input/data/fast": "fuse.sagemaker-fastfile",
        "/mnt/ssh": "fuse.sshfs",
    }  # fmt: skip
    assert not is_shared("overlay", "overlay")
    assert not is_shared("fuse.lxcfs", "lxcfs")


def test_a_machine_with_only_the_folder_of_containers_is_none():
    """Tools create /opt/ml on machines that were started days ago."""
    assert str(inspect.signature(birth).parameters["input_config"].default) == INPUT_CONFIG


@pytest.mark.parametrize("compiled", [3.0, 0.0])
def test_a_short_start_is_judged_alike_if_functions_are_compiled_in_it(compiled):
    rows = training(1, at=5.0, forward=3.1) + training(20, at=8.2, forward=0.1, number=1)
    rows.append(("sm_profiler/compile", "step", 5.05, compiled, "algo-1-0", 0, {}))
    metrics = metrics_of(rows, SAMPLES[:16], metadata=process(4.0, started=0.5))
    assert cause_found("INITIALIZATION_BOUND", Case(metrics, {})) is None


def test_the_bar_of_the_job_shows_each_paid_part_of_the_start():
    rows = training(1, at=20.0, forward=4.0) + training(300, at=24.1, number=1)
    described = transitions(Starting=600, DownloadingTrainingImage=40, Downloading=30)
    report = report_from(rows, SAMPLES, metadata=process(8.0, started=5.0))
    metrics = attrs.evolve(report.metrics, description=described)
    report = attrs.evolve(report, metrics=metrics, verdict=decide(Case(metrics, {})))
    assert report.verdict.kind is Class.INITIALIZATION_BOUND
    bar, *_ = pictures(report)
    names = [name for name, _, _ in bar.legend]
    assert names == [
        "Pulling the image",
        "Downloading the data",
        "Starting the container and installing packages",
        "Starting Python and importing packages",
        "Building model and dataset before the first step",
        "The slow first steps",
        "Training loop",
        "After the loop",
    ]
    shares = [float(value.split(" ")[0]) for _, _, value in bar.legend]
    assert sum(shares) == pytest.approx(100, abs=3)


def test_a_job_whose_start_is_not_known_has_one_part_before_the_loop():
    bar, *_ = pictures(report_from(training(200, at=60.0), SAMPLES))
    assert [name for name, _, _ in bar.legend] == ["Before the first step", "Training loop", "After the loop"]


def test_packages_imported_after_the_framework_are_imports():
    rows = training(300, at=24.0)
    metrics = metrics_of(rows, SAMPLES, metadata=process(8.0, started=5.0))
    line = (Place("train.py", 3, "<module>"),)
    stacks = (
        Sampled("algo-1-0", "start", False, line, "import", 10.0, 150),
        Sampled("algo-1-0", "start", False, line, "torch.nn.init.orthogonal_", 3.0, 45),
        Sampled("algo-1-0", "outside", False, line, "import", 3.0, 45),
    )
    found = seconds(attrs.evolve(metrics, samples=Samples(stacks)))
    assert (found["imports"], found["building"]) == (13, 6)


def test_the_machine_is_part_of_a_birth(tmp_path):
    (tmp_path / "driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    (tmp_path / "driver/nvidia/gpus/0000:01:00.0/information").write_text("GPU UUID: \t GPU-01234567-89ab\n")
    assert host_id(in_container=True, proc=tmp_path, dmi=tmp_path) == "GPU-01234567-89ab"
    assert birth(1, input_config=tmp_path / "none").host == host_id(in_container=False)
