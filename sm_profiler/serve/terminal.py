"""The live terminal: the verdict, where the time goes, step time and GPUs, drawn again when there is news."""

from __future__ import annotations

import contextlib
import select
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

from sm_profiler.errors import SourceError
from sm_profiler.printable import printable
from sm_profiler.report.formatting import duration, plural
from sm_profiler.report.judges.judge_context import mean_or_none
from sm_profiler.report.model import Report
from sm_profiler.report.svg import shorten
from sm_profiler.report.terminal import terminal_summary
from sm_profiler.serve.live import LiveJob, Snapshot
from sm_profiler.serve.pages import state_line
from sm_profiler.signals import StopEvent

LOOK_S = 0.25
LINE_S = 10.0  # between two lines if there is no terminal
MAX_WIDTH, WIDE = 100, 60
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"
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
    """Return a line on the step time and one on the machines."""
    report, values, lines = snapshot.report, snapshot.spark, []
    if values:
        drawn = sparks(values[-max(width - 40, 8) :], blocks)
        lines.append(f"step time {duration(values[-1])}, mean {duration(sum(values) / len(values))}  {drawn}")
    if report is not None and (machines := use_of_machines(report)):
        lines.append(machines)
    return lines


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
    """Return a snapshot in one line, for logs."""
    parts = [state_line(snapshot)]
    if snapshot.report is not None:
        main = snapshot.report.verdict.main
        parts += [f"{main.kind.value} ({main.confidence} confidence)", printable(main.headline).rstrip(".")]
        parts += [f"step time {duration(snapshot.spark[-1])}"] if snapshot.spark else []
        parts.append(use_of_machines(snapshot.report))
    return "; ".join(part for part in parts if part)


def watch(job: LiveJob, name: str, *, out: TextIO = sys.stdout, colour: bool = False) -> None:
    """Show a job until it has ended (on a terminal: until q).

    Raises:
        SourceError: it cannot be read at all.
    """
    try:
        if out.isatty() and sys.stdin is not None and sys.stdin.isatty():
            _on_terminal(job, name, out, colour=colour)
        else:
            in_lines(job, out)
    finally:
        job.close()


def _look(job: LiveJob) -> Snapshot:
    snapshot = job.watch()
    if snapshot.state == "unreadable" and snapshot.report is None:
        raise SourceError(snapshot.note)
    return snapshot


def in_lines(job: LiveJob, out: TextIO, prefix: str = "", stop: StopEvent | None = None) -> None:
    """Print a line when state or verdict change, else every ten seconds at most, until the job has ended or `stop` is set."""
    stop = stop or threading.Event()
    last, printed_at, before = "", 0.0, ""
    while not stop.is_set():
        snapshot = _look(job)
        line, now = line_of(snapshot), snapshot.state
        if snapshot.report is not None:
            now += snapshot.report.verdict.kind.value
        if snapshot.version and line != last and (now != before or time.monotonic() - printed_at >= LINE_S):
            print(f"{prefix}{time.strftime('%H:%M:%S')} {line}", file=out, flush=True)
            last, printed_at, before = line, time.monotonic(), now
        if snapshot.state == "ended":
            return
        stop.wait(LOOK_S)


def _on_terminal(job: LiveJob, name: str, out: TextIO, *, colour: bool) -> None:
    blocks = BLOCKS if "utf" in (out.encoding or "").lower() else ASCII_BLOCKS
    shown = ""
    with _screen(out):
        while True:
            size = shutil.get_terminal_size()
            snapshot = _look(job)
            title = f"{name}: {state_line(snapshot)}{age(snapshot, time.time())}"
            text = frame(title, snapshot, size=(size.columns, size.lines), colour=colour, blocks=blocks)
            if text != shown:
                ending = "\x1b[K\r\n"
                out.write("\x1b[H" + ending.join(text.split("\n")) + "\x1b[K\x1b[J")
                out.flush()
                shown = text
            ready, _, _ = select.select([sys.stdin], [], [], LOOK_S)
            if ready and sys.stdin.read(1) in {"q", "Q", "\x04", ""}:
                return


@contextlib.contextmanager
def _screen(out: TextIO) -> Iterator[None]:
    """Take over the terminal, and give it back as it was."""
    termios, tty = _modules()
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


def _modules() -> tuple[Any, Any]:
    import termios  # noqa: PLC0415 - not on every system
    import tty  # noqa: PLC0415 - as above

    return termios, tty
