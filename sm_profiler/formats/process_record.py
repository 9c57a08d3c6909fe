"""Validation of the `sm_profiler/process` record in a process's trace files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NUMBERS = frozenset({
    "batch_size", "clock_error_us", "clock_jumps", "clock_offset_us", "dropped", "loaded_us", "memory_total", "phases_every", "pid", "rank",
    "samples_per_step", "start_us", "end_code", "end_step", "end_us", "oom_kills",
})  # fmt: skip
TEXTS = frozenset({"end", "end_error", "framework", "host", "instance_type", "node", "version"})
COLLECTORS, IDENTITY = "collectors", "identity"
_LARGEST = 2**63


def validated(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the expected type, so that readers need no checks of their own.

    Unknown arguments, which later versions may add, are kept if they are plain values.
    """
    return {name: value for name, given in args.items() if (value := _value(name, given)) is not None or given is None}


def _value(name: str, given: Any) -> Any:
    if name in {COLLECTORS, IDENTITY}:
        return (
            {key: state for key, state in given.items() if isinstance(state, str)} if isinstance(given, dict) else None
        )
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool) and -_LARGEST < given < _LARGEST
    if name in NUMBERS:
        return given if is_number else None
    if name in TEXTS:
        return given if isinstance(given, str) else None
    return given if is_number or isinstance(given, (str, bool)) else None
