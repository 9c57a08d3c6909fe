"""Real trainings with transformers, accelerate, Lightning, FSDP, DDP, torch.compile and mixed precision: the hook's records
agree with the scripts' own counts, and results are identical to the bit with the hook off and on.

The scripts contain nothing about a hook; all scenarios of a group run in one process, as in a notebook.
"""

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.support.hook import PHASES, environment
from tests.support.profiles import WINDOWS, recorded

SCRIPT = Path(__file__).with_name("framework_loops.py")
TRANSFORMERS = ["transformers_trainer", "transformers_resumed", "transformers_workers"]
ACCELERATE = ["accelerate_accumulation", "accelerate_bf16"]
LIGHTNING = ["lightning_trainer", "lightning_without_length", "lightning_manual"]
PLAIN = ["scaled", "averaged", "lbfgs_without_loader", "alternating"]
BY_HAND = ["by_hand"], ["gradients_as_functions"]  # each in a process of its own: optimizers change what a step is
COMPILED = ["compiled_inductor", "compiled_model", "compiled_step"]
# FSDP 2 works on the CPU from PyTorch 2.6 on.
RANKS = [*(["sharded"] if hasattr(torch, "accelerator") else []), "fully_sharded", "distributed"]


def start(folder: Path, scenarios: list[str], profile: Path | None, **more: str) -> subprocess.Popen:
    """Start a process; without `profile` the hook is off."""
    folder.mkdir(exist_ok=True)
    if profile is not None:
        more["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": {"LocalPath": str(profile), **WINDOWS}})
    command = [sys.executable, "-m", "sm_profiler.hook.launch", SCRIPT, folder, *scenarios]
    log = (folder / f"log-{more.get('RANK', 0)}").open("w", encoding="utf-8")  # an unread pipe would fill
    with log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment(TRAINING_JOB_NAME="loops", **more)
        )


def counts_of(process: subprocess.Popen, folder: Path, rank: int = 0, seconds: float = 240) -> dict[str, dict]:
    """Return what the process printed for each scenario."""
    try:
        code = process.wait(timeout=seconds)
    finally:
        process.kill()
        process.wait()
    log = (folder / f"log-{rank}").read_text(encoding="utf-8")
    assert code == 0, log[-4000:]
    assert "sm-profiler" not in log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith('{"scenario"')]
    return {line["scenario"]: line for line in lines}


def compare(off: dict[str, dict], on: dict[str, dict], events: list[dict]) -> None:
    """Same results, everything recorded once, phases inside steps that do not overlap."""
    assert list(off) == list(on)
    for name, said in on.items():
        assert said["digest"] == off[name]["digest"], name
        mine = [event for event in events if said["begin"] <= event["start"] <= said["end"]]
        seen = Counter(event["phase"] for event in mine)
        assert {key: seen[phase] for key, phase in PHASES.items()} == {key: off[name][key] for key in PHASES}, name
        steps = sorted((event["start"], event["end"]) for event in mine if event["phase"].startswith("Step:"))
        assert all(before[1] <= after[0] + 2e-6 for before, after in itertools.pairwise(steps)), name
        for event in mine:
            if event["phase"] in {"Forward", "Backward(post-forward)", "Optimizer"}:
                start, end = event["start"] + 2e-6, event["end"] - 2e-6
                assert any(first <= start and end <= last for first, last in steps), (name, event)


@pytest.mark.first(1)  # the matrix of test_hook_training.py has most of PLAIN, too
@pytest.mark.slow
@pytest.mark.parametrize(
    "scenarios",
    [LIGHTNING, PLAIN, TRANSFORMERS[:1], *BY_HAND, [*TRANSFORMERS[1:], *ACCELERATE, "transformers_compiled"], COMPILED],
    ids=lambda names: names[0],
)
def test_loops_are_recorded_as_they_are_and_not_changed(tmp_path, scenarios):
    if scenarios is COMPILED:  # the second process finds what the first has compiled
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        off = counts_of(start(tmp_path / "off", scenarios, None, **cache), tmp_path / "off")
        on = counts_of(start(tmp_path / "on", scenarios, tmp_path / "profile", **cache), tmp_path / "on")
    else:
        both = start(tmp_path / "off", scenarios, None), start(tmp_path / "on", scenarios, tmp_path / "profile")
        off, on = (counts_of(process, tmp_path / name) for process, name in zip(both, ("off", "on"), strict=True))
    assert list(on) == scenarios
    events = recorded(tmp_path / "profile")
    compare(off, on, events)
    assert any(event["phase"] == "cpu_functions" for event in events)  # the windows were open meanwhile
    assert len(list((tmp_path / "profile").rglob("*cprofile*/**/*stats"))) > 0


def two_ranks(folder: Path, profile: Path | None) -> list[dict[str, dict]]:
    """Return what each of two ranks printed."""
    ranks = [start(folder, RANKS, profile, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    try:
        return [counts_of(process, folder, rank, seconds=120) for rank, process in enumerate(ranks)]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


@pytest.mark.long
@pytest.mark.slow
def test_sharded_and_distributed_trainings_rank_by_rank(tmp_path):
    try:
        off = two_ranks(tmp_path / "off", None)
    except subprocess.TimeoutExpired:  # gloo's ranks once missed each other, with no hook in either
        off = two_ranks(tmp_path / "again", None)
    on = two_ranks(tmp_path / "on", tmp_path / "profile")
    for rank in (0, 1):
        events = recorded(tmp_path / "profile", rank)
        compare(off[rank], on[rank], events)
        assert {event["name"] for event in events if event["phase"] == "Forward"} == {"Counted"}  # not its wrappers
