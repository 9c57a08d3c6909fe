"""Fuzzing of the notebook API: damaged files and hostile names end in a result or a one-line error.

`make test` tries 8 inputs, the long tests 24; `SM_PROFILER_FUZZ` sets the number, `SM_PROFILER_FUZZ_SEED` the first seed. Each input runs in a
worker with limited memory and time; a failure names its seed: `python tests/fuzz/analysis_worker.py BASE SEED 1` repeats it.
"""

import contextlib
import cProfile
import json
import marshal
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyinstrument import Profiler
from pyinstrument.renderers import JSONRenderer

from sm_profiler.analysis import PandasFrame, TrainingJob
from sm_profiler.errors import SourceError
from sm_profiler.formats.cprofile_reader import DamagedStatisticsError, read_statistics
from sm_profiler.source import ProfileSource
from sm_profiler.source.profile import Options
from sm_profiler.storage import FileInfo, MissingFileError
from tests.support.jobs import make_job

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("analysis_worker.py")
PARTS = 3
COUNT = int(os.environ.get("SM_PROFILER_FUZZ", "24")) // PARTS
MANY = settings(max_examples=max(COUNT, 10), deadline=None, suppress_health_check=list(HealthCheck))
SEED = int(os.environ.get("SM_PROFILER_FUZZ_SEED", "0"))


def python_statistics(root):
    """Write statistics of both profilers as the hook does."""
    for number, (start, end) in enumerate(
        [("prestepzero-*-start", "train-1-stepstart"), ("train-1-stepstart", "train-1-stepend")]
    ):
        at = 1_700_000_000_000_000 + number * 1_000_000
        folder = f"0-algo-1/{start}-{at}_{end}-{at + 900_000}"
        profiler, sampler = cProfile.Profile(), Profiler(interval=0.0001)
        profiler.runcall(json.dumps, list(range(100)), indent=1)
        sampler.start()
        json.loads(json.dumps(list(range(20_000)), indent=1))
        sampler.stop()
        for name in ("cprofile", "pyinstrument"):
            (root / f"framework/pytorch/{name}" / folder).mkdir(parents=True)
        profiler.dump_stats(root / "framework/pytorch/cprofile" / folder / "python_stats")
        target = root / "framework/pytorch/pyinstrument" / folder
        (target / "python_stats.json").write_text(sampler.output(JSONRenderer()))
        (target / "python_stats.html").write_text("<html></html>")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    jobs = {
        "pytorch": ["--gpus", "2"],
        "slow": ["--scenario", "dataloader-slow", "--gpus", "1"],
        "tensorflow": ["--tensorflow", "--gpus", "1"],
        "horovod": ["--horovod", "--gpus", "1"],
    }
    for name, arguments in jobs.items():
        job = make_job(folder / name, "--minutes", "0.3", "--steps-per-second", "2", "--cpus", "2", *arguments)
        python_statistics(job)
    return folder


@pytest.mark.first(1)
@pytest.mark.timeout(20_000)
@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_profiles_end_in_a_result_or_one_line(part, base):
    first, end = SEED + part * COUNT, SEED + (part + 1) * COUNT
    failures = []
    while first < end:
        first, failed = run(base, first, end)
        failures += failed
        assert len(failures) < 10, "\n".join(failures)
    assert not failures, "\n".join(failures)


def run(base, first, end):
    """Run a worker until it ends; return the next seed and descriptions of failures."""
    command = [sys.executable, str(WORKER), str(base), str(first), str(end - first)]
    environment = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUTF8": "1",
        "PYTHONPATH": str(ROOT),
    }
    ran = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    seed, failures, done = first, [], True
    for line in ran.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word == "start":
            seed, done = int(rest), False
        else:
            done = True
            if word == "limit":
                failures.append(f"seed {seed}: {rest}")
            elif word != "ok":
                failures.append(f"seed {seed}: {json.loads(line)}")
    if not done or ran.returncode:
        failures.append(f"seed {seed}: the worker ended with {ran.returncode}: {ran.stderr[-2000:]}")
    return seed + 1, failures


PIECES = st.sampled_from([
    "system", "framework", "incremental", "pevents", "pytorch", "tensorflow", "cprofile", "pyinstrument", "detailed_profiling", "2023111422",
    "1700000000.algo-1.json", "1700000000000000_0-algo-1_pythontimeline.json", "1700000000000000_0-algo-1_model_timeline.json",
    "0-algo-1_1700000000000000_1700000001000000.metadata", "algo-1.trace.json.gz", "000000005", "python_stats", "python_stats.json", "0-algo-1",
    "prestepzero-*-start-1700000000000000_train-1-stepstart-1700000001000000", "training_job_end.ts", "..", ".", "", "²", "9" * 310, "\0", "\x1b[2J",
])  # fmt: skip
KEYS = st.lists(PIECES | st.text(max_size=8), min_size=1, max_size=7).map("/".join)


class HostileStorage:
    """A bucket with arbitrary keys."""

    uri = "s3://bucket/job"
    parallel_reads = 1

    def __init__(self, files):
        self.files = files

    def list(self, prefix="", start_after=None):
        for key in sorted(self.files):
            if key.startswith(prefix) and key > (start_after or ""):
                yield FileInfo(key, len(self.files[key]), 0.0, "etag")

    def read(self, key, start=None, end=None):
        if key not in self.files:
            raise MissingFileError(key)
        return self.files[key][start:end]


CONTENTS = st.sampled_from([
    b"", b"[", b"[]", b"{}", b"null", b'[{"name": "process_name", "ph": "M", "pid": 1, "args": {}}]', b"\x1f\x8b", b"\xff",
    b'{"Type": "cpu", "Name": "cpu0", "Dimension": "CPUUtilization", "Value": 1e999, "NodeId": "algo-1", "Timestamp": 1700000001}\n',
    b'[{"name": "Forward", "ph": "X", "pid": 0, "tid": 0, "ts": 9e18, "dur": 9e18, "args": {"step_num": "7"}}]',
    b'[{"name": [], "ph": {}, "pid": "0", "tid": null, "ts": "5", "dur": -1, "args": []}]',
])  # fmt: skip


@MANY
@given(st.dictionaries(KEYS, CONTENTS, max_size=8))
def test_hostile_object_keys_are_ignored_or_read(files):
    frame = PandasFrame(ProfileSource(HostileStorage(files), Options(cache=False, processes=1, progress=False)))
    frame.get_all_system_metrics()
    frame.get_all_framework_metrics()
    frame.get_all_dataloader_metrics()
    frame.get_latest_data()


DESCRIPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "TrainingJobName": st.text(max_size=10),
        "ProfilerConfig": st.none() | st.fixed_dictionaries({}, optional={"S3OutputPath": st.text(max_size=20)}),
        "OutputDataConfig": st.none() | st.fixed_dictionaries({}, optional={"S3OutputPath": st.text(max_size=20)}),
    },
)


@MANY
@given(st.text(max_size=70), DESCRIPTIONS)
def test_any_description_of_a_job_is_accepted_or_one_line(name, description):
    class Client:
        def describe_training_job(self, **_):
            return description

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sm_profiler.analysis.readers.create_api_client", lambda *_, **__: Client())
        try:
            job = TrainingJob(name)
        except SourceError as error:
            assert len(str(error).splitlines()) == 1  # one of two outcomes
        else:
            assert job.get_config_and_profiler_s3_output_path()[1].endswith("/profiler-output")


FUNCTIONS = st.tuples(st.text(max_size=5), st.integers(-(2**40), 2**40), st.text(max_size=5))
NUMBERS = st.integers(-(2**70), 2**70) | st.floats()
FIGURES = st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
STATISTICS = st.dictionaries(
    FUNCTIONS,
    st.builds(lambda figures, callers: (*figures, callers), FIGURES, st.dictionaries(FUNCTIONS, FIGURES, max_size=3)),
    max_size=4,
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=3) | st.binary(max_size=3) | FUNCTIONS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(FUNCTIONS, inner, max_size=3)
    ),
    max_leaves=20,
)


def same(one, other):
    return repr(one) == repr(other)  # NaN is not equal to itself


@MANY
@given(STATISTICS | ANYTHING, st.integers(2, marshal.version))
def test_statistics_are_read_as_by_marshal_or_rejected(value, version):
    data = marshal.dumps(value, version)
    try:
        found = read_statistics(data)
    except DamagedStatisticsError:
        assert not (isinstance(value, dict) and is_plain(value))
    else:
        assert isinstance(value, dict)
        if is_plain(value):
            assert same(found, marshal.loads(data))


def is_plain(value):
    """Return whether a dictionary is statistics with printable names and integers of 63 bits."""
    for key, figures in value.items():
        if not (isinstance(figures, tuple) and len(figures) == 5 and isinstance(figures[4], dict)):
            return False
        keys, numbers = [key, *figures[4]], [*figures[:4]]
        for more in figures[4].values():
            if not (isinstance(more, tuple) and len(more) == 4):
                return False
            numbers += more
        if not all(
            type(number) in {int, float} and (math.isnan(number) or abs(number) < 2**63 or type(number) is float)
            for number in numbers
        ):
            return False
        if not all(file.isprintable() and name.isprintable() for file, _, name in keys):
            return False
    return True


def real_statistics():
    profiler = cProfile.Profile()
    profiler.runcall(json.dumps, [1], indent=1)
    profiler.create_stats()
    return marshal.dumps(profiler.stats)


REAL = real_statistics()


@MANY
@given(st.data())
def test_damaged_statistics_are_read_or_rejected(data):
    content = bytearray(REAL)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
        if not content:
            return
    with contextlib.suppress(DamagedStatisticsError):
        read_statistics(bytes(content))
