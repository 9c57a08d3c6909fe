"""Files that processes left behind, completed, so that uploaders and readers take them.

These are the open trace files of killed processes, and the exit codes of those that left by `sys.exit`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from sm_profiler._version import __version__
from sm_profiler.descriptors import open_descriptor, open_regular
from sm_profiler.formats import event_names
from sm_profiler.formats.layout import EXIT_FOLDER, LOADING_FOLDER, STOP_FOLDER, TEMPORARY, TRACE_FOLDER, source_name
from sm_profiler.formats.process_end import (
    CRASHED,
    END,
    END_CODE,
    END_PLACE,
    END_STEP,
    END_US,
    KILLED,
    OOM_KILLS,
    OUT_OF_MEMORY,
    STOP_SIGNALS,
    STOPPED,
)
from sm_profiler.formats.trace_writer import metadata_line, publish, write_record
from sm_profiler.formatting import is_library
from sm_profiler.limits import oom_kills

MAX_LEFT_BYTES = 64 << 20  # of a trace file; a writer closes it at 10 MB
_MAX_RECORD = 1_000_000  # bytes
_DROPPED = "dropped"  # of a record: number of lost events
_MAX_US = 1e17  # the year 5138
_PARTS = 4  # of the name of an open file: source and kind, process, number, time
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)
_ENDED = frozenset("ZXx")  # states of a process of which only the exit code is left


def recover_traces(
    root: Path | str,
    node: str | None = None,
    *,
    stopped: bool | None = None,
    exiting: Collection[int] = (),
    count_kills: bool = True,
) -> int:
    """Finish the files that processes left behind, and return their number; files of living processes stay.

    The trace file of a killed process ends at its last flush, possibly in the middle of an event: whole events are
    kept, and the other is counted in the record of the process.  Several processes may do this at once: one of them
    finishes a file.

    Args:
        root: the `profiler-output` folder.
        node: this node, if several share the folder: process ids of other nodes mean nothing here.
        stopped: whether the job was asked to stop before these processes ended, for their records: a process that left a
            file open did not exit by itself. None for copies of files whose processes may be alive.
        exiting: processes that have written their exit codes, and do nothing any more.
        count_kills: this process shares the memory of the job, so that the kernel's kills are those of the job.
    """
    kills, count = oom_kills() if stopped is False and count_kills else None, 0
    for path, source, kind in _left_open(Path(root), node):
        with contextlib.suppress(Exception), _claimed(path) as fd:  # a damaged file stays as it is
            pid = path.name.rsplit("_", 3)[1]
            marks = list((Path(root) / STOP_FOLDER).glob(f"{source}_{pid}_*"))
            _, end = next(filter(None, map(_end_by_signal, marks)), ({}, {}))
            end_us = _close_array(path, fd, stopped=stopped, kills=kills, end=end)
            publish(Path(root), path, end_us, source, kind)
            count += 1
            for mark in marks:
                mark.unlink(missing_ok=True)
    count += len(_recover_marks(Path(root) / STOP_FOLDER, node))
    if stopped:
        count += len(recover_loading(Path(root), node))
    return count + _recover_exits(Path(root), node, stopped=bool(stopped), exiting=exiting)


def record_vanished(root: Path, node: str, pid: int, state: str, at: float) -> None:
    """Write how a process ended that recorded nothing, as one that a signal ended while it started.

    Args:
        root: the `profiler-output` folder.
        at: when, seconds since the epoch.

    Raises:
        OSError: it cannot be written.
    """
    record = {"version": __version__, "node": node, "pid": pid, END: state, END_US: int(at * 1e6), END_STEP: 0}
    write_record(root, source_name(pid, node), record)


def is_recorded_since(root: Path, since: float, but: int | None = None) -> bool:
    """Return whether a process has recorded steps, or its end, since a time in seconds since the epoch.

    Args:
        root: the `profiler-output` folder.
        but: the id of a process that does not count.
    """
    own = f"_{but}"
    for folder in (TRACE_FOLDER, EXIT_FOLDER):
        for path in (root / folder).rglob("*_*"):
            with contextlib.suppress(OSError):
                found = path.stat()
                if found.st_size and found.st_mtime >= since and f"{own}_" not in f"{path.name}_":
                    return True
    return False


def recover_killed(root: Path, node: str, host: str) -> int:
    """Finish the trace files of a node's killed processes, and the exit codes of others; return the number of the former.

    Args:
        root: the `profiler-output` folder.
        host: identity of this machine; only of processes that ran on it is it certain that they were killed.
    """
    left = list(_left_open(root, node))
    here = all(was_killed_here(path, host) for path, _, _ in left)
    recover_traces(root, node, stopped=False if here else None, count_kills=False)
    return sum(not path.exists() for path, _, _ in left)


def was_killed_here(path: Path, host: str) -> bool:
    """Return whether the process that left a trace file open ran on this machine, and has ended.

    Args:
        host: identity of this machine.
    """
    ending = f".json{TEMPORARY}"
    parts = path.name.removesuffix(ending).rsplit("_", 3)
    if not (host and path.name.endswith(ending) and len(parts) == _PARTS) or _alive(parts[1]):
        return False
    try:
        with open_regular(path, flags=os.O_NOFOLLOW) as file:
            lines = file.read(_MAX_RECORD).split(b",\n")
    except OSError:
        return False
    for line in lines:
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            event = json.loads(line.strip().removeprefix(b"["))
            if event.get("name") == event_names.PROCESS:
                return bool(event.get("args", {}).get("host") == host)
    return False


def are_traces_held(root: Path | str, node: str | None = None) -> bool:
    """Return whether a trace file of an ended process is still locked, so that `recover_traces` has left it out.

    A process that was killed counts as ended once its main thread is gone; the kernel closes its files after the last one.
    """
    for path, _, _ in _left_open(Path(root), node):
        try:
            with _claimed(path):
                pass
        except BlockingIOError:
            return True
        except OSError:  # finished by another process
            pass
    return False


def _left_open(root: Path, node: str | None) -> Iterator[tuple[Path, str, str]]:
    """Yield the open trace files of processes that have ended: path, source and kind."""
    ending = f".json{TEMPORARY}"
    for path in sorted((root / TRACE_FOLDER).glob(f"*{ending}")):
        parts = path.name.removesuffix(ending).rsplit("_", 3)
        if len(parts) != _PARTS or _alive(parts[1]):
            continue
        source, _, kind = parts[0].partition("_")
        if node is None or source.endswith(f"-{node}"):
            yield path, source, kind


def recover_loading(root: Path, node: str | None) -> set[int]:
    """Write records of the processes that a signal ended before they recorded anything; return their ids."""
    return _recover_marks(root / LOADING_FOLDER, node)


def ended_by_signal(folder: Path) -> list[Path]:
    """Return the marks of the processes that a signal ended, as it asked them to stop (`hook.process_end`).

    Args:
        folder: `STOP_FOLDER` or `LOADING_FOLDER` of a profile.
    """
    return [path for path in sorted(folder.glob("*_*_*")) if _end_by_signal(path)]


def _recover_marks(folder: Path, node: str | None) -> set[int]:
    """Write how processes ended by a signal of which no file is open; return their ids."""
    found = set[int]()
    for path in sorted(folder.glob("*_*_*")):
        source, pid, _ = path.name.rsplit("_", 2)
        if _alive(pid) or (node is not None and not source.endswith(f"-{node}")):
            continue
        with contextlib.suppress(Exception):  # a damaged file stays as it is
            ended = _end_by_signal(path)
            path.unlink()  # by one process only
            if ended is not None:
                write_record(folder.parents[1], source, {**ended[0], **ended[1]})
                found.add(int(ended[0]["pid"]))
    return found


def _end_by_signal(mark: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the record of a process that a signal ended, and how; None if none has."""
    with contextlib.suppress(OSError, ValueError), open_regular(mark, flags=os.O_NOFOLLOW) as file:
        record, _, stack = file.read(_MAX_RECORD).partition(b"\n")
        if stack:
            code, at_us = 128 + int(mark.name.rpartition("_")[2]), os.fstat(file.fileno()).st_mtime_ns // 1000
            step = {END_STEP: 0} if mark.parts[-2] == Path(LOADING_FOLDER).name else {}
            place = _place_in(stack.decode("utf-8", "replace"))
            at = {END_PLACE: place} if place else {}
            return json.loads(record), {END: STOPPED, END_CODE: code, END_US: at_us, **at, **step}
    return None


def _place_in(stack: str) -> str:
    """Return the innermost line of the script in a stack that faulthandler wrote, as `train.py:12`; "" if there is none."""
    for file, line in _FRAME.findall(stack):
        if not is_library(file):
            return f"{file.rpartition('/')[2]}:{line}"
    return ""


def _recover_exits(root: Path, node: str | None, *, stopped: bool, exiting: Collection[int]) -> int:
    """Make trace files of the records whose processes left with another exit code than 0; return their number."""
    count = 0
    for path in sorted((root / EXIT_FOLDER).glob("*_*_*")):
        source, pid, _ = path.name.rsplit("_", 2)
        exits = pid.isdecimal() and int(pid) in exiting
        if (_alive(pid) and not exits) or (node is not None and not source.endswith(f"-{node}")):
            continue
        with contextlib.suppress(Exception), _claimed(path, held=exits) as fd:
            text, code = _exit_record(os.pread(fd, _MAX_RECORD, 0))
            if not code:
                path.unlink()
                continue
            process = json.loads(text)
            state = STOPPED if stopped or code - 128 in STOP_SIGNALS else CRASHED
            write_record(root, source, {**process, END: state, END_CODE: code})
            path.unlink()
            count += 1
    return count


def failed_exits(root: Path) -> list[Path]:
    """Return the files of processes that left with another exit code than 0, and that are not recovered yet."""
    found = []
    for path in sorted((root / EXIT_FOLDER).glob("*_*_*")):
        with contextlib.suppress(OSError), open_regular(path, flags=os.O_NOFOLLOW) as file:
            if _exit_record(file.read(_MAX_RECORD))[1]:
                found.append(path)
    return found


def _exit_record(data: bytes) -> tuple[bytes, int]:
    """Return the record of a process, and its exit code; 0 also if that is unknown."""
    text, _, code = data.partition(b"\n")
    return text, code[0] if code else 0


@contextlib.contextmanager
def _claimed(path: Path, *, held: bool = False) -> Iterator[int]:
    """Open a file that no other process is finishing.

    Args:
        held: its own process has its lock, and leaves it to this one.

    Raises:
        OSError: another one is, or has finished it.
    """
    fd = open_descriptor(path, os.O_RDWR)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not held:
                raise
        except OSError:  # a file system without locks
            pass
        if os.fstat(fd).st_ino != path.stat().st_ino:
            raise FileNotFoundError(path)
        yield fd
    finally:
        os.close(fd)


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    try:  # one that was killed exists until its parent has taken its exit code
        return Path("/proc", pid, "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] not in _ENDED
    except (OSError, IndexError):
        return True


def _close_array(path: Path, fd: int, *, stopped: bool | None, kills: int | None, end: Mapping[str, Any]) -> int:
    """Keep the whole lines of a file and close the array; return the end of its last event in microseconds.

    Args:
        end: how its process ended, if a signal did that; else empty.
    """
    if os.fstat(fd).st_size > MAX_LEFT_BYTES:
        raise ValueError(path)
    base_us, end_us, whole, cut = 0.0, 0.0, [], 0
    process: dict[str, Any] = {}
    with os.fdopen(os.dup(fd), "rb") as file:  # its path may be that of another file by now
        data = file.read()
    for line in data.split(b",\n"):
        text = line.strip().removeprefix(b"[").removesuffix(b"]").strip()
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            cut += bool(text)
            continue
        whole.append(text)
        if not isinstance(event, dict):
            continue  # readers count it as damage
        args = event.get("args")
        if event.get("ph") != "M":
            end_us = max(end_us, base_us + _time(event.get("ts")) + _time(event.get("dur")))
        elif isinstance(args, dict):
            base_us = _time(args.get("start_time_since_epoch_in_micros")) or base_us
            process = args if event.get("name") == event_names.PROCESS else process
    if not whole:
        path.unlink()
        raise ValueError(path)
    if (end or stopped is not None) and process and END not in process:
        known = process.get(_DROPPED)
        end = end or _end_of(process, end_us or base_us, stopped=bool(stopped), kills=kills)
        args = {**process, **end, _DROPPED: cut + (known if isinstance(known, int) else 0)}
        whole.append(metadata_line(event_names.PROCESS, 0, json.dumps(args)).encode())
    # In place, so that the lock holds until the file has its name; only a cut-off event at the end makes a difference.
    closed, done = b"[\n" + b",\n".join(whole) + b"\n]\n", 0
    while done < len(closed):
        done += os.pwrite(fd, closed[done:], done)
    os.ftruncate(fd, len(closed))
    return int(end_us or base_us)


def _time(value: object) -> float:
    """Return microseconds, or 0 for what is none of this era."""
    return value if isinstance(value, int | float) and 0 <= value < _MAX_US else 0.0


def _end_of(process: Mapping[str, Any], end_us: float, *, stopped: bool, kills: int | None) -> dict[str, Any]:
    """Return how a process ended that did not exit by itself."""
    before = process.get(OOM_KILLS)
    no_memory = kills is not None and isinstance(before, int) and kills > before
    state = STOPPED if stopped else OUT_OF_MEMORY if no_memory else KILLED
    return {END: state, END_US: int(end_us)}
