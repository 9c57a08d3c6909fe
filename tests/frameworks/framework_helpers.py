"""Helpers that the tests of several frameworks share."""

import json
import os
from pathlib import Path

# an environment's name below .envs, or the path of another
ENVIRONMENT = os.environ.get("SM_PROFILER_FRAMEWORKS_ENV", "frameworks")
PYTHON = Path(__file__).parents[2] / ".envs" / ENVIRONMENT / "bin" / "python"


def events(folder):
    """Return the recorded events with their phase and their start in seconds since the epoch."""
    found = []
    for file in sorted(folder.glob("framework/pevents/*/*_pythontimeline.json")):
        records = json.loads(file.read_text())
        described = [(one["pid"], one["args"]) for one in records if one["ph"] == "M"]
        phases = {pid: args["name"] for pid, args in described if "name" in args}
        (base,) = {
            args["start_time_since_epoch_in_micros"]
            for _, args in described
            if "start_time_since_epoch_in_micros" in args
        }
        found += [
            {**one, "phase": phases[one["pid"]], "start": (base + one["ts"]) / 1e6}
            for one in records
            if one["ph"] != "M"
        ]
    return found
