"""Joining and leaving a job from one of its processes: the first starts the node's monitor, the last waits for it to finish."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import attrs

from sm_profiler import threads
from sm_profiler.errors import ProfilerError
from sm_profiler.formats.layout import IGNORED_FOLDER
from sm_profiler.identity import host_id
from sm_profiler.monitor.exit_link import ExitLink
from sm_profiler.monitor.left_profile import keep_task
from sm_profiler.monitor.node_state import NodeLock, ProcessRegistry, entry_lock
from sm_profiler.monitor.place import EARLIER, read_claim, set_aside_other_job
from sm_profiler.monitor.task import Task
from sm_profiler.printable import logger_for
from sm_profiler.processes import Detached, StopWatch, start_detached

logger = logger_for("sm_profiler")

END_SECONDS = 60.0  # how long the last process of a job waits for the upload of the last files
LOCAL_SECONDS = 15.0  # the same if nothing is uploaded: the monitor only writes its last minute
NOTICE_SECONDS = 5.0  # wait after which it reports what it waits for
POLL_SECONDS = 0.02
RESTARTS = 3  # of a monitor that is killed, as by the kernel when memory is short
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
    monitor: subprocess.Popen[bytes] | Detached | None = None
    _leaving: bool = attrs.field(default=False, init=False)

    def keep_monitor(self, environment: Mapping[str, str]) -> None:
        """Start the monitor again if it is killed, a few times, until this process leaves; runs in a thread."""
        for _ in range(RESTARTS):
            if not self._was_killed():
                return
            try:
                again = self._start_again(environment)
            except OSError as error:
                logger.warning("sm-profiler: the monitor cannot be started again: %s", error)
                return
            if not again:
                return  # another process of the job was quicker
            logger.warning("sm-profiler: the monitor ended unexpectedly and was started again")
        if self._was_killed():
            logger.warning("sm-profiler: the monitor ended unexpectedly and is not started again; %s", self._left())

    def _was_killed(self) -> bool:
        """Wait for the monitor's end; return whether it came before the job's."""
        if self.monitor is None:
            return False
        self.monitor.wait()
        return not self._leaving and not self._is_done()

    def _is_done(self) -> bool:
        """Return whether the monitor, which has ended, had done its work."""
        monitor, lock = self.monitor, NodeLock(Path(self.task.root), self.task.node)
        return monitor is not None and lock.is_done(monitor.pid)

    def _start_again(self, environment: Mapping[str, str]) -> bool:
        root, node = Path(self.task.root), self.task.node
        with entry_lock(root, node):
            lock = NodeLock(root, node)
            if not lock.acquire():
                return False
            try:
                self.monitor = _start(self.task, lock, environment)
            finally:
                lock.release()
        return True

    def _left(self) -> str:
        """Describe the way of the files that are not uploaded."""
        root = shlex.quote(self.task.root)
        return f"upload the rest with: sm-profiler upload {root}" if self.task.destination else f"files are in {root}"

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
        self._leaving = True
        link = ExitLink.open(root, node)  # while the monitor does not end yet
        registry.leave(self.pid, by_itself=by_itself)
        if registry.living():
            if link is not None:
                link.close()
            return
        lock, began, noticed, watch = NodeLock(root, node), time.monotonic(), False, StopWatch()
        if self.monitor is not None and lock.signer() == self.monitor.pid:
            self.monitor.send_signal(WAKE)  # it would look after this process once a second only
        while lock.is_held() and not self._has_ended():
            if link is not None and link.may_exit():
                with contextlib.suppress(OSError):
                    link.wait_in_exit()
                return
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
                logger.warning("sm-profiler: the last files are not uploaded yet; %s", self._left())
                return
            if waited > NOTICE_SECONDS and not noticed:
                noticed = True
                logger.warning("sm-profiler: uploading the last files to %s", self.task.destination or root)
            time.sleep(POLL_SECONDS)
        if self._has_ended() and not self._is_done():
            logger.warning("sm-profiler: the monitor ended unexpectedly; %s", self._left())

    def leave_at_once(self) -> None:
        """Record that the process ends without exit functions, by `os._exit`."""
        if os.getpid() == self.pid:
            self._leaving = True
            ProcessRegistry(Path(self.task.root), self.task.node).leave(self.pid, by_itself=False)

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
                    # A folder without an owner is that of a container, which runs one job after another.
                    name = task.job or task.destination
                    if name and read_claim(root) is None and set_aside_other_job(root, name):
                        logger.warning(
                            "sm-profiler: the profile of an earlier job was moved to %s",
                            root / IGNORED_FOLDER / EARLIER,
                        )
                registry.register(registration.pid, host_id(in_container=False) if task.hook else "")
                if is_first:
                    registration.monitor = _start(task, lock, environment)
            finally:
                lock.release()  # the child holds it now
    except OSError as error:
        raise ProfilerError(f"{error.filename or root}: {error.strerror or error}") from None
    if registration.monitor is not None:
        keep_task(task)
        threads.start(registration.keep_monitor, environment, name="sm-profiler-monitor")
    return registration


def _start(task: Task, lock: NodeLock, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | Detached:
    arguments = [str(lock.fd), task.to_json()]
    return start_detached("sm_profiler.monitor.agent", arguments, environment=environment, pass_fds=(lock.fd,))
