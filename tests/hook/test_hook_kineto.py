"""Kineto's log lines: none for the hook's own profiler, the usual ones for a profiler of the script."""

import json
import subprocess
import sys

import pytest
import torch

from sm_profiler.hook.pytorch.detailed import quiet, severity_level
from tests.support.hook import environment

PROGRAM = """
import sys
import torch
from sm_profiler.hook import get_hook
hook = get_hook()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def steps(count):
    for _ in range(count):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

if sys.argv[1] == "before":
    with torch.profiler.profile():
        steps(1)
steps(6)
if sys.argv[1] == "after":
    with torch.profiler.profile():
        steps(1)
assert hook is None or (hook.session.schedule.windows["detailed"].ended and not hook.session.guard.failures)
"""


def lines(when: str, **variables: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, when], capture_output=True, text=True, check=True, timeout=100,
        env=environment(**variables),
    )  # fmt: skip
    assert done.stdout == ""
    return [line.rpartition("]")[2] for line in done.stderr.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("when", ["never", "before", "after"])
def test_the_hooks_profiler_prints_nothing_and_the_scripts_prints_as_ever(tmp_path, when):
    window = '{"StartStep": 2, "NumSteps": 2, }'
    parameters = {"LocalPath": str(tmp_path), "DetailedProfilingConfig": window}
    hooked = lines(when, SM_PROFILER_CONFIG=json.dumps({"ProfilingParameters": parameters}))
    assert hooked == lines(when)
    assert list(tmp_path.rglob("*.json.gz"))


def test_the_level_is_restored_after_an_error():
    level = severity_level(torch)
    if level is None:
        pytest.skip("did not run: this build of torch does not export Kineto's level")
    before = level.value, torch.autograd.profiler.profile._prepare_trace
    with pytest.raises(ZeroDivisionError), quiet(torch):
        raise ZeroDivisionError
    assert (level.value, torch.autograd.profiler.profile._prepare_trace) == before
