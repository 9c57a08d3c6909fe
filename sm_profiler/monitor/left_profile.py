"""Upload of a profile that was left behind: no monitor could upload it, or its monitor was killed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from sm_profiler.container import DEFAULT_NODE
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.formats.layout import END_MARKERS, FRAMEWORK, IGNORED_FOLDER, SYSTEM
from sm_profiler.formats.system_writer import recover_minutes
from sm_profiler.formats.trace_recovery import recover_killed
from sm_profiler.identity import host_id
from sm_profiler.monitor.node_state import NodeLock, ProcessRegistry
from sm_profiler.monitor.task import Task
from sm_profiler.monitor.uploader import Uploader, open_destination
from sm_profiler.printable import printable
from sm_profiler.storage import LocalStorage

if TYPE_CHECKING:
    from sm_profiler.storage.s3 import S3Storage

TRIES = 4  # in a row without a file uploaded
PAUSE_SECONDS = 2.0
_MAX_BYTES = 65_536


@attrs.frozen
class Uploaded:
    """Result of an upload.

    Attributes:
        uri: the destination.
        files: number of files uploaded.
        there: number of files that were there already.
        failed: number of files that could not be uploaded.
        error: why; "" if none failed.
        markers: why the end markers were not written; "" if they were.
    """

    uri: str
    files: int
    there: int
    failed: int = 0
    error: str = ""
    markers: str = ""


def keep_task(task: Task) -> None:
    """Write a monitor's task into the profile's folder, for an upload after its end."""
    with contextlib.suppress(SourceError):
        LocalStorage(task.root).write(f"{IGNORED_FOLDER}/task-{task.node}.json", task.to_json().encode())


def tasks_of(root: Path) -> list[Task]:
    """Return the tasks of a folder's monitors; files of other users, which could name any destination, are left out."""
    found = []
    for path in sorted((root / IGNORED_FOLDER).glob("task-*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            if path.lstat().st_uid == os.geteuid():
                found.append(Task.from_json(LocalStorage(path.parent).read(path.name, end=_MAX_BYTES).decode()))
    return found


def upload_left(
    root: Path,
    uri: str = "",
    *,
    connect: Callable[[str, str | None], S3Storage] = open_destination,
    sleep: Callable[[float], object] = time.sleep,
) -> Uploaded:
    """Upload the files of a profile that its destination lacks, and the end markers if the job is over.

    Nothing is measured. Open files of processes that were killed are completed first.

    Raises:
        ProfilerError: there is no profile or no destination, or a monitor is running.
    """
    if not any((root / folder).is_dir() for folder in (SYSTEM, FRAMEWORK)):
        raise ProfilerError(f"{printable(root)}: no profile")
    tasks = tasks_of(root)
    uri = uri or next((task.destination for task in tasks if task.destination), "")
    if not uri:
        raise ProfilerError(f"{printable(root)}: the job had no S3OutputPath; name it with --to s3://BUCKET/PREFIX")
    key = next((task.kms_key_id for task in tasks if task.destination == uri and task.kms_key_id), None)
    with contextlib.ExitStack() as stack:
        nodes = {task.node for task in tasks} or {DEFAULT_NODE}
        for node in sorted(nodes):
            lock = NodeLock(root, node)
            try:
                taken = lock.acquire()
            except OSError as error:
                raise ProfilerError(f"{printable(error.filename or root)}: {error.strerror}") from None
            if not taken:
                raise ProfilerError(f"{printable(root)}: the monitor of {node} is running, and uploads by itself")
            stack.callback(lock.release)
        living = [pid for node in sorted(nodes) for pid in ProcessRegistry(root, node).living()]
        killed = any(ProcessRegistry(root, node).was_killed() for node in nodes)
        for node in sorted(nodes):
            killed = recover_killed(root, node, host_id(in_container=False)) > 0 or killed
            recover_minutes(root, node)
        uploader = Uploader(root, connect(uri, key), wait=sleep)
        there = _skip_uploaded(uploader)
        failed = _upload_all(uploader)
        first = not tasks or any(task.first for task in tasks)
        if failed:
            markers = "no end markers, since files are missing"
        elif living:
            markers = f"no end markers, since process {living[0]} of the job is running"
        elif killed:
            markers = "no end markers, since the job was killed"
        elif not first:
            markers = "the end markers are those of the first node"
        else:
            mark_end(root)
            markers = "" if uploader.put_markers() else f"no end markers: {uploader.error}"
    return Uploaded(
        uploader.destination.uri, uploader.uploaded, there, failed, uploader.reason if failed else "", markers
    )


def mark_end(root: Path) -> None:
    """Write the end markers: this profile is complete."""
    for marker in END_MARKERS:
        with contextlib.suppress(OSError):
            (root / marker).parent.mkdir(parents=True, exist_ok=True)
            (root / marker).touch()


def _skip_uploaded(uploader: Uploader) -> int:
    """Skip files that the destination has, and return their number; a role may not be allowed to list it."""
    try:
        sizes = {info.key: info.size for folder in uploader.folders for info in uploader.destination.list(folder)}
    except SourceError:
        return 0
    return uploader.skip(info for info in uploader.pending() if sizes.get(info.key) == info.size)


def _upload_all(uploader: Uploader) -> int:
    """Upload until nothing is left, or nothing succeeds; return the number of files left."""
    tries = 0
    while (left := uploader.remaining()) and tries < TRIES:
        if tries:
            uploader.wait(PAUSE_SECONDS * tries)
        tries = 0 if uploader.upload_new() else tries + 1
    return left or 0
