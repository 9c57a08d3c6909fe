"""From inside a process of the job: start this node's monitor unless it runs, and let it finish before the last one goes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import attrs

from sm_profiler.errors import ProfilerError
from sm_profiler.monitor.lock import NodeLock, door
from sm_profiler.monitor.process_registry import Members
from sm_profiler.monitor.task import Task
from sm_profiler.printable import logger_for
from sm_profiler.processes import start_module

logger = logger_for("sm_profiler")

END_SECONDS = 60.0  # what a job that ended may have to wait for the upload of its last files
POLL_SECONDS = 0.05


@attrs.define(eq=False)
class Member:
    """One process's part in the job of its node.

    Attributes:
        task: what the monitor does.
        pid: the process.
        child: the monitor, where it was this process that started it.
    """

    task: Task
    pid: int
    child: subprocess.Popen[bytes] | None = None

    def leave(self, *, by_itself: bool = True, seconds: float = END_SECONDS) -> None:
        """This process ends.  The last one of the node waits until the monitor has finished, `seconds` at most.

        Args:
            by_itself: whether the script came to its end, rather than to a signal; only then end markers are written.
            seconds: the longest wait.
        """
        if os.getpid() != self.pid:
            return  # a forked child runs its parent's exit functions
        root, node = Path(self.task.root), self.task.node
        members = Members(root, node)
        members.leave(self.pid, by_itself=by_itself)
        if members.living():
            return
        lock, began, said = NodeLock(root, node), time.monotonic(), False
        while lock.is_held() and not self._is_over():
            waited = time.monotonic() - began
            if waited > seconds:
                logger.warning("sm-profiler: the last files are not uploaded yet; they stand in %s", root)
                return
            if waited > 5 and not said:  # noqa: PLR2004 - who waits so long wants to know why
                said = True
                logger.warning("sm-profiler: uploading the last files to %s", self.task.destination or root)
            time.sleep(POLL_SECONDS)
        self._is_over()

    def _is_over(self) -> bool:
        return self.child is not None and self.child.poll() is not None


def join(task: Task, environment: Mapping[str, str] = os.environ) -> Member:
    """Make this process one of the job's, and start the monitor unless one runs on this node.

    Raises:
        ProfilerError: the folder cannot be written, or no process can be started.
    """
    root = Path(task.root)
    member = Member(task, os.getpid())
    try:
        with door(root, task.node):
            members, lock = Members(root, task.node), NodeLock(root, task.node)
            alone = lock.acquire()
            if alone:
                members.forget(members.dead())  # of an attempt before this one
            members.register(member.pid)
            if alone:
                try:
                    member.child = _start(task, lock, environment)
                finally:
                    lock.release()  # the child holds it now
    except OSError as error:
        raise ProfilerError(f"{error.filename or root}: {error.strerror or error}") from None
    return member


def _start(task: Task, lock: NodeLock, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    arguments = [str(lock.fd), task.to_json()]
    return start_module("sm_profiler.monitor.agent", arguments, environment=environment, pass_fds=(lock.fd,))
