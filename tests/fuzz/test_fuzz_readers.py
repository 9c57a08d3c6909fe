"""Fuzzing of the readers: damaged traces, system metrics, columnar copies, and listings with arbitrary keys.

`make test` tries 300 inputs; `SM_PROFILER_FUZZ` sets the number, `SM_PROFILER_FUZZ_SEED` the first seed. The inputs are
mutations of real files and run in a process with limited memory and CPU time per input. A failure names its seed;
`python tests/fuzz/readers_worker.py FOLDER SEED 1` repeats it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm_profiler.formats.system_reader import read_system
from sm_profiler.formats.trace_reader import read_trace
from tests.support.jobs import make_job

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("readers_worker.py")
COUNT = int(os.environ.get("SM_PROFILER_FUZZ", "300"))
SEED = int(os.environ.get("SM_PROFILER_FUZZ_SEED", "0"))
PARTS = 2
STRUCTURED = settings(max_examples=max(COUNT // 8, 10), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Real files to mutate, and a small job to copy."""
    folder = tmp_path_factory.mktemp("fuzz")
    for path in (ROOT / "tests/data/formats").rglob("*"):
        if path.is_file() and path.suffix in {".json", ".gz", ".corrupt"} and path.stat().st_size < 30_000:
            target = folder / "corpus" / path.relative_to(ROOT / "tests/data/formats")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    make_job(folder / "job", "--minutes", "1", "--gpus", "1", "--horovod")
    return folder


@pytest.mark.first(1)
@pytest.mark.timeout(20_000)
@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_input_is_read_or_refused_within_limits(part, folder):
    first, end, failures = SEED + part * COUNT // PARTS, SEED + (part + 1) * COUNT // PARTS, []
    while first < end:
        command = [sys.executable, str(WORKER), str(folder), str(first), str(end - first)]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        last = done.stdout.splitlines()[-1:] or ["no input"]
        if last == ["end"] and done.returncode == 0:
            break
        failures.append(f"seed {last[0]}: exit code {done.returncode}: {done.stderr[-1500:]}")
        assert len(failures) < 5, "\n".join(failures)
        first = int(last[0].split()[0]) + 1
    assert not failures, "\n".join(failures)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([2**63, 2**64, -(2**63) - 1, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
TRACE_KEYS = ("ph", "name", "pid", "tid", "ts", "dur", "args", "s")
PHASES = st.sampled_from(["X", "M", "B", "E", "i", "I", "C", "s", ""])
TRACE_RECORDS = st.lists(
    st.fixed_dictionaries({}, optional={"ph": PHASES | VALUES, **dict.fromkeys(TRACE_KEYS[1:], VALUES)}), max_size=6
)
SYSTEM_KEYS = ("Type", "Name", "Dimension", "Value", "NodeId", "Timestamp")
SYSTEM_RECORDS = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(SYSTEM_KEYS, VALUES)), max_size=6)


@STRUCTURED
@given(TRACE_RECORDS | st.fixed_dictionaries({"traceEvents": TRACE_RECORDS}, optional={"baseTimeNanoseconds": VALUES}))
def test_traces_of_arbitrary_values(document):
    sys.path.insert(0, str(WORKER.parent))
    from readers_worker import check

    check(*read_trace(json.dumps(document).encode(), "algo-1-0", "k"))


@STRUCTURED
@given(SYSTEM_RECORDS)
def test_system_metrics_of_arbitrary_values(records):
    sys.path.insert(0, str(WORKER.parent))
    from readers_worker import check

    check(*read_system("\n".join(map(json.dumps, records)).encode(), "algo-1"))
