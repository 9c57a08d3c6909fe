"""`sm-profiler run --watch`: live lines below a script's own output, drawn by a process of its own.

The script keeps its standard streams. On a terminal, its output scrolls above the last lines of the screen, which the
terminal itself keeps out of the way (its scrolling region); without one, lines are printed as by `watch`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TextIO

import attrs

from sm_profiler.errors import ProfilerError
from sm_profiler.printable import printable
from sm_profiler.report.svg import shorten
from sm_profiler.serve.live import LiveJob, Snapshot
from sm_profiler.serve.pages import state_line
from sm_profiler.serve.terminal import ASCII_BLOCKS, BLOCKS, LOOK_S, in_lines, line_of, measures
from sm_profiler.signals import SignalEvent, StopEvent

LINES = 4  # below a rule: state and verdict, headline, step time, machines
LEAST_HEIGHT, LEAST_WIDTH = 12, 40  # of a terminal that is large enough
NICENESS = 10  # the training goes first
SAVE, RESTORE, WHOLE = "\x1b7", "\x1b8", "\x1b[r"


def panel(snapshot: Snapshot, *, width: int, blocks: str = BLOCKS) -> list[str]:
    """Return the lines below the script's output: a rule and at most LINES others, each within the width."""
    head = f"sm-profiler: {state_line(snapshot)}"
    lines = []
    if snapshot.report is not None:
        main = snapshot.report.verdict.main
        head += f"; {main.kind.value} ({main.confidence} confidence)"
        lines = [main.headline, *measures(snapshot, blocks, width - 2)]
    rule = ("─" if blocks is BLOCKS else "-") * width
    return [rule, *(shorten(printable(line), width - 1) for line in [head, *lines][:LINES])]


@attrs.define
class Region:
    """The last lines of a terminal, below the region in which its output scrolls.

    Attributes:
        out: the terminal.
        size: returns its columns and lines.
    """

    out: TextIO
    size: os.terminal_size = attrs.field(factory=lambda: os.terminal_size((0, 0)))

    def draw(self, lines: list[str], size: os.terminal_size) -> None:
        """Draw the lines, in one write; the cursor stays in the script's output."""
        text = ""
        if size != self.size:
            text = self._reserve(size)
            self.size = size
        top = size.lines - LINES
        text += SAVE
        for number in range(LINES + 1):
            text += f"\x1b[{top + number};1H\x1b[K{lines[number] if number < len(lines) else ''}"
        self._write(text + RESTORE)

    def _reserve(self, size: os.terminal_size) -> str:
        """Return the sequence that frees the lines: the output moves up where it reaches the last lines."""
        last = size.lines - LINES - 1
        down, up = "\x1bD" * (LINES + 1), f"\x1b[{LINES + 1}A"  # in the column where the script is
        return f"{self._erased()}{down}{up}{SAVE}\x1b[1;{last}r{RESTORE}"

    def _erased(self) -> str:
        return f"{SAVE}{WHOLE}\x1b[{self.size.lines - LINES};1H\x1b[J{RESTORE}" if self.size.lines else ""

    def leave(self) -> None:
        """Give the lines back; what was drawn goes."""
        if self.size.lines:
            self._write(self._erased())
            self.size = os.terminal_size((0, 0))

    def _write(self, text: str) -> None:
        os.write(self.out.fileno(), text.encode(self.out.encoding or "ascii", "replace"))  # whole, and in any handler


def follow(where: str, out: TextIO, stop: StopEvent) -> None:
    """Show a run until it has ended and is read, or until `stop` is set."""
    job = LiveJob(where)
    try:
        if out.isatty() and os.environ.get("TERM") != "dumb" and _fits(_size_of(out)):
            _draw(job, out, stop)
            if line := line_of(job.snapshot):
                print(f"sm-profiler: {line}", file=out, flush=True)
        else:
            in_lines(job, out, prefix="sm-profiler: ", stop=stop)
    finally:
        job.close()


def _fits(size: os.terminal_size) -> bool:
    return size.columns >= LEAST_WIDTH and size.lines >= LEAST_HEIGHT


def _draw(job: LiveJob, out: TextIO, stop: StopEvent) -> None:
    blocks = BLOCKS if "utf" in (out.encoding or "").lower() else ASCII_BLOCKS
    region = Region(out)
    shown: tuple[list[str], os.terminal_size] | None = None
    with _suspended(region):
        try:
            while not stop.is_set():
                snapshot, size = job.watch(), _size_of(out)
                wanted = panel(snapshot, width=size.columns, blocks=blocks), size
                if not _fits(size):
                    region.leave()
                    shown = None
                elif wanted != shown or size != region.size:
                    region.draw(*wanted)
                    shown = wanted
                if snapshot.state == "ended":
                    return
                stop.wait(LOOK_S)
        finally:
            region.leave()


@contextlib.contextmanager
def _suspended(region: Region) -> Iterator[None]:
    """Give the terminal back while Ctrl-Z suspends the script."""

    def suspend(_number: int, _frame: FrameType | None) -> None:
        region.leave()
        os.kill(os.getpid(), signal.SIGSTOP)

    before = signal.signal(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)


def _size_of(out: TextIO) -> os.terminal_size:
    try:
        return os.get_terminal_size(out.fileno())
    except OSError:  # it was closed
        return os.terminal_size((0, 0))


class Leaving(SignalEvent):
    """Set by SIGTERM and SIGQUIT, and when the process that started this one is gone."""

    def __init__(self) -> None:
        super().__init__()
        self._parent = os.getppid()

    def is_set(self) -> bool:
        """Return whether it is time to leave."""
        return os.getppid() != self._parent or super().is_set()


def main() -> None:
    """Follow the folder that the command line names; Ctrl-C is the script's."""
    stop = Leaving()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop.set_on(signal.SIGTERM, signal.SIGQUIT)  # Ctrl-\ ends the run, but the terminal gets its lines back
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(ProfilerError, BrokenPipeError):
        follow(sys.argv[1], sys.stderr, stop)


if __name__ == "__main__":
    main()
