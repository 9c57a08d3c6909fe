"""Phases by CUDA events on a real device, in a real training; skipped without one."""

import json
import statistics
import subprocess

import pytest

from tests.support.hook import LAUNCH, config, environment
from tests.support.profiles import events

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="did not run: there is no CUDA device here")

SCRIPT = """
import json, sys, time
import torch
from sm_profiler.hook import get_hook
what = sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
run = torch.compile(model, mode="reduce-overhead") if what == "compiled" else model
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
x = torch.randn(4096, 2048, device="cuda")
if what == "graph":
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        model(x).square().mean().backward()
        optimizer.step()
    for _ in range(5):
        graph.replay()
for step in range(30):
    optimizer.zero_grad()
    run(x).square().mean().backward()
    optimizer.step()
torch.cuda.synchronize()
for step in range(4):  # what was under way has come back by now
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    torch.cuda.synchronize()
hook = get_hook()
print(json.dumps({"failures": hook.session.guard.failures, "notes": hook.session.notes,
    "digest": [float(p.double().sum()) for p in model.parameters()]}))
"""
GPU_PHASES = {"sm_profiler/Forward-gpu", "sm_profiler/Backward-gpu", "sm_profiler/Optimizer-gpu"}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["plain", "graph", "compiled"])
def test_a_training_on_a_device(tmp_path, what):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [*LAUNCH[:-1], script, what],
        capture_output=True, text=True, check=False, timeout=300,
        env=environment(SM_PROFILER_CONFIG=config(tmp_path / "profile")),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["failures"] == {}
    rows = events(tmp_path / "profile")
    found = {phase: [row["dur"] for row in rows if row["phase"] == phase] for phase in GPU_PHASES}
    assert all(len(spans) >= 4 for spans in found.values()), {phase: len(spans) for phase, spans in found.items()}
    # eight products of 4096 x 2048 x 2048 forward, twice as many back
    assert (
        statistics.median(found["sm_profiler/Backward-gpu"]) > statistics.median(found["sm_profiler/Forward-gpu"]) > 100
    )
    memory = [row["args"] for row in rows if row["phase"] == "sm_profiler/cuda_memory"]
    assert memory[-1]["reserved_bytes"] >= memory[-1]["allocated_bytes"] > 100_000_000
    assert memory[-1]["peak_bytes"] >= memory[-1]["allocated_bytes"]
