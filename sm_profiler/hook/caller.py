"""The line of the user's code that led to a call."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import FrameType

# Code below these folders is a library's: Python's own, installed packages, and the profiler.
_LIBRARIES = tuple(
    {f"{path}/" for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
    | {f"{Path(__file__).resolve().parents[1]}/", "<frozen "}
)
MAX_DEPTH = 100  # frames searched


def user_line(frame: FrameType | None = None) -> dict[str, str | int]:
    """Return `file`, `line` and `function` of the innermost frame that is not a library's; empty if there is none.

    Args:
        frame: frame to start from; by default the caller's.
    """
    frame = frame or sys._getframe(1)  # noqa: SLF001 - inspect.currentframe() is the same with a call more
    for _ in range(MAX_DEPTH):
        if frame is None:
            break
        code = frame.f_code
        if not is_library(code.co_filename):
            return {"file": code.co_filename, "line": frame.f_lineno, "function": code.co_name}
        frame = frame.f_back
    return {}


def is_library(path: str) -> bool:
    """Return whether a file of code belongs to a library instead of the user's program."""
    return path.startswith(_LIBRARIES) or "/site-packages/" in path or "/dist-packages/" in path
