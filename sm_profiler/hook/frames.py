"""Frames: the line of the user's code that led to a call, and the stacks of other threads, each as it is at one moment.

Cells of a notebook are named as their author sees them.

Python switches threads between any two instructions of its code. A thread whose stack was followed by `frame.f_back`, one
frame after the other, might run in the meantime; CPython 3.11 then follows pointers to frames that are gone, and the
process dies of a segmentation fault. So a stack is read within one call of C code, in which no other thread runs. A
collection may begin within that call and run callbacks in Python, so the garbage collector is disabled for the call.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate, chain, compress, islice, repeat, starmap, takewhile
from operator import attrgetter, is_not, methodcaller
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, TypeVar

from sm_profiler.formats.event_names import CELL

Result = TypeVar("Result")

# Code below these folders is a library's: Python's own, installed packages, and the profiler.
_LIBRARIES = tuple(
    {f"{path}/" for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
    | {f"{Path(__file__).resolve().parents[1]}/", "<frozen "}
)
MAX_DEPTH = 100  # frames searched
MAX_PATHS, MAX_ENTRIES = 64, 10_000  # folders of sys.path that are looked into, and entries of each
INSTALLED = ".dist-info"


def user_line(frame: FrameType | None = None) -> dict[str, Any]:
    """Return `file`, `line` and `function` of the innermost frame that is not a library's; empty if there is none.

    Args:
        frame: frame to start from; by default the caller's.
    """
    frame = frame or sys._getframe(1)  # inspect.currentframe() is the same with a call more
    for _ in range(MAX_DEPTH):
        if frame is None:
            break
        code = frame.f_code
        if not is_library(code.co_filename):
            return {"file": shown(code.co_filename), "line": frame.f_lineno, "function": code.co_name}
        frame = frame.f_back
    return {}


def definition(code: CodeType | None) -> dict[str, Any]:
    """Return `file`, `line` and `function` of a function's code; empty if it is a library's."""
    if code is None or is_library(code.co_filename):
        return {}
    return {"file": code.co_filename, "line": code.co_firstlineno, "function": code.co_name}


def code_of(called: Any) -> CodeType | None:
    """Return the code that a call of an object runs, below partial() and decorators; None if that is no Python function."""
    while isinstance(called, functools.partial):
        called = called.func
    if not isinstance(called, (FunctionType, MethodType)):
        called = type(called).__call__
    return getattr(inspect.unwrap(called), "__code__", None)


def is_library(path: str) -> bool:
    """Return whether a file of code belongs to a library instead of the user's program."""
    return (
        path.startswith(_LIBRARIES)
        or "/site-packages/" in path
        or "/dist-packages/" in path
        or path.startswith(_targets())
    )


@functools.cache
def _targets() -> tuple[str, ...]:
    """Return the folders that `pip install --target` filled, as far as Python imports from them.

    The script's folder is not among them, even if packages are installed next to it.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    script = script if isinstance(script, (str, os.PathLike)) else ""
    own = {_real(os.path.dirname(script)), _real(os.curdir)}  # as text
    folders = [folder for folder in sys.path[:MAX_PATHS] if isinstance(folder, str) and _real(folder) not in own]
    return tuple(folder.rstrip(os.sep) + os.sep for folder in folders if _holds_packages(folder))


def _real(folder: str) -> str:
    with contextlib.suppress(OSError, ValueError):  # a relative path in a folder that was removed; no path at all
        return os.path.realpath(folder)
    return folder


def _holds_packages(folder: str) -> bool:
    with contextlib.suppress(OSError, ValueError), os.scandir(folder) as entries:
        return any(entry.name.endswith(INSTALLED) for entry in islice(entries, MAX_ENTRIES))
    return False


_FILES = re.compile(r".*/ipykernel_\d+/[^/]+\.py|<ipython-input-(\d+)-\w+>")
_files: dict[str, str] = {}  # name → file
MAX_CELLS = 10_000  # whose file is remembered


def cell_name(file: str) -> str | None:
    """Return the name of the cell whose code has this file name, `cell 5`; None if it belongs to no cell."""
    found = _FILES.fullmatch(file)
    if found is None:
        return None
    number = found.group(1) or _number(file)
    if number is None:
        return None
    name = f"{CELL}{number}"
    if len(_files) < MAX_CELLS:
        _files[name] = file
    return name


def shown(file: str) -> str:
    """Return the file name of code as its author sees it."""
    return cell_name(file) or file


def file_of(name: str) -> str:
    """Return the file name of a cell's code; other names are returned as they are."""
    return _files.get(name, name)


def _number(file: str) -> int | None:
    """Return the number of the execution that compiled the cell's code; IPython keeps it for its tracebacks."""
    try:
        shell = sys.modules["IPython"].get_ipython()
        number = shell.compile._filename_map.get(file)  # nothing public has it
    except (KeyError, AttributeError, TypeError):
        return None
    return number if isinstance(number, int) else None


# Stacks of other threads.

MAX_FRAMES = 2000  # of a stack
Stack = list[FrameType]  # the innermost frame first
Frames = Callable[[], dict[int, FrameType]]
current_frames: Frames = sys._current_frames  # the only way to another thread's stack


def stack_of(thread: int | None, frames: Frames = current_frames) -> Stack:
    """Return the frames of a thread; none if it does not run."""
    return _followed(map(methodcaller("get", thread), starmap(frames, [()])))


def stack_and_lines(thread: int | None, frames: Frames = current_frames) -> tuple[Stack, list[int | None]]:
    """Return the frames of a thread with the number of the line that each is at, all of one moment.

    The line of a frame is that of the moment at which it is requested; after the call that follows the stack, the thread may run on.
    """
    stack: Stack = []
    follow = _following(map(methodcaller("get", thread), starmap(frames, [()])))
    return stack, uncollected(partial(list, chain.from_iterable(map(_call, (
        partial(filter, None, map(stack.extend, [follow])), partial(map, attrgetter("f_lineno"), stack)
    )))))  # fmt: skip


def outwards(frame: FrameType | None) -> Stack:
    """Return a frame and those around it; the thread must not run during the call."""
    return _followed([frame])


def _followed(innermost: Iterable[FrameType | None]) -> Stack:
    """Return a single frame and those around it; iterators of C code are put together, so that nothing else runs."""
    return uncollected(partial(list, _following(innermost)))


def _following(innermost: Iterable[FrameType | None]) -> Iterator[FrameType]:
    steps: Iterator[Any] = chain(innermost, repeat("f_back"))  # a frame, then this of each
    return islice(takewhile(partial(is_not, None), accumulate(steps, getattr)), MAX_FRAMES)


_call = methodcaller("__call__")


def uncollected(action: Callable[[], Result]) -> Result:
    """Return the result of an action of C code, during which no garbage is collected.

    The collector is off within a single call of C code, in which no other thread runs: the script must neither find it
    off nor lose its own choice.
    """
    on_again = list[Callable[[], None]]()
    remember = partial(on_again.extend, compress((gc.enable,), starmap(gc.isenabled, [()])))
    try:
        results: list[Any] = list(map(_call, chain((remember, gc.disable, action), on_again)))
    except BaseException:
        for enable in on_again:
            enable()
        raise
    return results[2]  # type: ignore[no-any-return]  # the action's
