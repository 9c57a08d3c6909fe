"""Run a script with and without the hook, and compare."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.profiles import WINDOWS

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
PYTHON = ROOT / ".envs" / "libraries" / "bin" / "python"
HELPERS = {"counted"}
NAMES = tuple(sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem not in HELPERS))


def start(
    name: str, folder: Path, profile: Path | None = None, windows: Mapping[str, str] = WINDOWS
) -> subprocess.Popen:
    """Start a script in a folder of its own; without `profile` the hook is off."""
    folder.mkdir(parents=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SM_PROFILER", "SMPROFILER"))}
    kept |= {
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if profile is not None:
        kept["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": {"LocalPath": str(profile), **windows}})
    with (folder / "log").open("w", encoding="utf-8") as log:
        return subprocess.Popen(
            [PYTHON, "-m", "sm_profiler.hook.launch", SCRIPTS / f"{name}.py"],
            cwd=folder, env=kept, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip


def counted(process: subprocess.Popen, folder: Path, seconds: float = 280) -> dict[str, Any]:
    """Return what the script counted itself."""
    try:
        code = process.wait(timeout=seconds)
    finally:
        process.kill()
        process.wait()
    log = (folder / "log").read_text(encoding="utf-8")
    assert code == 0, log[-4000:]
    assert "sm-profiler" not in log, log[-4000:]
    return next(json.loads(line.removeprefix("COUNTED ")) for line in log.splitlines() if line.startswith("COUNTED "))


def steps_of(events: list[dict[str, Any]]) -> Counter[str]:
    """Return how many events of each phase there are."""
    return Counter(event["phase"] for event in events)


def stray(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return steps that overlap the one before, and phases outside any step."""
    steps = sorted((event["start"], event["end"]) for event in events if event["phase"].startswith("Step:"))
    overlapping = [{"steps": pair} for pair in itertools.pairwise(steps) if pair[0][1] > pair[1][0] + 2e-6]
    outside = [
        event
        for event in events
        if event["phase"] in {"Forward", "Backward(post-forward)", "Optimizer"}
        and not any(first <= event["start"] + 2e-6 and event["end"] - 2e-6 <= last for first, last in steps)
    ]
    return overlapping + outside
