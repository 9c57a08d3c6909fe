"""Fuzzing of rules and runner: damaged jobs, environments and configurations end with results or one line.

`make test` tries two hundred inputs; `SM_PROFILER_FUZZ=100000` is the number in all. Repeat a failed seed with
`python tests/fuzz/rules_worker.py engine|runner BASE SEED 1`.
"""

import json
import math
import os
import random
import shutil
import string
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm_profiler.errors import ConfigError
from sm_profiler.rules import run_rules
from sm_profiler.rules.base import build
from sm_profiler.rules.profiler_report import RULES, ReportParameters
from sm_profiler.rules.rule_job import RUNNER_PARAMETERS, read_settings
from sm_profiler.settings import POLL_S
from tests.support import rules as jobs
from tests.support.jobs import make_job

REPO = Path(__file__).parents[2]
INPUTS = int(os.environ.get("SM_PROFILER_FUZZ", "200"))
SHARES = {"engine": 0.5, "runner": 0.1}  # of the inputs; the rest are columns, settings and parameters
BATCH = 500  # inputs of one worker
SECONDS_PER_INPUT = 2.0
SETTINGS = settings(max_examples=max(INPUTS // 8, 1), deadline=None, suppress_health_check=list(HealthCheck))
JOBS = [
    ("--minutes", 1.5, "--gpus", 2, "--cpus", 2, "--steps-per-second", 4),
    ("--minutes", 1.2, "--gpus", 1, "--cpus", 2, "--nodes", 2, "--horovod", "--interval-ms", 1000),
    ("--minutes", 2.5, "--gpus", 2, "--cpus", 3, "--scenario", "dataloader-slow", "--interval-ms", 1000),
    ("--minutes", 1, "--cpus", 2, "--tensorflow", "--no-end-marker"),
]
REAL = ("test_traces", "merge_traces", "model_timeline_traces", "horovod_timeline_traces", "pytorch_kineto")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Intact jobs: generated ones, and real files."""
    folder = tmp_path_factory.mktemp("base")
    for number, words in enumerate(JOBS):
        make_job(folder / f"generated-{number}", *words)
    for name in REAL:
        shutil.copytree(REPO / "tests/data/formats" / name, folder / name)
    return folder


@pytest.mark.first(1)
@pytest.mark.parametrize("what", SHARES)
@pytest.mark.timeout(20_000)
def test_damaged_jobs(base, what):
    total = max(int(INPUTS * SHARES[what]), 1)
    failures = []
    for first in range(0, total, BATCH):
        count = min(BATCH, total - first)
        words = [sys.executable, str(Path(__file__).with_name("rules_worker.py")), what, base, str(first), str(count)]
        limit_s = 60 + SECONDS_PER_INPUT * count
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **threads, "AWS_EC2_METADATA_DISABLED": "true"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=limit_s, check=False)
        lines = done.stdout.splitlines()
        failures += [line for line in lines if line.startswith("failed ")]
        if not lines or lines[-1] != f"done {count}":
            failures.append(f"ended with {done.returncode} after {lines[-1:]}: {done.stderr[-1000:]}")
    assert not failures, f"{len(failures)} of {total}:\n" + "\n".join(failures[:5]).replace("\\n", "\n")


def attempt(call):
    """Return the result of a call and "", or None and the message of its ConfigError."""
    try:
        return call(), ""
    except ConfigError as error:
        return None, str(error)


NAMES = st.one_of(
    st.sampled_from(sorted(RUNNER_PARAMETERS)),
    st.sampled_from(["SM_PROFILER_SOURCE", "SM_PROFILER_POLL_S", "SAGEMAKER_ENV_RULE_STOP_SIGNAL_FILE"]),
    st.text(string.ascii_letters + "_", max_size=20),
)
VALUES = st.one_of(
    st.text(max_size=40).filter(lambda text: "\0" not in text),
    st.sampled_from(["²", "1e999", "nan", "-1", "9" * 400, "true", "/opt/ml/x", "s3://b/p", "file://x"]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=20,
)
CONFIGS = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {},
        optional={
            "Environment": st.dictionaries(NAMES, VALUES) | JSON,
            "ProcessingInputs": st.lists(st.fixed_dictionaries({"S3Input": JSON}) | JSON, max_size=3) | JSON,
            "TrainingJobArn": JSON,
        },
    ),
)


PHASES = (
    "Step:ModeKeys.TRAIN", "DataLoaderIter", "DataLoaderWait", "DataLoaderIterInitialize", "cpu_functions", "gpu_functions-dev:0",
    "Forward", "Forward-SubModuleInternal", "Backward-SubModuleInternal", "sm_profiler/x", "",
)  # fmt: skip
HOSTILE = (0.0, -1.0, 1e308, -1e308, 5e-324, 1e18, 100.0, math.nan, math.inf, -math.inf)
EAGER = {
    f"{rule.name()}_{name}": 1
    for rule in RULES
    for name in ("patience", "window", "n_outliers")
    if name in {field.name for field in rule.Parameters.__attrs_attrs__}
}


def hostile_source(draw):
    """Return a source of columns with extreme values, durations, numbers and names."""
    rows = jobs.samples(
        draw.choice([5, 130]), gpus=draw.choice([1, 2]), cores=2, nodes=("algo-1", "²-1")[: draw.choice([1, 2])]
    )
    value = rows.value.copy()
    for _ in range(draw.choice([1, 5, 50])):
        value[draw.randrange(len(value))] = draw.choice(HOSTILE)
    batches = jobs.batches(attrs.evolve(rows, value=value))
    happenings = [
        (draw.uniform(0, 90), 0.2, draw.choice([*PHASES[:2], "Prefetch"]), draw.choice(PHASES), {
            "num_workers": draw.choice([-1, 0, 4, 2**31 - 1]), "pid": draw.choice([27, -1, 2**63 - 1]),
            "step": draw.choice([-1, 0, 2**63 - 1]), "node": draw.choice(["algo-1-0", "", "x", "²"]),
        })
        for _ in range(draw.choice([1, 20, 200]))
    ]  # fmt: skip
    events = jobs.events(happenings)
    durations = events.duration_us.copy()
    for _ in range(draw.choice([0, 1, 3])):
        durations[draw.randrange(len(durations))] = draw.choice([*HOSTILE, 1e12, 1e15, 1e17])
    batches[0].events = attrs.evolve(events, duration_us=durations)
    return jobs.MemorySource(batches)


@given(st.integers(0, 2**40))
@SETTINGS
def test_hostile_columns_break_no_rule(seed):
    for compat in (None, "service"):
        source = hostile_source(random.Random(seed))  # reproducible inputs
        results = run_rules(source, parameters=EAGER, compat=compat)
        assert not results.broken
        json.dumps(results.as_dict(), allow_nan=False)


@given(st.dictionaries(NAMES, VALUES, max_size=8), CONFIGS)
@SETTINGS
def test_settings_are_read_or_refused_in_one_line(tmp_path_factory, variables, config):
    root = tmp_path_factory.getbasetemp() / "fuzz-settings"
    (root / "config").mkdir(parents=True, exist_ok=True)
    (root / "config/processingjobconfig.json").write_text(json.dumps(config), "utf-8")
    POLL_S.read_or_default(variables)
    found, error = attempt(lambda: read_settings({**variables, "SM_PROFILER_ROOT": str(root)}))
    assert "\n" not in error
    if found is not None:
        assert all(isinstance(value, str) for value in (found.source, found.rule, found.code, found.job))


RULE_PARAMETERS = st.sampled_from(
    [f"{rule.name()}_{field.name}" for rule in RULES for field in rule.Parameters.__attrs_attrs__]
    + ["scan_interval_us", "StepOutlier_threshold", "CPUBottleneck_nothing", "Nothing_threshold", "x"]
)
ANY_VALUES = st.one_of(VALUES, st.floats(), st.integers(), st.integers(10**300, 10**320), JSON)


@given(st.dictionaries(RULE_PARAMETERS, ANY_VALUES, max_size=4))
@SETTINGS
def test_parameters_are_parsed_or_refused_in_one_line(given_values):
    parsed, error = attempt(lambda: ReportParameters.parse(given_values))
    assert "\n" not in error
    if parsed is None:
        return
    assert parsed.scan_interval_us > 0
    for rule in RULES:
        build(rule.Parameters, rule.name(), rule.accepted(parsed.of_rules.get(rule.name(), {})))
