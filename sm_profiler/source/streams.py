"""Events that begin in one file and end in a later one."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from sm_profiler.formats.outcome import READ, REPAIRED, Outcome
from sm_profiler.formats.trace_records import MAX_UNJOINED
from sm_profiler.formats.trace_rows import Key, OpenEvent, TraceRows, join_loose


class Streams:
    """Open events of each stream of files (a node's files of one kind).

    Attributes:
        failed: ends had no begin, or begins were dropped.
    """

    def __init__(self) -> None:
        self.failed = False
        self._open: dict[tuple[str, str], dict[Key, list[OpenEvent]]] = {}

    def push(self, node: str, kind: str, event: OpenEvent) -> None:
        """Add an open event."""
        self._open.setdefault((node, kind), {}).setdefault(event.key, []).append(event)

    def left(self) -> Iterator[tuple[str, str, OpenEvent]]:
        """Yield all open events, each with node and kind."""
        for (node, kind), stacks in self._open.items():
            for stack in stacks.values():
                for event in stack:
                    yield node, kind, event

    def take(self, rows: TraceRows, outcome: Outcome) -> tuple[list[TraceRows], Outcome]:
        """Return the rows of the stream's next file, events joined with earlier files first, and its outcome."""
        if not (rows.loose_ends or rows.open_events):
            return [rows], outcome
        stacks = self._open.setdefault((rows.node, rows.kind), {})
        joined, backwards, unmatched = join_loose(rows, stacks)
        reasons = [outcome.reason] if outcome.reason else []
        if unmatched:
            reasons.append(f"ends without a begin: {unmatched}")
        if backwards:
            reasons.append(f"ends before their begin: {len(backwards)}")
        dropped = _forget_oldest(stacks) if rows.open_events else 0
        if dropped:
            reasons.append(f"begins without an end: {dropped}")
        lost = unmatched + 2 * len(backwards) + dropped
        if lost:
            self.failed = True
            status = REPAIRED if outcome.status == READ else outcome.status
            outcome = attrs.evolve(outcome, status=status, lost=outcome.lost + lost, reason="; ".join(reasons))
        return ([joined] if joined else []) + [rows], outcome


def _forget_oldest(stacks: dict[Key, list[OpenEvent]]) -> int:
    """Drop the oldest open events beyond MAX_UNJOINED, and return their number."""
    for key in [key for key, stack in stacks.items() if not stack]:
        del stacks[key]
    count = dropped = sum(map(len, stacks.values()))
    while count > MAX_UNJOINED:
        oldest = next(iter(stacks))
        count -= len(stacks.pop(oldest))
    return dropped - count
