"""Fuzzing of the notebook API: damaged files and hostile names end in a result or a one-line error.

`make test` tries 300 inputs; `SM_PROFILER_FUZZ` sets the number, `SM_PROFILER_FUZZ_SEED` the first seed. Each input runs in a
worker with limited memory and time; a failure names its seed: `python tests/fuzz/analysis_worker.py BASE SEED 1` repeats it.
"""

import cProfile
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyinstrument import Profiler
from pyinstrument.renderers import JSONRenderer

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("analysis_worker.py")
PARTS = 3
COUNT = int(os.environ.get("SM_PROFILER_FUZZ", "300")) // PARTS
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
        command = [sys.executable, ROOT / "tests/tools/make_job.py", "--out", folder / name, "--minutes", "0.3"]
        command += ["--steps-per-second", "2", "--cpus", "2", *arguments]
        subprocess.run(command, check=True, capture_output=True)
        python_statistics(folder / name)
    return folder


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
