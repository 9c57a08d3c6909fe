"""A training with the hook in its own process, and what it recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.profiles import events

ROOT = Path(__file__).parents[2]
PHASES = {
    "train": "Step:ModeKeys.TRAIN",
    "eval": "Step:ModeKeys.EVAL",
    "forward": "Forward",
    "backward": "Backward(post-forward)",
    "optimizer": "Optimizer",
    "wait": "DataLoaderWait",
}
SCRIPT = ROOT / "tests/hook/small_training.py"
LAUNCH = [sys.executable, "-m", "sm_profiler.hook.launch", SCRIPT]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SM_PROFILER", "SMPROFILER"))}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **more}


def config(folder: Path, **parameters: str) -> str:
    return json.dumps({"ProfilingParameters": {"LocalPath": str(folder), **parameters}})


def train(what: str = "", *, profile: str | None = None, **options) -> subprocess.CompletedProcess:
    more = {"SM_PROFILER_CONFIG": profile} if profile else {}
    return subprocess.run(
        [*LAUNCH, what], capture_output=True, text=True, check=False, timeout=120, env=environment(**more), **options
    )


def steps(folder: Path) -> list[dict]:
    return [event for event in events(folder) if event["phase"] == "Step:ModeKeys.TRAIN"]
