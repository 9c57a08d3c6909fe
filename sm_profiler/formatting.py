"""Numbers and names as text: durations, shares, sizes, dates; names cleaned, shortened, in natural order; JSON."""

from __future__ import annotations

import json
import math
import re
import time
from typing import Any

_UNIT = re.compile(r"(\d) (%|µs|ms|s|min|h|kB|MB|GB)(?!\w)")


def percent(share: float) -> str:
    """Format a share for a sentence: `62 %`, `0.4 %`."""
    shown = 100 * share
    return f"{shown:.0f} %" if shown >= 1 or shown == 0 else f"{shown:.1f} %"


def percent_of_cost(share: float) -> str:
    """Format a small share with two digits, `0.68 %`, and any other as `percent` does."""
    return f"{100 * share:.2g} %" if share < 0.1 else percent(share)


def duration(seconds: float) -> str:
    """Format a time for a sentence: `1.2 ms`, `3.4 s`, `12 min`, `5.1 h`."""
    if abs(seconds) < 0.5e-9:  # clocks count nanoseconds; what is left of a difference is none
        return "0 µs"
    for limit, unit, scale in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3), (120.0, "s", 1.0), (7200.0, "min", 1 / 60)):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds / 3600:.3g} h" if seconds < 3.6e6 else f"{seconds / 3600:,.0f} h"


def size(count: float) -> str:
    """Format bytes for a sentence: `1.2 GB`."""
    for limit, unit, scale in ((1e6, "kB", 1e3), (1e9, "MB", 1e6)):
        if abs(count) < limit:
            return f"{count / scale:.3g} {unit}"
    return f"{count / 1e9:.3g} GB"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: `1 core`, `4 cores`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def unbroken(text: str) -> str:
    """Keep numbers and their units on one line."""
    return _UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", text)


def in_unit(value: float | str | None, unit: str) -> str:
    """Format a value of an `Evidence` in its unit."""
    if value is None or isinstance(value, str):
        return value or ""
    if unit == "share":
        return percent(float(value))
    if unit == "percent":
        return f"{value:.1f} %".replace(".0 %", " %")
    if unit in ("s", "ms"):
        return duration(float(value) / (1e3 if unit == "ms" else 1))
    if unit.startswith("bytes"):
        return size(float(value)) + unit.removeprefix("bytes")
    return f"{value:,.0f}" if float(value) == int(value) else f"{value:,.1f}"


def strict_json(value: Any, **how: Any) -> str:
    """Return a value in JSON, with null for NaN and infinite numbers, which JSON does not have.

    Args:
        value: what `json.dumps` accepts.
        how: further arguments of `json.dumps`.
    """
    try:
        return json.dumps(value, allow_nan=False, **how)
    except ValueError:
        return json.dumps(json.loads(json.dumps(value, **how), parse_constant=lambda _: None), allow_nan=False, **how)


def number(value: Any) -> float:
    """Return a finite number; 0 for anything else."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return found if math.isfinite(found) else 0.0


def decimal(value: Any) -> str:
    """Format a number for a table, with at most two decimals."""
    found = number(value)
    return f"{found:,.2f}".rstrip("0").rstrip(".") if found else "0"


def milliseconds(value: Any) -> str:
    """Format seconds for a table, in ms below a second."""
    found = number(value)
    return f"{found * 1e3:.4g} ms" if found < 1 else f"{found:.4g} s"


def utc(seconds: float) -> str:
    """Format a time since the epoch."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (OverflowError, OSError, ValueError):
        return "unknown"


def natural_key(text: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key that puts algo-2 before algo-10."""
    return tuple(
        (not part.isdecimal(), int(part[:18]) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", text)
    )


# XML allows no control characters but tab, newline and carriage return
_REMOVED = {code: None for code in (*range(32), 127) if code not in (9, 10, 13)} | {0xFFFE: None, 0xFFFF: None}
# with these, a name would be shown in another order than it has: fdp.exe as exe.pdf
_REMOVED |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))


def clean(text: str) -> str:
    """Remove the characters that XML and HTML forbid, and those that reverse the order of others."""
    return text.translate(_REMOVED).encode("utf-8", "replace").decode("utf-8")


def shorten(text: str, limit: int = 60) -> str:
    """Replace the middle of a long text by an ellipsis."""
    text = clean(text)
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-(limit // 2 - 1) :]}"


SENTENCE = re.compile(r"(?<=[.!?]) +(?=[A-Z])")


def first_sentences(text: str, limit: int) -> str:
    """Return the sentences that a text begins with and that fit; the first clauses of its first one if that is too long."""
    text = clean(text)
    if len(text) <= limit:
        return text
    whole = ""
    for sentence in SENTENCE.split(text):
        if len(whole) + len(sentence) + 1 > limit:
            break
        whole = f"{whole} {sentence}".lstrip()
    if whole:
        return whole
    clauses, end = text[: limit - 1], text[: limit - 1].rfind("; ")
    return f"{clauses[:end]}." if end > 0 else f"{clauses.rpartition(' ')[0] or clauses}…"


# Python's own files, installed packages and the profiler. Kineto shortens a path to what follows its folder in sys.path,
# so that a library's may begin with its name; "~" is a built-in function of cProfile's.
_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib(?:64)?/python3[0-9.]*|sm_profiler/hook)/"
    r"|^(?:torch|importlib)/|^runpy\.py|^<(?!ipython-input-|stdin>)|^~"
)


def is_library(file: str) -> bool:
    """Return whether a file of recorded code belongs to Python, an installed package or the profiler."""
    return _LIBRARY.search(file) is not None
