"""Comparison with the answers of smdebug 1.0.34, which runs in its own environment.

What differs on purpose is left out here and tested in test_analysis_frames.py: thread numbers (`tid`), statistics over
several processes, and events from before the first system metrics.
"""

import contextlib
import io
import json
import os
import random
import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sm_profiler.analysis import PandasFrame, PandasFrameAnalysis, PT_dataloader_analysis, Resource, StatsBy
from tests.support.jobs import make_job
from tests.tools.make_job import SCENARIOS

ROOT = Path(__file__).parents[2]
OLD_PYTHON = ROOT / ".envs/smdebug/bin/python"
SAMPLES = ROOT / "tests/data/formats"
# folder → arguments of make_job.py
JOBS = {
    **{
        name: ["--scenario", name, "--minutes", "1.2", "--gpus", "2", "--cpus", "2", "--steps-per-second", "2"]
        for name in SCENARIOS
    },
    "tensorflow": ["--tensorflow", "--minutes", "1.5", "--nodes", "2"],
    "horovod": ["--horovod", "--minutes", "2", "--gpus", "2"],
    "one-process": ["--minutes", "2.5", "--scenario", "step-outliers"],
}
REAL = ("horovod_timeline_traces", "merge_traces", "model_timeline_traces", "test_traces", "tfprofiler_timeline_traces")


def random_job(seed):
    """Return the arguments of a small random job."""
    draw = random.Random(seed)  # the same jobs every time
    arguments = {
        "scenario": draw.choice(list(SCENARIOS)),
        "nodes": draw.randint(1, 2),
        "gpus": draw.randint(1, 3),
        "cpus": draw.randint(1, 6),
        "ranks": draw.randint(1, 3),
        "minutes": round(draw.uniform(0.7, 1.6), 2),
        "interval-ms": draw.choice([100, 200, 500, 1000]),
        "steps-per-second": round(draw.uniform(0.5, 5), 2),
        "modules": draw.randint(1, 4),
        "eval-share": draw.choice([0, 0.2, 0.5]),
        "start-epoch": draw.randint(1_500_000_000, 1_800_000_000),
        "seed": seed,
    }
    flags = [flag for flag in ("--tensorflow", "--horovod", "--no-end-marker") if draw.random() < 0.4]
    return [text for key, value in arguments.items() for text in (f"--{key}", str(value))] + flags


JOBS |= {f"random-{seed}": random_job(seed) for seed in range(1, 5)}
QUICK = ("healthy", "dataloader-slow", "tensorflow", "horovod", "random-1")
EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in JOBS]
FRAMES = [
    "system",
    "system-selected",
    "framework",
    "framework-selected",
    "dataloader",
    "dataloader-selected",
    "by-time",
    "by-step",
]
CORRELATIONS = ["by-timesteps", "by-begin-and-end"]
MIDDLE = (1_700_000_040_000_000, 1_700_000_075_500_000)
pytestmark = [pytest.mark.smdebug, pytest.mark.slow]


@pytest.fixture(scope="module")
def folders(request, tmp_path_factory):
    """The jobs of the tests that are selected."""
    base, chosen = tmp_path_factory.mktemp("jobs"), {"one-process"}
    named = [item.callspec.params.get("job") for item in request.session.items if hasattr(item, "callspec")]
    return {name: make_job(base / name, *JOBS[name]) for name in JOBS if name in chosen or name in named}


@pytest.fixture(scope="module")
def old(folders):
    if not OLD_PYTHON.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{OLD_PYTHON} is missing")
        pytest.skip("needs the environment of smdebug 1.0.34 at .envs/smdebug")
    asked = {str(folder): FRAMES + CORRELATIONS for folder in folders.values()} | {str(folders["one-process"]): []}
    asked |= {str(SAMPLES / name): ["system", "framework", "dataloader"] for name in REAL}
    program = Path(__file__).with_name("old_library.py")
    shown = subprocess.run([OLD_PYTHON, program], input=json.dumps(asked), capture_output=True, text=True, check=True)
    answers = json.loads(shown.stdout)
    return {Path(folder).name: answer for folder, answer in answers.items()}


def table(answer):
    return pd.DataFrame(answer["data"], columns=answer["columns"])


def assert_same(new, answer, ignore=()):
    expected = table(answer)
    assert list(new.columns) == list(expected.columns)
    assert len(new) == len(expected)
    assert new.index.equals(pd.RangeIndex(len(new)))
    for column in set(new.columns) - set(ignore):
        assert new[column].tolist() == expected[column].tolist(), column


def assert_close(new, answer):
    expected = table(answer)
    assert list(new.columns) == list(expected.columns)
    assert len(new) == len(expected)
    for column in new.columns:
        if pd.api.types.is_numeric_dtype(expected[column]):
            assert np.allclose(new[column].astype(float), expected[column].astype(float), rtol=1e-9, equal_nan=True), (
                column
            )
        else:
            assert new[column].tolist() == expected[column].tolist(), column


@pytest.mark.parametrize("job", EACH)
def test_frames_equal_those_of_smdebug(job, folders, old):
    pf, answers = PandasFrame(folders[job]), old[job]
    assert_same(pf.get_all_system_metrics(), answers["system"])
    assert_same(pf.get_all_system_metrics(["cpu1", "gpu0"]), answers["system-selected"])
    assert_same(pf.get_all_framework_metrics(), answers["framework"], {"tid"})
    assert_same(pf.get_all_framework_metrics(["Forward", "aten::conv2d"]), answers["framework-selected"], {"tid"})
    assert_same(pf.get_all_dataloader_metrics(), answers["dataloader"])
    assert_same(pf.get_all_dataloader_metrics([".*DataLoaderIter::GetNext"]), answers["dataloader-selected"])
    for new, answer in zip(pf.get_profiler_data_by_time(*MIDDLE), answers["by-time"], strict=True):
        assert_same(new, answer, {"tid"})
    for new, answer in zip(pf.get_profiler_data_by_step(2, 6), answers["by-step"], strict=True):
        assert_same(new, answer, {"tid"})


@pytest.mark.parametrize("name", REAL)
def test_frames_of_real_jobs_equal_those_of_smdebug(name, old):
    pf, answers = PandasFrame(SAMPLES / name), old[name]
    assert_same(pf.get_all_system_metrics(), answers["system"])
    if name == "test_traces":  # its events are of a month before its system metrics: the old library leaves them out
        assert len(pf.get_all_framework_metrics()) == 4
        assert answers["framework"]["data"] == []
    else:
        assert_same(pf.get_all_framework_metrics(), answers["framework"], {"tid"})
        assert_same(pf.get_all_dataloader_metrics(), answers["dataloader"])


@pytest.mark.parametrize("job", EACH)
def test_time_spent_equals_that_of_smdebug(job, folders, old):
    pf = PandasFrame(folders[job])
    times = pf.get_all_system_metrics(["cpu0"])["timestamp"].tolist()[20:60]
    steps = pf.get_all_framework_metrics(["Step:ModeKeys.TRAIN"])
    begins, ends = steps["start_time"].tolist()[3:12], steps["end_time"].tolist()[3:12]
    found = pf.get_framework_metrics_by_timesteps(times)
    assert [pytest.approx(part) for part in old[job]["by-timesteps"]] == list(found)
    found = pf.get_framework_metrics_by_begin_and_end_timesteps(begins, ends)
    if begins:
        assert [pytest.approx(part) for part in old[job]["by-begin-and-end"]] == list(found)
    else:
        assert found == ({}, {})


@pytest.fixture(scope="module")
def one(folders):
    return PandasFrame(folders["one-process"])


@pytest.fixture(scope="module")
def analysis(one):
    names = ["Step:ModeKeys.TRAIN", "Step:ModeKeys.EVAL", "Step:ModeKeys.GLOBAL"]
    return PandasFrameAnalysis(one.get_all_system_metrics(), one.get_all_framework_metrics(names))


def test_job_statistics_equal_those_of_smdebug(analysis, old):
    assert dict(analysis.get_job_statistics()) == pytest.approx(old["one-process"]["job"])


@pytest.mark.parametrize(
    ("question", "ask"),
    [
        ("step-training", lambda asked: asked.get_step_statistics(StatsBy.TRAINING_PHASE)),
        ("step-process", lambda asked: asked.get_step_statistics(StatsBy.PROCESS)),
        ("step-framework", lambda asked: asked.get_step_statistics(StatsBy.FRAMEWORK_METRICS)),
        ("utilization", lambda asked: asked.get_utilization_stats()),
        ("utilization-cpu", lambda asked: asked.get_utilization_stats(Resource.CPU)),
        ("utilization-phase", lambda asked: asked.get_utilization_stats(by=StatsBy.TRAINING_PHASE)),
        ("device", lambda asked: asked.get_device_usage_stats().rename(columns=str)),
        (
            "device-ranges",
            lambda asked: asked.get_device_usage_stats(Resource.GPU, [(0, 30), (30, 100)]).rename(columns=str),
        ),
        ("intervals", lambda asked: asked.get_training_phase_intervals()),
        ("intervals-train", lambda asked: asked.get_training_phase_intervals("Step:ModeKeys.TRAIN")),
    ],
)
def test_statistics_equal_those_of_smdebug(question, ask, analysis, old):
    assert_close(ask(analysis), old["one-process"][question])


@pytest.mark.parametrize(
    ("question", "method"),
    [
        ("loader-init", "analyze_dataloaderIter_initialization"),
        ("loader-workers", "analyze_dataloaderWorkers"),
        ("loader-getnext", "analyze_dataloader_getnext"),
        ("loader-batchtime", "analyze_batchtime"),
    ],
)
def test_dataloader_analysis_equals_that_of_smdebug(question, method, one, old):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        found = getattr(PT_dataloader_analysis(one), method)()
    answer = old["one-process"][question]
    subject = {"analyze_dataloaderWorkers": "worker processes", "analyze_dataloader_getnext": "GetNext calls"}
    expected = answer["printed"]
    if method in subject:  # smdebug names something else there
        expected = re.sub("for (iterator initialization|worker processes) ", f"for {subject[method]} ", expected)
    assert out.getvalue() == expected
    if answer["table"] is None:
        assert found is None
    else:
        assert_same(found.astype(str), answer["table"])
