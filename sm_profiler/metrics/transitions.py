"""Secondary states of a training job over time, as its description lists them, and its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

MIN_SECONDS, MAX_SECONDS = 1e9, 1e11  # since the epoch; times before 2001 and after 5138 are damage
TRAINING = "Training"
TAKEN_AWAY = frozenset({"Interrupted", "Restarting"})  # what ends an attempt; another may follow


@attrs.frozen
class Transition:
    """A secondary status, when it began, and when it ended; None if that is unknown."""

    status: str
    start: float | None
    end: float | None


def transitions(description: Mapping[str, Any]) -> list[Transition]:
    """Return the secondary states of a job; damaged rows are left out."""
    rows = description.get("SecondaryStatusTransitions")
    return [
        Transition(str(row.get("Status")), _seconds(row.get("StartTime")), _seconds(row.get("EndTime")))
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, Mapping)
    ]


def described_interruptions(description: Mapping[str, Any]) -> int:
    """Return how often a job was interrupted."""
    return sum(one.status in TAKEN_AWAY for one in transitions(description))


def ended_attempts(description: Mapping[str, Any]) -> list[tuple[float, bool]]:
    """Return when each attempt began to train, and whether it has ended."""
    found: list[tuple[float, bool]] = []
    is_new = True
    for one in transitions(description):
        if one.status in TAKEN_AWAY:
            is_new = True
        elif one.status == TRAINING and one.start is not None:
            if is_new:
                found.append((one.start, one.end is not None))
            else:  # a job that was updated trains again
                found[-1] = found[-1][0], one.end is not None
            is_new = False
    return found


def _seconds(value: object) -> float | None:
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if isinstance(value, (int, float)) and MIN_SECONDS < value < MAX_SECONDS else None
