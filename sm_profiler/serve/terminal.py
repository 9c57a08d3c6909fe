"""The live terminal: the verdict, where the time goes, step time and GPUs, drawn again when there is news.

`watch` takes the whole terminal. The panel of `sm-profiler run --watch` is drawn by a separate process (this module run as
a program), and the script keeps its standard streams: on a terminal, its output scrolls above the panel, which the
terminal itself keeps out of the way (its scrolling region); elsewhere, lines are printed as by `watch`.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TextIO

import attrs

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import Report
from sm_profiler.diagnosis.profile.case import mean_or_none
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.formatting import duration, plural, shorten
from sm_profiler.printable import printable
from sm_profiler.render.terminal import NO_VERDICT, terminal_summary
from sm_profiler.serve.live import LiveJob
from sm_profiler.serve.pages import state_line
from sm_profiler.serve.snapshot import Snapshot
from sm_profiler.threads import SignalEvent, StopEvent

POLL_S = 0.25
LINE_S = 10.0  # between two lines if there is no terminal
MAX_WIDTH, WIDE = 100, 60
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"
LINES = 4  # of the panel, below a rule: state and verdict, headline, step time, machines
LEAST_HEIGHT, LEAST_WIDTH = 12, 40  # of a terminal that is large enough
NICENESS = 10  # the training goes first
SAVE, RESTORE, WHOLE = "\x1b7", "\x1b8", "\x1b[r"
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def frame(title: str, snapshot: Snapshot, *, size: tuple[int, int], colour: bool, blocks: str = BLOCKS) -> str:
    """Return what fills the terminal: at most `size` columns and lines."""
    width, height = min(size[0], MAX_WIDTH), size[1]
    lines = [shorten(printable(title), width), ""]
    if snapshot.report is not None:
        colour = colour and width >= WIDE  # cutting a line would cut its colours
        summary = terminal_summary(snapshot.report, colour, width=width).splitlines()
        lines += summary if colour else [shorten(line, width) for line in summary]
        lines += ["", *(shorten(f"  {line}", width) for line in measures(snapshot, blocks, width))]
    return "\n".join([*lines[: max(height - 2, 1)], "", "q quits; the job goes on"][:height])


def age(snapshot: Snapshot, now: float) -> str:
    """Return how old the latest data of a running job is."""
    if snapshot.data_at is None or snapshot.state == "ended":
        return ""
    return f", latest data {duration(max(round(now - snapshot.data_at), 0))} ago"


def measures(snapshot: Snapshot, blocks: str = BLOCKS, width: int = MAX_WIDTH) -> list[str]:
    """Return a line on the step time and a line on the machines."""
    report, values, lines = snapshot.report, snapshot.spark, []
    if values:
        drawn = sparks(values[-max(width - 40, 8) :], blocks)
        lines.append(f"{step_times(values)}  {drawn}")
    if report is not None and (machines := use_of_machines(report)):
        lines.append(machines)
    return lines


def step_times(values: tuple[float, ...]) -> str:
    """Return the step time of the latest stretch of the loop, and of all."""
    return f"step time: latest {duration(values[-1])}, mean {duration(sum(values) / len(values))}"


def verdict_of(snapshot: Snapshot, report: Report) -> str:
    """Return the verdict's class and confidence; a job that goes on may still get a verdict."""
    main = report.verdict.main
    if main.kind is Class.INCONCLUSIVE and snapshot.state != "ended":
        return NO_VERDICT
    return f"{main.kind.value} ({main.confidence} confidence)"


def sparks(values: tuple[float, ...], blocks: str) -> str:
    """Draw values as a row of characters, from zero up."""
    most = max(values) or 1.0
    return "".join(blocks[min(int(value / most * len(blocks)), len(blocks) - 1)] for value in values)


def use_of_machines(report: Report) -> str:
    """Return the use of GPUs and cores in one line."""
    metrics, parts = report.metrics, []
    gpus = mean_or_none([gpu.mean for gpu in metrics.gpus])
    if gpus is not None:
        parts.append(f"{plural(len(metrics.gpus), 'GPU')} {gpus:.0f} % busy")
    for key, label in (("cpu", "CPU"), ("memory", "memory")):
        mean = metrics.mean_of(key)
        if mean is not None:
            parts.append(f"{label} {mean:.0f} %")
    return ", ".join(parts)


def line_of(snapshot: Snapshot) -> str:
    parts = [state_line(snapshot)]
    if snapshot.report is not None:
        headline = printable(snapshot.report.verdict.main.headline).rstrip(".")
        parts += [verdict_of(snapshot, snapshot.report), headline]
        parts += [step_times(snapshot.spark)] if snapshot.spark else []
        parts.append(use_of_machines(snapshot.report))
    return "; ".join(part for part in parts if part)


def watch(job: LiveJob, name: str, *, out: TextIO = sys.stdout, colour: bool = False) -> None:
    """Show a job until it has ended (on a terminal: until q)."""
    try:
        if out.isatty() and sys.stdin is not None and sys.stdin.isatty():
            _on_terminal(job, name, out, colour=colour)
        else:
            in_lines(job, out)
    finally:
        job.close()


def _poll(job: LiveJob) -> Snapshot:
    snapshot = job.watch()
    if snapshot.report is None and (job.problem or snapshot.state == "unreadable"):
        raise SourceError(snapshot.note)
    return snapshot


def in_lines(job: LiveJob, out: TextIO, prefix: str = "", stop: StopEvent | None = None) -> None:
    """Print a line when state or verdict change, else every ten seconds at most, until the job has ended or `stop` is set."""
    stop = stop or threading.Event()
    last, printed_at, before = "", 0.0, ""
    while not stop.is_set():
        snapshot = _poll(job)
        line, now = line_of(snapshot), snapshot.state
        if snapshot.report is not None:
            now += snapshot.report.verdict.kind.value
        if snapshot.version and line != last and (now != before or time.monotonic() - printed_at >= LINE_S):
            print(f"{prefix}{time.strftime('%H:%M:%S')} {line}", file=out, flush=True)
            last, printed_at, before = line, time.monotonic(), now
        if snapshot.state == "ended":
            return
        stop.wait(POLL_S)


def _on_terminal(job: LiveJob, name: str, out: TextIO, *, colour: bool) -> None:
    blocks = BLOCKS if "utf" in (out.encoding or "").lower() else ASCII_BLOCKS
    shown = ""
    with _screen(out):
        while True:
            size = shutil.get_terminal_size()
            snapshot = _poll(job)
            title = f"{name}: {state_line(snapshot)}{age(snapshot, time.time())}"
            text = frame(title, snapshot, size=(size.columns, size.lines), colour=colour, blocks=blocks)
            if text != shown:
                ending = "\x1b[K\r\n"
                out.write("\x1b[H" + ending.join(text.split("\n")) + "\x1b[K\x1b[J")
                out.flush()
                shown = text
            ready, _, _ = select.select([sys.stdin], [], [], POLL_S)
            if ready and sys.stdin.read(1) in {"q", "Q", "\x04", ""}:
                return


@contextlib.contextmanager
def _screen(out: TextIO) -> Iterator[None]:
    """Take over the terminal, and give it back as it was."""
    import termios  # not on every system
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        out.write(ENTER)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        out.write(LEAVE)
        out.flush()


def panel(snapshot: Snapshot, *, width: int, blocks: str = BLOCKS) -> list[str]:
    """Return the lines below the script's output: a rule and at most LINES others, each within the width."""
    head = f"sm-profiler: {state_line(snapshot)}"
    lines = []
    if snapshot.report is not None:
        head += f"; {verdict_of(snapshot, snapshot.report)}"
        lines = [snapshot.report.verdict.main.headline, *measures(snapshot, blocks, width - 2)]
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
    """Show the panel of a run until it has ended and is read, or until `stop` is set."""
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
                stop.wait(POLL_S)
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


class RunIsOver(SignalEvent):
    """Set by SIGTERM and SIGQUIT, and when the process that started this one is gone."""

    def __init__(self) -> None:
        super().__init__()
        self._parent = os.getppid()

    def is_set(self) -> bool:
        return os.getppid() != self._parent or super().is_set()


def main() -> None:
    """Show the panel of the run in the folder that the command line names; Ctrl-C is the script's."""
    stop = RunIsOver()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop.set_on(signal.SIGTERM, signal.SIGQUIT)  # Ctrl-\ ends the run, but the terminal gets its lines back
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(ProfilerError, BrokenPipeError):
        follow(sys.argv[1], sys.stderr, stop)


if __name__ == "__main__":
    main()
