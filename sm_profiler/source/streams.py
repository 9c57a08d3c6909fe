"""Events that begin in one file and end in a later one."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from sm_profiler.formats.outcome import READ, REPAIRED, Outcome
from sm_profiler.formats.trace_rows import Key, OpenEvent, TraceRows, join_loose


class Streams:
    """What is open in each stream of files (a node's files of one kind)."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], dict[Key, list[OpenEvent]]] = {}

    def push(self, node: str, kind: str, event: OpenEvent) -> None:
        """Note an event as open."""
        self._open.setdefault((node, kind), {}).setdefault(event.key, []).append(event)

    def left(self) -> Iterator[tuple[str, str, OpenEvent]]:
        """All that is open: node, kind, event."""
        for (node, kind), stacks in self._open.items():
            for stack in stacks.values():
                for event in stack:
                    yield node, kind, event

    def take(self, rows: TraceRows, outcome: Outcome) -> tuple[list[TraceRows], Outcome]:
        """The rows of the stream's next file: those joined with earlier files first; and its outcome, ends counted."""
        if not (rows.loose_ends or rows.open_events):
            return [rows], outcome
        stacks = self._open.setdefault((rows.node, rows.kind), {})
        joined, backwards, unmatched = join_loose(rows, stacks)
        reasons = [outcome.reason] if outcome.reason else []
        if unmatched:
            reasons.append(f"ends without a begin: {unmatched}")
        if backwards:
            reasons.append(f"ends before their begin: {len(backwards)}")
        lost = unmatched + 2 * len(backwards)
        if lost:
            status = REPAIRED if outcome.status == READ else outcome.status
            outcome = attrs.evolve(outcome, status=status, lost=outcome.lost + lost, reason="; ".join(reasons))
        return ([joined] if joined else []) + [rows], outcome
