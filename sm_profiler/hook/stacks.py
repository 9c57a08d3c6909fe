"""Stacks of Python frames, reduced to the user's lines and summed up.

Loader workers import this module in their processes, so it must not import anything heavy.
"""

from __future__ import annotations

import functools
import io
import linecache
import os
import sys
import threading
import tokenize
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any, TypeAlias

from sm_profiler.descriptors import read_regular
from sm_profiler.hook.frames import Stack, cell_name, file_of, is_library
from sm_profiler.hook.secrets import masked

Place: TypeAlias = tuple[str, int, str]  # file, line, function
Key: TypeAlias = tuple[str, bool, str, tuple[Place, ...]]  # phase, in a long step, innermost function, user's lines

MAX_DEPTH = 300  # frames inspected
MAX_PLACES = 32  # of the user's frames, the innermost
MAX_LIBRARY = 3  # frames of a stack without any of the user's
MAX_KEYS = 500  # stacks summed up in a period; further ones only add to their phase
MAX_WRITTEN = 60  # stacks written for a period, those with the most time
MAX_FILES = 10_000  # whose origin is remembered
MAX_NAME, MAX_TEXT = 300, 160  # characters
MAX_SOURCE_BYTES = 2_000_000  # of a file whose lines are quoted
MAX_SOURCES = 100  # such files that are kept
LONG_MS, LONG_TIMES = 5.0, 2.0  # a step is long if it exceeds the usual one by both
LENGTHS = 64  # latest steps that define the usual one
MIN_LENGTHS = 8
FIRST_STEPS = 3  # in which a job allocates, compiles and starts workers; `metrics.thresholds.WARM_UP_STEPS`
FIRST = "first_steps"  # phase of samples in those that are long
_HOOK, _LIBRARY, _USER = range(3)
_OWN = str(Path(__file__).parents[1]) + os.sep


PROMPT_SECONDS = 0.0001  # shorter ones cost other threads of the script too much
NEAR_SECONDS = 0.008  # longer than the interpreter's own interval


class Prompt:
    """Lets a thread interrupt Python code at a random point, by a shorter switch interval for a few milliseconds.

    A thread that wakes up gets the interpreter when another one gives it up: in a call that waits or computes without
    it, such as an operator of torch, or after 5 ms. So samples at wake-up miss Python code between such calls. A sampler
    wakes up, waits for a random time with the short interval, and reads the stack before the others may interrupt it.
    """

    def __init__(self) -> None:
        self._before: float | None = None
        self._never = threading.Lock()  # unlike an event's wait, its timeout runs no Python code
        self._never.acquire()

    def wait(self, seconds: float) -> None:
        """Wait, and interrupt soon."""
        self._before = before = sys.getswitchinterval()
        short = min(PROMPT_SECONDS, before)
        sys.setswitchinterval(short)
        self._never.acquire(timeout=seconds)
        if sys.getswitchinterval() <= short:  # the script has not set another one
            sys.setswitchinterval(before)
        self._before = None

    def forked(self) -> None:
        """Restore the interval in a child that was forked while it was short."""
        if self._before is not None:
            sys.setswitchinterval(self._before)
            self._before = None


class StackReader:
    """Reduces the stack of a thread to the user's lines, outermost first.

    Frames of installed packages, the standard library and the hook are left out, unless there are no others: then the
    innermost ones stay. A package that is installed but runs as the script (`python -m package.train`) is the user's.
    """

    def __init__(self, stop: CodeType | None = None) -> None:
        self._origins: dict[str, int] = {}
        self._shown: dict[str, str] = {}
        self._stop = stop  # code of the outermost frame that counts
        self._script: str | None = None  # folder of the package that runs as the script

    def read(self, stack: Stack, lines: Sequence[int | None] = ()) -> tuple[tuple[Place, ...], str]:
        """Return the user's lines and the name of the innermost function if it is not the user's.

        Args:
            stack: the frames, the innermost first.
            lines: the line that each was at when the stack was read; default: at which they are now.
        """
        places: list[Place] = []
        library: list[Place] = []
        leaf = ""
        for depth, frame in enumerate(stack[:MAX_DEPTH]):
            code = frame.f_code
            if code is self._stop or len(places) == MAX_PLACES:
                break
            origin = self._origins.get(code.co_filename)
            if origin is None:
                origin = self._origin(code.co_filename)
            if origin == _USER:
                places.append(self._place(code, lines[depth] if lines else frame.f_lineno))
            elif origin == _LIBRARY and not places:
                leaf = leaf or _qualified(frame, code)
                if len(library) < MAX_LIBRARY:
                    library.append(self._place(code, lines[depth] if lines else frame.f_lineno))
            elif code.co_filename.startswith("<frozen importlib") and not places:
                leaf = "import"
        return tuple(reversed(places or library)), leaf

    def _place(self, code: CodeType, line: int | None) -> Place:
        name = code.co_filename
        if name not in self._shown:
            self._shown[name] = sys.intern(shown_file(name))
        return self._shown[name], line or code.co_firstlineno, _name(code)

    def _origin(self, name: str) -> int:
        if len(self._origins) >= MAX_FILES:
            self._origins.clear()
            self._shown.clear()
        if self._script is None:
            self._script = _script_folder()
        if name.startswith(_OWN) or (name.startswith("<") and not name.startswith(("<ipython", "<stdin"))):
            origin = _HOOK
        elif self._script and name.startswith(self._script):
            origin = _USER
        elif is_library(name) or "torchinductor_" in name:
            origin = _LIBRARY
        else:
            origin = _USER
        self._origins[name] = origin
        return origin


def shown_file(name: str) -> str:
    """Return a file's name as the report shows it: below the working folder, relative to it."""
    if cell := cell_name(name):
        return cell
    try:
        folder = os.getcwd() + os.sep  # as text
    except OSError:  # the folder was removed
        folder = os.sep
    shown = name[len(folder) :] if name.startswith(folder) and len(folder) > 1 else name
    return shown if len(shown) <= MAX_NAME else f"…{shown[-MAX_NAME:]}"


def _script_folder() -> str:
    """Return the folder of the installed package that runs as the script, or ""."""
    main = sys.modules.get("__main__")
    package = str(getattr(getattr(main, "__spec__", None), "parent", "") or "").partition(".")[0]
    file = str(getattr(main, "__file__", "") or "")
    if not package or package in ("torch", "sm_profiler", "accelerate") or f"{os.sep}{package}{os.sep}" not in file:
        return ""
    return file.partition(f"{os.sep}{package}{os.sep}")[0] + f"{os.sep}{package}{os.sep}"


def _name(code: CodeType) -> str:
    """Return the name of a function, of the one around it for a comprehension or a lambda; with its class from 3.11 on."""
    inner = getattr(code, "co_qualname", code.co_name).split(".<locals>.")
    while len(inner) > 1 and inner[-1].startswith("<"):
        inner.pop()
    return str(inner[-1])


def _qualified(frame: FrameType, code: CodeType) -> str:
    module = frame.f_globals.get("__name__")
    return f"{module}.{_name(code)}" if isinstance(module, str) else _name(code)


class Lengths:
    """Lengths of the latest steps, and whether another one is long."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=LENGTHS)
        self._limit = float("inf")
        self._fresh = 0

    def add(self, seconds: float) -> None:
        """Note the length of a step."""
        self._latest.append(seconds)
        self._fresh += 1
        if len(self._latest) >= MIN_LENGTHS and (self._fresh >= MIN_LENGTHS or self._limit == float("inf")):
            usual, self._fresh = median(self._latest), 0
            self._limit = max(LONG_TIMES * usual, usual + LONG_MS / 1e3)

    @property
    def known(self) -> bool:
        """True once there are enough steps to judge from."""
        return self._limit != float("inf")

    def is_long(self, seconds: float) -> bool:
        """Return whether a step that takes this long is longer than usual."""
        return seconds > self._limit


class Tally:
    """Time by stack. Belongs to one thread."""

    def __init__(self) -> None:
        self._sums: dict[Key, list[float]] = {}  # seconds, samples
        self._held: dict[Key, list[float]] = {}  # of the running step, whose length is not known yet
        self._held_wait = 0.0
        self._early: list[
            tuple[int, float, dict[Key, list[float]], float]
        ] = []  # of steps before the usual one is known
        self._waited = [0.0, 0.0]  # seconds without a core: in usual steps, in long ones

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, key: Key, seconds: float, count: float = 1) -> None:
        """Add samples of a stack."""
        _add(self._sums, key, seconds, count)

    def hold(self, key: Key, seconds: float, waited: float = 0.0) -> None:
        """Keep a sample until it is known whether its step is long.

        Args:
            key: phase and stack.
            seconds: time that it counts for.
            waited: seconds of that in which the thread was ready to run and had no core.
        """
        _add(self._held, key, seconds, 1)
        self._held_wait += waited

    def settle(self, *, long: bool = False, rename: Mapping[str, str] | None = None) -> None:
        """Add the samples that were kept.

        Args:
            long: their step is long; also true once any sample was taken after the step turned long.
            rename: phase → its name instead.
        """
        self._settle(self._held, self._held_wait, long=long, rename=rename)
        self._held, self._held_wait = {}, 0.0

    def _settle(
        self, held: dict[Key, list[float]], waited: float, *, long: bool, rename: Mapping[str, str] | None = None
    ) -> None:
        long = long or any(key[1] for key in held)
        for (phase, _, leaf, places), (seconds, count) in held.items():
            self.add(((rename or {}).get(phase, phase), long, leaf, places), seconds, count)
        if not rename:  # what follows the loop is no step
            self._waited[long] += waited

    def set_aside(self, step: int, length: float) -> None:
        """Keep the samples that were kept until the usual length of a step is known.

        Args:
            step: the number of their step.
            length: the seconds that it took, at least.
        """
        self._early.append((step, length, self._held, self._held_wait))
        self._held, self._held_wait = {}, 0.0

    def settle_early(self, is_long: Callable[[float], bool]) -> None:
        """Add the samples that were set aside; those of long first steps are no part of the loop."""
        for step, length, held, waited in self._early:
            first = step < FIRST_STEPS and is_long(length)
            self._settle(held, waited, long=is_long(length), rename={key[0]: FIRST for key in held} if first else None)
        self._early.clear()

    def take_waits(self) -> list[float]:
        """Return the milliseconds without a core in usual steps and in long ones, and start over."""
        waited, self._waited = self._waited, [0.0, 0.0]
        return [round(seconds * 1e3, 2) for seconds in waited]

    def take(self) -> dict[Key, list[float]]:
        """Return what was summed up, and start over."""
        sums, self._sums = self._sums, {}
        return sums


def _add(sums: dict[Key, list[float]], key: Key, seconds: float, count: float) -> None:
    found = sums.get(key)
    if found is None:
        if len(sums) >= MAX_KEYS:
            key = (key[0], key[1], "", ())
        found = sums.setdefault(key, [0.0, 0])
    found[0] += seconds
    found[1] += count


def to_args(sums: dict[Key, list[float]]) -> dict[str, Any]:
    """Return sums as the arguments of an event: frames, their source lines, and stacks that refer to frames."""
    ranked = sorted(sums.items(), key=lambda item: -item[1][0])
    kept = dict(ranked[:MAX_WRITTEN])
    for (phase, long, _, _), (seconds, count) in ranked[MAX_WRITTEN:]:
        rest = phase, long, "", ()
        before = kept.get(rest, (0.0, 0))
        kept[rest] = [before[0] + seconds, before[1] + count]
    frames: dict[Place, int] = {}
    stacks = [
        [
            phase, int(long), round(seconds * 1e3, 2), int(count), leaf[:MAX_NAME],
            [frames.setdefault(place, len(frames)) for place in places],
        ]
        for (phase, long, leaf, places), (seconds, count) in kept.items()
    ]  # fmt: skip
    return {
        "frames": [[file, line, name[:MAX_NAME]] for file, line, name in frames],
        "lines": [source_line(file, line) for file, line, _ in frames],
        "stacks": stacks,
    }


def source_line(file: str, line: int) -> str:
    """Return a line of a source file as it runs, without secrets, or "" if it cannot be read."""
    file = file_of(file)
    try:
        kept = linecache.cache.get(file)  # what has no file, as a notebook's cells, is there
        lines = kept[2] if kept is not None and len(kept) == 4 else _lines(file)
        return masked(lines[line - 1].strip())[:MAX_TEXT] if 0 < line <= len(lines) else ""
    except Exception:  # a source in an odd encoding; the line is an extra
        return ""


@functools.lru_cache(MAX_SOURCES)
def _lines(file: str) -> list[str]:
    """Return the lines of a file as they were when the first was requested."""
    try:
        source = io.BytesIO(read_regular(file, MAX_SOURCE_BYTES))
        encoding = tokenize.detect_encoding(source.readline)[0]
        source.seek(0)
        return list(io.TextIOWrapper(source, encoding))
    except (OSError, SyntaxError, ValueError):
        return []
