"""A profile with each window open, and its events."""

import json
from pathlib import Path
from typing import Any

WINDOW = '{"StartStep": 2, "NumSteps": 3, "MetricsRegex": ".*"}'
WINDOWS = {
    "DataloaderProfilingConfig": WINDOW,
    "DetailedProfilingConfig": WINDOW,
    "PythonProfilingConfig": '{"StartStep": 6, "NumSteps": 2, "ProfilerName": "cprofile", "cProfileTimer": "total_time"}',
}


def recorded(profile: Path, rank: int | None = None) -> list[dict[str, Any]]:
    """Return all events, or those of a rank, with times since the epoch in seconds."""
    found = []
    for file in sorted(profile.glob(f"framework/pevents/*/*_{'*' if rank is None else rank}-algo-1_*.json")):
        records = json.loads(file.read_text(encoding="utf-8"))
        base = next(r["args"]["start_time_since_epoch_in_micros"] for r in records if r["name"] == "process_name")
        phases = {r["pid"]: r["args"]["name"] for r in records if r["name"] == "process_name" and "name" in r["args"]}
        for record in records:
            if record["ph"] == "X":
                first = (record["ts"] + base) / 1e6
                last = first + record["dur"] / 1e6
                found.append({"phase": phases[record["pid"]], "name": record["name"], "start": first, "end": last})
    return found


def events(folder):
    """Return the recorded events with their phase and their start in seconds since the epoch."""
    found = []
    for file in sorted(folder.glob("framework/pevents/*/*_pythontimeline.json")):
        records = json.loads(file.read_text())
        described = [(record["pid"], record["args"]) for record in records if record["ph"] == "M"]
        phases = {pid: args["name"] for pid, args in described if "name" in args}
        (base,) = {
            args["start_time_since_epoch_in_micros"]
            for _, args in described
            if "start_time_since_epoch_in_micros" in args
        }
        found += [
            {**record, "phase": phases[record["pid"]], "start": (base + record["ts"]) / 1e6}
            for record in records
            if record["ph"] != "M"
        ]
    return found
