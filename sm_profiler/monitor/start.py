"""Joining and leaving a job from one of its processes: the first starts the node's monitor, the last waits for it to finish."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import attrs

from sm_profiler.errors import ProfilerError
from sm_profiler.monitor.earlier_job import set_aside_other_job
from sm_profiler.monitor.node_state import NodeLock, ProcessRegistry, entry_lock
from sm_profiler.monitor.task import Task
from sm_profiler.printable import logger_for
from sm_profiler.processes import StopWatch, start_module

logger = logger_for("sm_profiler")

END_SECONDS = 60.0  # how long the last process of a job waits for the upload of the last files
LOCAL_SECONDS = 15.0  # the same if nothing is uploaded: the monitor only writes its last minute
NOTICE_SECONDS = 5.0  # wait after which it reports what it waits for
POLL_SECONDS = 0.02
WAKE = signal.SIGUSR1  # of a monitor that has signed its lock; earlier, it would kill it


@attrs.define(eq=False)
class Registration:
    """One process's registration in the job of its node.

    Attributes:
        task: the monitor's task.
        pid: the process.
        monitor: the monitor's process, if this process started it.
    """

    task: Task
    pid: int
    monitor: subprocess.Popen[bytes] | None = None

    def leave(self, *, by_itself: bool = True, seconds: float = END_SECONDS) -> None:
        """Leave the job; the last process of the node waits until the monitor has finished.

        Args:
            by_itself: whether the script ended by itself, not by a signal; end markers are written only then.
            seconds: the longest wait.
        """
        if os.getpid() != self.pid:
            return  # a forked child runs its parent's exit functions
        root, node = Path(self.task.root), self.task.node
        registry = ProcessRegistry(root, node)
        registry.leave(self.pid, by_itself=by_itself)
        if registry.living():
            return
        lock, began, noticed, watch = NodeLock(root, node), time.monotonic(), False, StopWatch()
        if self.monitor is not None and lock.signer() == self.monitor.pid:
            self.monitor.send_signal(WAKE)  # it would look after this process once a second only
        while lock.is_held() and not self._has_ended():
            waited = time.monotonic() - began
            monitor = self.monitor.pid if self.monitor is not None else lock.signer()
            if monitor is not None and watch.is_over(monitor):
                logger.warning(
                    "sm-profiler: not waiting for the monitor, process %d, which is stopped; files are kept in %s",
                    monitor, root,
                )  # fmt: skip
                return
            if not self.task.destination and waited > LOCAL_SECONDS:
                logger.warning(
                    "sm-profiler: not waiting for the monitor, which does not end; files are kept in %s", root
                )
                return
            if waited > seconds:
                logger.warning("sm-profiler: the last files are not uploaded yet; they are kept in %s", root)
                return
            if waited > NOTICE_SECONDS and not noticed:
                noticed = True
                logger.warning("sm-profiler: uploading the last files to %s", self.task.destination or root)
            time.sleep(POLL_SECONDS)
        if self._has_ended() and self.monitor is not None and self.monitor.returncode:
            logger.warning("sm-profiler: the monitor ended unexpectedly; files not uploaded yet are kept in %s", root)

    def _has_ended(self) -> bool:
        return self.monitor is not None and self.monitor.poll() is not None


def join(task: Task, environment: Mapping[str, str] = os.environ) -> Registration:
    """Register this process as one of the job's, and start the monitor unless it is running on this node.

    Raises:
        ProfilerError: the folder cannot be written, or no process can be started.
    """
    root = Path(task.root)
    registration = Registration(task, os.getpid())
    try:
        with entry_lock(root, task.node):
            registry, lock = ProcessRegistry(root, task.node), NodeLock(root, task.node)
            is_first = lock.acquire()
            try:
                if is_first:
                    registry.forget(registry.dead())  # of an earlier attempt
                    if (task.job or task.destination) and set_aside_other_job(root, task.job or task.destination):
                        logger.info("sm-profiler: the profile of an earlier job in %s was set aside", root)
                registry.register(registration.pid)
                if is_first:
                    registration.monitor = _start(task, lock, environment)
            finally:
                lock.release()  # the child holds it now
    except OSError as error:
        raise ProfilerError(f"{error.filename or root}: {error.strerror or error}") from None
    return registration


def _start(task: Task, lock: NodeLock, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    arguments = [str(lock.fd), task.to_json()]
    return start_module("sm_profiler.monitor.agent", arguments, environment=environment, pass_fds=(lock.fd,))
