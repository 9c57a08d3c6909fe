"""The rule image's program: the rule runner, with the whole report as its output.

If the job has several hosts, a Dask cluster spans them: the scheduler runs on the first host, workers on all of them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

from sm_profiler.container import PROCESSING_RESOURCE_CONFIG, Resources, read_resources
from sm_profiler.diagnosis.classes import Class
from sm_profiler.errors import SourceError
from sm_profiler.executors.pools import CONNECT_S, Pool, check_versions, connect, end_process, pool_of
from sm_profiler.folding import Slice
from sm_profiler.metrics.scaling.folding import fold_with
from sm_profiler.printable import logger_for
from sm_profiler.processes import processors, start_module
from sm_profiler.report.build import JobInfo, MetricFolds, assemble
from sm_profiler.report.write import write_report
from sm_profiler.rules.rule_job import Status, log_to_stdout
from sm_profiler.rules.runner import Judgement, ReportJob, main
from sm_profiler.settings import SCHEDULER
from sm_profiler.source import ProfileSource
from sm_profiler.threads import SignalEvent

PORT = 8786
JOIN_S = 300.0  # from one host's start to the others': an image is pulled in between
POLL_S = 1.0
PING_S = 5.0
log = logger_for("sm_profiler.rules")


def is_possible() -> bool:
    return find_spec("distributed") is not None


def scheduler_address(resources: Resources, environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Return host and port of the scheduler: of the first host, unless the environment names others."""
    return SCHEDULER.read_or_default(environment) or (resources.first_node, PORT)


def workers_here(resources: Resources, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of workers of this host: one for each processor, unless the hosts share this machine."""
    hosts = len(resources.hosts) if SCHEDULER.text(environment) else 1
    return max(processors() // hosts, 1)


class HostCluster:
    """The workers of all hosts, as seen from the first.

    Attributes:
        missing: hosts that had no worker when `join` returned.
    """

    def __init__(self, resources: Resources, scheduler: subprocess.Popen[bytes], stack: ExitStack) -> None:
        self._resources, self._scheduler, self._stack = resources, scheduler, stack
        self.missing: tuple[str, ...] = ()

    def join(self, stopped: Callable[[], bool] = bool) -> Pool:
        """Wait for the workers of all hosts and return them; those that do not come in time are left out.

        Args:
            stopped: called while waiting; True ends it.

        Raises:
            SourceError: there is no scheduler or no worker, or versions differ.
        """
        host, port = scheduler_address(self._resources)
        client = self._connected(f"tcp://{host}:{port}")
        self._stack.callback(client.close)
        self._stack.callback(_end_workers, client)
        wanted = workers_here(self._resources) * len(self._resources.hosts)
        until = time.monotonic() + JOIN_S
        while len(client.nthreads()) < wanted and time.monotonic() < until and not stopped():
            time.sleep(POLL_S)
        check_versions(client)
        joined = {_host_of(str(worker["name"])) for worker in client.scheduler_info(n_workers=-1)["workers"].values()}
        self.missing = tuple(name for name in self._resources.hosts if name not in joined)
        for name in self.missing:
            log.warning("%s has not joined: the others do its work", name)
        return pool_of(client)

    def _connected(self, address: str) -> Any:
        until = time.monotonic() + JOIN_S
        while True:
            try:
                return connect(address, CONNECT_S)
            except SourceError:  # once a second
                if self._scheduler.poll() is not None or time.monotonic() > until:
                    raise


@contextmanager
def open_cluster(resources: Resources) -> Iterator[HostCluster]:
    """Start the scheduler and this host's workers, and end all workers at the end."""
    host, port = scheduler_address(resources)
    with ExitStack() as stack:
        folder = stack.enter_context(_scratch())
        bound = host if SCHEDULER.text() else "0.0.0.0"  # noqa: S104 - the job's own network
        arguments = ["--host", bound, "--port", str(port), "--no-dashboard"]
        scheduler = _start("distributed.cli.dask_scheduler", arguments)
        stack.callback(end_process, scheduler)
        stack.callback(end_process, _start_workers(resources, folder))
        yield HostCluster(resources, scheduler, stack)


def lend(resources: Resources, *, stopped: Callable[[], bool] = bool) -> None:
    """Run workers on another host than the first until that ends; errors are logged.

    Args:
        resources: this host's place in its job.
        stopped: called about once a second; True ends the workers.
    """
    host, port = scheduler_address(resources)
    with _scratch() as folder:
        if not _waited_for(host, port, stopped):
            log.warning("the scheduler at %s:%d cannot be reached: this host has nothing to do", host, port)
            return
        workers, ping = _start_workers(resources, folder), time.monotonic() + PING_S
        try:
            while workers.poll() is None and not stopped():
                with suppress(subprocess.TimeoutExpired):
                    workers.wait(POLL_S)
                if time.monotonic() >= ping:
                    if not _is_listening(host, port):
                        break
                    ping = time.monotonic() + PING_S
        finally:
            end_process(workers)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sm-profiler-dask-", ignore_cleanup_errors=True)


def _start_workers(resources: Resources, folder: str) -> subprocess.Popen[bytes]:
    host, port = scheduler_address(resources)
    return _start(
        "distributed.cli.dask_worker",
        [
            f"tcp://{host}:{port}", "--nworkers", str(workers_here(resources)), "--nthreads", "1", "--no-dashboard",
            "--name", resources.node, "--local-directory", folder, "--death-timeout", str(int(JOIN_S)),
        ],
    )  # fmt: skip


def _start(module: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    quiet = {**os.environ, "DASK_LOGGING__DISTRIBUTED": "warning"}
    return start_module(module, arguments, environment=quiet, new_session=True)


def _host_of(worker: str) -> str:
    """Return the host in a worker's name: Dask appends a number if a host has several."""
    return "-".join(worker.split("-")[:2])


def _end_workers(client: Any) -> None:
    """Have all workers end, those of other hosts too."""
    with suppress(Exception):  # the end of the scheduler ends them as well
        client.shutdown()


def _waited_for(host: str, port: int, stopped: Callable[[], bool]) -> bool:
    until = time.monotonic() + JOIN_S
    while not _is_listening(host, port):
        if stopped() or time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def _is_listening(host: str, port: int) -> bool:
    try:
        with closing(socket.create_connection((host, port), CONNECT_S)):
            return True
    except OSError:
        return False


def run_rules_job(words: Sequence[str]) -> int:
    """Run the rule image's program on this host of a processing job, and return the exit code.

    If the job has several hosts, the first one evaluates and the others lend it their processors. One that does not take
    part is named in the status.
    """
    run = partial(main, words, write_report=write_for_runner, make_folds=make_folds)
    resources = read_resources(path=PROCESSING_RESOURCE_CONFIG)
    if len(resources.hosts) < 2:  # alone
        return run()
    if resources.is_first_node:
        if not is_possible():
            return run(notes=["Only the first host was used: the image has no Dask."])
        notes: list[str] = []
        with open_cluster(resources) as cluster:
            return run(spread=partial(_spread, cluster, notes), notes=notes)
    log_to_stdout()
    if is_possible():
        stop = SignalEvent()
        stop.set_on(signal.SIGTERM)
        lend(resources, stopped=stop.is_set)
    return 0  # even after an error: SageMaker fails a job if one of its containers fails


def _spread(  # the runner's arguments after ours
    cluster: HostCluster,
    notes: list[str],
    source: ProfileSource,
    parameters: dict[str, str],
    interval_us: int,
    stopped: Callable[[], bool],
) -> Slice | None:
    """Fold a job with the workers of all hosts; None if the first host must read it alone."""
    try:
        pool = cluster.join(stopped)
        if cluster.missing:
            notes.append(f"Worked without {', '.join(cluster.missing)}, which did not join.")
        return fold_with(source, pool, parameters=parameters, interval_us=interval_us)
    except SourceError as error:
        log.warning("this host reads the profile alone: %s", error)
        notes.append(f"Only the first host was used: {error}.")
        return None


def make_folds() -> list[Any]:
    """Return the report's folds, which the runner feeds along with the rules."""
    return MetricFolds().all()


def write_for_runner(job: ReportJob) -> Judgement:
    """Write the whole report from the runner's data so far; return its verdict."""
    report = assemble(
        job.source,
        job.results,
        MetricFolds.of(job.folds),
        JobInfo(name=job.job or None, finished=True if job.finished else None),
    )
    write_report(report, job.folder)
    main = report.verdict.main
    undecided = main.kind is Class.INCONCLUSIVE or main.confidence == "low"  # then the rules decide
    status = None if undecided else Status.NO_ISSUES if main.kind.is_healthy else Status.ISSUES
    details = f"{main.kind.value} ({main.confidence} confidence): {main.headline}"
    if main.kind is Class.INCONCLUSIVE:  # NoIssuesFound alone would look as if all were well
        details = f"no verdict: {main.headline}"
    end = report.metrics.ending
    if end.failed:  # an issue, however fast the job was, as for `report --fail-on issues`
        status = Status.ISSUES
        details = details if end.sentence in details else f"{end.sentence.rstrip('.')}. {details}"
    return Judgement(status, details)
