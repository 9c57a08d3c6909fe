"""The monitor's process: samples the machine and uploads files until the job ends.

    python -m sm_profiler.monitor.agent LOCK_FD TASK_JSON

`sm_profiler.monitor.start` starts it with the node's lock held. It watches the job's processes: the end of the
first is noticed at once, and the others are checked once a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from sm_profiler import threads
from sm_profiler.config import load_profile
from sm_profiler.descriptors import open_regular
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.formats.layout import (
    END_MARKERS,
    FRAMEWORK,
    IGNORED_FOLDER,
    SYSTEM,
    is_ignored,
)
from sm_profiler.formats.process_end import KILLED, OUT_OF_MEMORY, STOPPED
from sm_profiler.formats.trace_recovery import (
    are_traces_held,
    is_recorded_since,
    record_vanished,
    recover_loading,
    recover_traces,
)
from sm_profiler.formatting import size
from sm_profiler.limits import oom_kills
from sm_profiler.monitor.board import OF_STEPS, Board, Instrument, StepCounter, job_labels, name_of_folder
from sm_profiler.monitor.exit_link import ExitDesk
from sm_profiler.monitor.left_profile import mark_end
from sm_profiler.monitor.node_state import NodeLock, ProcessRegistry, entry_lock
from sm_profiler.monitor.place import EARLIER
from sm_profiler.monitor.sampler import MAX_INTERVAL_MS, MIN_INTERVAL_MS, Sampler, machine_sources
from sm_profiler.monitor.scratch import remove_left
from sm_profiler.monitor.task import Task
from sm_profiler.monitor.uploader import Uploader, open_destination
from sm_profiler.printable import logger_for, printable
from sm_profiler.processes import Detached
from sm_profiler.settings import (
    DELETE_UPLOADED,
    LOCAL_MAX,
    METRICS_ADDRESS,
    METRICS_OTLP,
    METRICS_PORT,
    METRICS_TARGETS,
)
from sm_profiler.storage import FileInfo, LocalStorage
from sm_profiler.threads import SignalEvent, StopEvent, unblock_signals

if TYPE_CHECKING:
    from sm_profiler.storage.s3 import S3Storage

logger = logger_for("sm_profiler")

DEFAULT_BYTES, LEAST_DEFAULT_BYTES = 20 * 10**9, 10**9
SHARE_OF_DISK = 10  # by default, at most this fraction
SPACE_SECONDS = 60.0  # between two checks of the space
LAST_PUSH_MS = 5000  # for the last values, at the end of a job
KEPT = 0.9  # share of the limit that is left, so that not every check removes something


def limit_of(root: Path, environment: Mapping[str, str] = os.environ) -> int:
    """Return the limit in bytes; 0 for none. A value that is no size is replaced by the default."""
    given: int | None = LOCAL_MAX.read_or_default(environment)
    if given is not None:
        return given
    try:
        share = shutil.disk_usage(root).total // SHARE_OF_DISK
    except OSError:
        share = DEFAULT_BYTES
    return min(DEFAULT_BYTES, max(share, LEAST_DEFAULT_BYTES))


@attrs.define(eq=False)
class LocalSpace:
    """Keeps a profile's folder within its limit.

    Uploaded files are removed first, then those of earlier jobs in the same folder, then the oldest of this job. What no
    bucket has is emptied instead of removed, so that reports count it.

    Attributes:
        root: the profile's folder.
        limit: bytes; 0 for none.
        deletes: remove files as soon as they are uploaded.
        take_uploaded: given a file, returns whether it is uploaded, and forgets it if it is.
        lost: number of files that were emptied.
        lost_bytes: their size.
    """

    root: Path
    limit: int
    deletes: bool = False
    take_uploaded: Callable[[FileInfo], bool] = lambda _: False
    lost: int = 0
    lost_bytes: int = 0

    def check(self) -> None:
        """Remove what is due."""
        earlier = self._files(f"{IGNORED_FOLDER}/{EARLIER}/")
        own = [info for folder in (SYSTEM, FRAMEWORK) for info in self._files(f"{folder}/")]
        total = sum(info.size for info in (*earlier, *own))
        goal = self.limit * KEPT if self.limit and total > self.limit else float("inf")
        kept = []
        for info in own:
            if is_ignored(info.key) or info.key in END_MARKERS or not info.size:
                continue
            if (self.deletes or total > goal) and self.take_uploaded(info):
                total -= self._remove(info)
            else:
                kept.append(info)
        lost = self.lost
        for info in (*earlier, *kept):
            if total <= goal:
                break
            total -= self._empty(info) if info.size else 0
        if self.lost > lost and not lost:
            logger.warning(
                "sm-profiler: the profile in %s has reached its limit of %s (%s): the oldest files are emptied",
                self.root, size(self.limit), LOCAL_MAX.name,
            )  # fmt: skip

    def _files(self, prefix: str) -> list[FileInfo]:
        """Return the files of a folder, the oldest first."""
        try:
            found = list(LocalStorage(self.root).list(prefix))
        except SourceError:
            return []
        return sorted(found, key=lambda info: (info.mtime, info.key))

    def _remove(self, info: FileInfo) -> int:
        with contextlib.suppress(OSError):
            (self.root / info.key).unlink()
            return info.size
        return 0

    def _empty(self, info: FileInfo) -> int:
        """Empty a file without following links."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.root / info.key, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK))
            self.lost += 1
            self.lost_bytes += info.size
            return info.size
        return 0


LOOK_SECONDS = 1.0


@attrs.define(eq=False)
class LiveProfile:
    """The configuration of a running job, which a file may change; safe to use from several threads.

    A file that is gone, or that is half written, changes nothing.

    Attributes:
        config: the file; "" for a configuration that cannot change.
        hook_on: whether steps are recorded, as the job began.
        clock: monotonic clock in seconds.
    """

    config: str
    hook_on: bool = True
    clock: Callable[[], float] = time.monotonic
    _disabled: bool = attrs.field(default=False, init=False)
    _looked: float = attrs.field(default=float("-inf"), init=False)
    _changed: int = attrs.field(default=0, init=False)
    _failed: int = attrs.field(default=0, init=False)

    def is_off(self) -> bool:
        """Return whether `DisableProfiler` is true."""
        self._look()
        return self._disabled

    def has(self, instrument: Instrument) -> bool:
        """Return whether a metric is measured: one that is not must not look like a training that has stopped."""
        self._look()
        return not self._disabled and (self.hook_on or instrument not in OF_STEPS)

    def _look(self) -> None:
        if not self.config or self.clock() - self._looked < LOOK_SECONDS:
            return
        self._looked = self.clock()
        try:
            changed = Path(self.config).stat().st_mtime_ns
            if changed != self._changed:
                with open_regular(self.config) as file:
                    profile = load_profile(file.read().decode("utf-8-sig"))
                self._disabled, self.hook_on, self._changed = profile.disabled, profile.hook_on, changed
            self._failed = 0
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            self._failed += 1
            if self._failed == 2 and not self.hook_on:  # no longer half a file; a hook writes it into its own log
                problem = str(error).partition("\n")[0]
                logger.warning("sm-profiler: the changed configuration %s is ignored: %s", self.config, problem)


@attrs.define(eq=False)
class SwitchedOff:
    """Is set while another event is, or while the configuration switches the profiler off."""

    stop: StopEvent
    profile: LiveProfile

    def is_set(self) -> bool:
        """Return whether to stop."""
        return self.stop.is_set() or self.profile.is_off()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the other event is set, for `timeout` seconds at most; return whether to stop."""
        return self.stop.wait(timeout) or self.profile.is_off()


CHECK_SECONDS = 1.0
RECONNECT_SECONDS = 10.0
RESTART_SECONDS = 5.0
RECOVER_SECONDS = 10.0  # between two looks for files of killed ranks in a job that goes on
# How long to go on uploading after the script has ended (its last process waits), after SIGTERM (SageMaker kills the
# container 120 s later), and after the job was killed (no process waits).
END_SECONDS, TERM_SECONDS, KILLED_SECONDS = 60.0, 100.0, 20.0
# ... and after the script has ended if no upload has ever succeeded, for example without credentials.
UNREACHED_SECONDS = 5.0
MARKER_SECONDS = 10.0
CLOSING_SECONDS = 10.0  # wait for the kernel to close the files of killed processes
CLOSING_POLL_SECONDS = 0.05


@attrs.define(eq=False)
class Agent:
    """The monitor and uploader of one node.

    Attributes:
        task: what to do.
        lock: the node's lock, held.
        registry: the job's processes on this node.
        connect: returns the destination; may fail.
        sampler: returns the sampler.
        clock: monotonic clock in seconds.
        sleep: waits for some seconds.
        wake: set to check the job's processes at once.
        terminated: whether SIGTERM has arrived.
        exits: takes the exit codes of processes that wait for the monitor; None if none can.
        profile: what the job's configuration asks for by now.
    """

    task: Task
    lock: NodeLock
    registry: ProcessRegistry
    connect: Callable[[], S3Storage]
    sampler: Callable[[], Sampler]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    wake: SignalEvent = attrs.field(factory=SignalEvent)
    terminated: bool = False
    exits: ExitDesk | None = None
    profile: LiveProfile = attrs.field(init=False)
    _uploader: Uploader | None = attrs.field(default=None, init=False)
    _space: LocalSpace = attrs.field(init=False)
    _cannot_upload: bool = attrs.field(default=False, init=False)
    _reported_client: bool = attrs.field(default=False, init=False)
    _reported_left: bool = attrs.field(default=False, init=False)
    _oom_kills: int | None = attrs.field(factory=oom_kills, init=False)
    _started_s: float = attrs.field(factory=time.time, init=False)

    def __attrs_post_init__(self) -> None:
        self.profile = LiveProfile(self.task.config, self.task.hook)
        self._space = local_space(self.root, os.environ)
        self._space.take_uploaded = self._take_uploaded

    @property
    def root(self) -> Path:
        """The folder with the files."""
        return Path(self.task.root)

    def terminate(self) -> None:
        """End soon; may be called by a signal handler."""
        self.terminated = True
        self.wake.set()

    def run(self) -> None:
        """Sample and upload until the job ends, then release the lock."""
        if self.task.first:
            for key in END_MARKERS:  # of an earlier attempt
                with contextlib.suppress(OSError):
                    (self.root / key).unlink()
        while True:
            stop = threading.Event()
            threads = [threading.Thread(target=keep_running, args=(work, stop), daemon=True) for work in self._work()]
            for thread in threads:
                thread.start()
            self._watch()
            deadline = self.clock() + self._seconds_left()
            if self._uploader is not None:
                self._uploader.deadline = deadline
            stop.set()
            for thread in threads:
                thread.join(max(deadline - self.clock(), 0.0))
            self._finish(deadline)
            if self.exits is not None:
                self.exits.release()
            if self._may_leave():
                return

    def _take_uploaded(self, info: FileInfo) -> bool:
        return self._uploader is not None and self._uploader.take_uploaded(info)

    def _keep_space(self, stop: threading.Event) -> None:
        """Check the space on the disk once a minute until `stop` is set."""
        while not stop.wait(SPACE_SECONDS):
            self._space.check()

    def _work(self) -> list[Callable[[threading.Event], None]]:
        sampling = [self._sample] if self.task.interval_ms else []
        return [*sampling, *([self._upload] if self.task.destination else []), self._keep_space]

    def _sample(self, stop: threading.Event) -> None:
        """Sample until `stop` is set, while the job's configuration does not switch the profiler off."""
        switch = SwitchedOff(stop, self.profile)
        while not stop.is_set():
            if not switch.is_set():
                self.sampler().run(switch)
            stop.wait(CHECK_SECONDS)

    def _upload(self, stop: threading.Event) -> None:
        """Upload until `stop` is set; the client is created in this thread because loading boto3 would delay sampling."""
        while not self._connected() and not self._cannot_upload and not stop.wait(RECONNECT_SECONDS):
            pass
        if self._uploader is not None:
            self._uploader.deadline = float("inf")
            self._uploader.check()
            self._uploader.run(stop)

    def _connected(self) -> bool:
        if self._uploader is None and not self._cannot_upload:
            try:
                self._uploader = Uploader(self.root, self.connect(), self.clock)
            except SourceError as error:  # the region or the credentials may be unavailable for a moment
                if not self._reported_client:
                    self._reported_client = True
                    logger.warning("sm-profiler: %s (retrying)", error)
            except ProfilerError as error:
                self._cannot_upload = True
                logger.warning("sm-profiler: uploads are off: %s", error)
        return self._uploader is not None

    def _watch(self) -> None:
        """Wait until the job's processes have ended, or SIGTERM arrives."""
        seen: set[int] = set()
        dead: set[str] = set()
        recovered = self.clock()
        while not self.terminated and (living := set(self.registry.living())):
            if living - seen:
                # Launchers restart ranks: processes that were dead before do not decide how the job ends.
                self.registry.forget(dead)
                for pid in living - seen if not seen else ():
                    threading.Thread(target=self._wake_at_end, args=(pid,), daemon=True).start()
            seen, dead = seen | living, self.registry.dead()
            if self.clock() - recovered >= RECOVER_SECONDS:  # a rank that is gone is shown while the others wait for it
                recover_traces(self.root, self.task.node, stopped=False)
                recovered = self.clock()
            self.wake.wait(CHECK_SECONDS)
            self.wake.clear()

    def _wake_at_end(self, pid: int) -> None:
        """Check the job's processes as soon as one of the first of them ends."""
        Detached(pid).wait()
        self.wake.set()

    def _seconds_left(self) -> float:
        if self.terminated:
            return TERM_SECONDS
        if not self.registry.all_ended():
            return KILLED_SECONDS
        return END_SECONDS if self._uploader is not None and self._uploader.reached else UNREACHED_SECONDS

    def _finish(self, deadline: float) -> None:
        """Upload the remaining files, and write the end markers if nothing more can follow."""
        ended, self._reported_left = self.registry.all_ended(), False
        complete = self._upload_rest(deadline)
        with contextlib.suppress(Exception):  # the end of a job is more important
            self._space.check()
        if self._space.lost:
            logger.warning(
                "sm-profiler: %d files (%.1f MB) of the profile were emptied to keep it within its limit",
                self._space.lost, self._space.lost_bytes / 1e6,
            )  # fmt: skip
        if self.exits is not None and (codes := self.exits.let_go()):
            recover_traces(self.root, self.task.node, stopped=self.terminated, exiting=codes)
            complete = self._drain(deadline) and complete
        # SIGTERM may arrive at any moment of this, and then the job may be resumed elsewhere.
        if not (ended and complete and self.task.first) or self.terminated or self.registry.living():
            return
        mark_end(self.root)
        if self._uploader is not None:
            until = self.clock() + MARKER_SECONDS
            while not self.terminated and not self._uploader.put_markers() and self.clock() < until:
                self.wake.wait(CHECK_SECONDS)

    def _upload_rest(self, deadline: float) -> bool:
        """Upload until no file is left; after SIGTERM until the job's processes, which may still write, have ended too."""
        while True:
            living = self.registry.living()
            if not living:
                self._recover(deadline)
                self._record_vanished()
            complete = self._drain(deadline)
            if not (self.terminated and living) or self.clock() >= deadline:
                return complete
            self.wake.wait(CHECK_SECONDS)
            self.wake.clear()

    def _recover(self, deadline: float) -> None:
        """Complete the open files of processes that were killed, once these are closed."""
        until = min(deadline, self.clock() + CLOSING_SECONDS)
        recover_traces(self.root, self.task.node, stopped=self.terminated)
        while are_traces_held(self.root, self.task.node) and self.clock() < until:
            self.sleep(CLOSING_POLL_SECONDS)
            recover_traces(self.root, self.task.node, stopped=self.terminated)

    def _record_vanished(self) -> None:
        """Write how processes ended of an attempt of which nothing else is recorded, as of a crash while it starts."""
        if not self.task.hook or is_recorded_since(self.root, self._started_s):
            return
        state = STOPPED if self.terminated else KILLED if oom_kills() == self._oom_kills else OUT_OF_MEMORY
        asked_to_stop = recover_loading(self.root, self.task.node)
        for pid in set(self.registry.vanished()) - asked_to_stop:
            with contextlib.suppress(OSError):
                record_vanished(self.root, self.task.node, pid, state, time.time())

    def _drain(self, deadline: float) -> bool:
        if not self.task.destination:
            return True
        self._connected()
        uploader = self._uploader
        if uploader is None:
            return False
        uploader.wait = self.sleep
        last = self.clock() + END_SECONDS if self.registry.all_ended() else deadline
        if uploader.drain(deadline):
            return True
        # The first success may come late: a short job, or a network that was down until now.
        if uploader.reached and last > deadline and uploader.drain(last):
            return True
        if not self._reported_left:  # the exit codes that come after it are one file more
            self._reported_left = True
            left = uploader.remaining()
            logger.warning(
                "sm-profiler: %d file%s could not be uploaded to %s; kept in %s: %s",
                left, "" if left == 1 else "s", uploader.destination.uri, self.root, uploader.reason,
            )  # fmt: skip
        return False

    def _may_leave(self) -> bool:
        """Release the lock and return True, unless a process has joined meanwhile."""
        try:
            with entry_lock(self.root, self.task.node):
                if self.registry.living() and not self.terminated:
                    return False
                if not self.terminated:
                    self.registry.forget(self.registry.dead())
                self.lock.sign_off()
                self.lock.release()
        except OSError:
            self.lock.sign_off()
            self.lock.release()
        return True


def local_space(root: Path, environment: Mapping[str, str]) -> LocalSpace:
    """Return what keeps the profile within its limit."""
    return LocalSpace(root, limit_of(root, environment), deletes=DELETE_UPLOADED.read_or_default(environment))


def serve_metrics(
    root: Path, node: str, environment: Mapping[str, str], job: str = "", *, uploads: bool = False
) -> Board | None:
    """Show the newest values to Prometheus and OpenTelemetry as the environment asks for; None if it asks for neither.

    A failure is one line in the log.
    """
    port, pushes = METRICS_PORT.read_or_default(environment), METRICS_OTLP.read_or_default(environment)
    if port is None and not pushes:
        return None
    claimed = name_of_folder(root)
    name = claimed if uploads else root.name  # in S3, and of a folder that may have been given
    labels = job_labels(job, environment, claimed)
    if claimed and name != dict(labels)["training_job"]:
        labels += (("profile", name),)  # what the fleet names the job
    board = Board(node, time.monotonic, StepCounter(root, node), labels)
    ends: list[Callable[[], object]] = []
    if port is not None:
        try:
            ends.append(_listen(board, port, environment))
        except ProfilerError as error:
            logger.warning("sm-profiler: no metrics for Prometheus: %s", printable(str(error)))
    if pushes:
        from sm_profiler.monitor.exposition import start_telemetry  # few jobs push, and few are scraped

        try:
            ends.append(partial(start_telemetry(board).shutdown, LAST_PUSH_MS))
        except Exception as error:  # also what the SDK finds wrong with its variables
            logger.warning("sm-profiler: no metrics for OpenTelemetry: %s", printable(str(error)))
    board.ends = tuple(ends)
    return board if ends else None


def _listen(board: Board, port: int, environment: Mapping[str, str]) -> Callable[[], object]:
    """Open the port for Prometheus; return what withdraws its announcement."""
    from sm_profiler.monitor.exposition import Exposition

    address = METRICS_ADDRESS.read(environment)
    metrics = Exposition(address, port, board.values)
    if metrics.server_port != port:
        logger.warning("sm-profiler: metrics for Prometheus at %s:%d", address, metrics.server_port)
    if folder := METRICS_TARGETS.read(environment):
        metrics.announce(Path(folder), dict(board.labels).get("host", "localhost"))
    return metrics.withdraw


def keep_running(work: Callable[[threading.Event], None], stop: threading.Event) -> None:
    """Run `work`, and restart it if it fails; the first failure is reported in one line."""
    reported = False
    while True:
        try:
            work(stop)
        except Exception as error:  # an internal error must not leave a job without samples and uploads
            if not reported:
                reported = True
                logger.warning("sm-profiler: restarting after %s: %s", type(error).__name__, error)
            if not stop.wait(RESTART_SECONDS):
                continue
        return


def main(arguments: list[str]) -> None:
    """Run with the arguments of the command line."""
    unblock_signals()
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    fd, task = int(arguments[0]), Task.from_json(arguments[1])
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    with contextlib.suppress(OSError):  # undo the pinning of a rank whose core should be its own
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    root = Path(task.root)
    lock = NodeLock(root, task.node, fd)
    interval_s = min(max(task.interval_ms, MIN_INTERVAL_MS), MAX_INTERVAL_MS) / 1000
    board = serve_metrics(root, task.node, os.environ, task.job, uploads=bool(task.destination))
    agent = Agent(
        task,
        lock,
        ProcessRegistry(root, task.node),
        lambda: open_destination(task.destination, task.kms_key_id or None),
        lambda: Sampler(root, task.node, interval_s, machine_sources(task.interface), board=board),
    )
    if board is not None:
        board.has = agent.profile.has
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the script
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: agent.terminate())
    agent.exits = ExitDesk(root, task.node)
    agent.exits.open()
    agent.wake.set_on(signal.SIGUSR1)
    lock.sign()  # from now on, SIGUSR1 wakes this process
    threads.start(remove_left, name="sm-profiler-left")
    agent.run()
    agent.exits.close()
    for end in board.ends if board is not None else ():
        with contextlib.suppress(Exception):  # the collector may be away
            end()
    logging.shutdown()
    os._exit(0)  # requests that hang must not keep this process alive


if __name__ == "__main__":
    main(sys.argv[1:])
