"""The monitor's own process: samples the machine, uploads files, and goes when the job goes.

    python -m sm_profiler.monitor.agent LOCK_FD TASK_JSON

It is started by `sm_profiler.monitor.start`, holds the node's lock from the start, and watches the processes of the job: the
kernel tells it at once when its parent has died, and a look once a second tells of the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from sm_profiler.errors import ProfilerError
from sm_profiler.formats.layout import END_MARKERS
from sm_profiler.formats.trace_writer import recover_traces
from sm_profiler.monitor.destination import Destination, S3Destination
from sm_profiler.monitor.lock import NodeLock, door
from sm_profiler.monitor.process_registry import Members
from sm_profiler.monitor.sampler import LONGEST_MS, SHORTEST_MS, Sampler, machine_families
from sm_profiler.monitor.task import Task
from sm_profiler.monitor.uploader import Uploader
from sm_profiler.printable import logger_for

logger = logger_for("sm_profiler")

PR_SET_PDEATHSIG = 1
LOOK_SECONDS = 1.0
CONNECT_AGAIN_SECONDS = 10.0
AGAIN_SECONDS = 5.0
# How long to go on uploading: after the script's end (its last process waits), after SIGTERM (SageMaker kills 120 s later),
# and after the job was killed, when nobody waits any more.
END_SECONDS, TERM_SECONDS, KILLED_SECONDS = 60.0, 100.0, 20.0


@attrs.define(eq=False)
class Agent:
    """One node's monitor and uploader.

    Attributes:
        task: what to do.
        lock: the node's lock, held.
        members: the job's processes on this node.
        connect: makes the destination; may fail.
        sampler: makes the sampler.
        clock: seconds, never running backwards.
        wake: set to look at once.
        terminated: SIGTERM came.
    """

    task: Task
    lock: NodeLock
    members: Members
    connect: Callable[[], Destination]
    sampler: Callable[[], Sampler]
    clock: Callable[[], float] = time.monotonic
    wake: threading.Event = attrs.field(factory=threading.Event)
    terminated: bool = False
    _uploader: Uploader | None = attrs.field(default=None, init=False)
    _hopeless: bool = attrs.field(default=False, init=False)

    @property
    def root(self) -> Path:
        """The folder with the files."""
        return Path(self.task.root)

    def terminate(self) -> None:
        """Come to an end, as SIGTERM says."""
        self.terminated = True
        self.wake.set()

    def run(self) -> None:
        """Until the job is over; the lock is given back at the end."""
        if self.task.first:
            for key in END_MARKERS:  # of an attempt before this one
                (self.root / key).unlink(missing_ok=True)
        while True:
            stop = threading.Event()
            threads = [threading.Thread(target=go_on, args=(work, stop), daemon=True) for work in self._work()]
            for thread in threads:
                thread.start()
            self._watch()
            stop.set()
            for thread in threads:
                thread.join()
            self._finish()
            if self._may_go():
                return

    def _work(self) -> list[Callable[[threading.Event], None]]:
        work: list[Callable[[threading.Event], None]] = []
        if self.task.interval_ms:
            work.append(lambda stop: self.sampler().run(stop))
        if self.task.destination:
            work.append(self._upload)
        return work

    def _upload(self, stop: threading.Event) -> None:
        """Make the client here: loading boto3 takes a while, and sampling should not wait for it."""
        while not self._connected() and not self._hopeless and not stop.wait(CONNECT_AGAIN_SECONDS):
            pass
        if self._uploader is not None:
            self._uploader.run(stop)

    def _connected(self) -> bool:
        if self._uploader is None and not self._hopeless:
            try:
                self._uploader = Uploader(self.root, self.connect())
            except ProfilerError as error:
                self._hopeless = True
                logger.warning("sm-profiler: nothing is uploaded: %s", error)
            except Exception as error:  # noqa: BLE001 - regions and credentials can be wrong for a moment
                logger.warning("sm-profiler: no S3 client: %s", error)
        return self._uploader is not None

    def _watch(self) -> None:
        known: set[int] = set()
        dead: set[str] = set()
        while not self.terminated and (living := set(self.members.living())):
            if living - known:
                # Who was dead before these came does not decide how the job ends: launchers start ranks again.
                self.members.forget(dead)
            known, dead = known | living, self.members.dead()
            self.wake.wait(LOOK_SECONDS)
            self.wake.clear()

    def _finish(self) -> None:
        """Upload what is left; then say that nothing more will come, if that is so."""
        ended = self.members.all_ended()
        seconds = TERM_SECONDS if self.terminated else END_SECONDS if ended else KILLED_SECONDS
        all_up = self._last_files(self.clock() + seconds)
        # SIGTERM may come at any moment of this, and then the job may be continued elsewhere.
        if not (ended and all_up and self.task.first) or self.terminated or self.members.living():
            return
        for key in END_MARKERS:
            with contextlib.suppress(OSError):
                (self.root / key).parent.mkdir(parents=True, exist_ok=True)
                (self.root / key).touch()
        if self._uploader is not None:
            until = self.clock() + END_SECONDS / 6
            while not self.terminated and not self._uploader.put_markers() and self.clock() < until:
                self.wake.wait(LOOK_SECONDS)

    def _last_files(self, deadline: float) -> bool:
        """Upload until nothing is left; after SIGTERM until the job's processes are gone too, which may write to the last."""
        while True:
            living = self.members.living()
            if not living:
                recover_traces(self.root, self.task.node)
            all_up = self._drain(deadline)
            if not (self.terminated and living) or self.clock() >= deadline:
                return all_up
            self.wake.wait(LOOK_SECONDS)
            self.wake.clear()

    def _drain(self, deadline: float) -> bool:
        if not self.task.destination:
            return True
        self._connected()
        uploader = self._uploader
        if uploader is None:
            return False
        uploader.wait = time.sleep
        if uploader.drain(deadline):
            return True
        left = len(uploader.pending())
        logger.warning(
            "sm-profiler: %d files could not be uploaded to %s and stand in %s: %s",
            left, uploader.destination.uri, self.root, uploader.error,
        )  # fmt: skip
        return False

    def _may_go(self) -> bool:
        """Leave, unless a process has come meanwhile."""
        try:
            with door(self.root, self.task.node):
                if self.members.living() and not self.terminated:
                    return False
                if not self.terminated:
                    self.members.forget(self.members.dead())
                self.lock.release()
        except OSError:
            self.lock.release()
        return True


def go_on(work: Callable[[threading.Event], None], stop: threading.Event) -> None:
    """Do the work; whatever goes wrong costs one line, and it is begun again a little later."""
    said = False
    while True:
        try:
            work(stop)
        except Exception as error:  # noqa: BLE001 - an error of ours must not leave a job without samples and uploads
            if not said:
                said = True
                logger.warning("sm-profiler: begun again after %s: %s", type(error).__name__, error)
            if not stop.wait(AGAIN_SECONDS):
                continue
        return


def wake_when_parent_dies(number: int) -> None:
    """Let the kernel send this process a signal when the thread that started it is gone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def main(words: list[str]) -> None:
    """Run with the words of the command line."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    fd, task = int(words[0]), Task.from_json(words[1])
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    with contextlib.suppress(OSError):  # a rank may be pinned to a core that should be its own
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    root = Path(task.root)
    members = Members(root, task.node)
    interval_s = min(max(task.interval_ms, SHORTEST_MS), LONGEST_MS) / 1000
    agent = Agent(
        task,
        NodeLock(root, task.node, fd),
        members,
        lambda: S3Destination(task.destination, task.kms_key_id or None),
        lambda: Sampler(root, task.node, interval_s, machine_families(task.interface)),
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the script, which decides what becomes of it
    signal.signal(signal.SIGTERM, lambda *_: agent.terminate())
    signal.signal(signal.SIGHUP, lambda *_: agent.terminate())
    signal.signal(signal.SIGUSR1, lambda *_: agent.wake.set())
    wake_when_parent_dies(signal.SIGUSR1)
    agent.run()


if __name__ == "__main__":
    main(sys.argv[1:])
