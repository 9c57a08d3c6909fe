"""Run one training job: folders, processes, profile, archives, status."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from boto3.exceptions import S3UploadFailedError

from sm_profiler.container import CHECKPOINTS, CODE, DEFAULT_PROFILER_OUTPUT, FAILURE
from sm_profiler.debugger.images import AwsImage
from sm_profiler.errors import ProfilerError
from sm_profiler.formatting import plural
from sm_profiler.launch.environment import INSTALL, may_install_profiler
from sm_profiler.local.command import (
    Program,
    create_overlay,
    fetch_channels,
    install_command,
    pip_environment,
    program_of,
    start_environment,
    toolkit_python,
)
from sm_profiler.local.host import (
    Host,
    base_environment,
    clusters_of,
    free_port,
    host_names,
    machine_environment,
    service_environment,
    toolkit_environment,
)
from sm_profiler.local.output import TRAINING_GROUP, ErrorLines, LogStream, MetricMatcher
from sm_profiler.local.processing import DEFAULT_MAX_RUNTIME_S, RuleRun
from sm_profiler.local.records import MAX_REASON, NO_TENSORS, TrainingJobRecord, now
from sm_profiler.local.services import Services, download, open_uploader, pack, s3_keys, upload_file
from sm_profiler.local.supervisor import SIGNALLED, JobProcess, describe_exit
from sm_profiler.monitor.uploader import Uploader, open_destination
from sm_profiler.settings import AUTO, INTERVAL, ROOT

UPLOAD_EVERY_S = 1.0
MAX_RESTARTS = 3


class Profiling:
    """Sampling and uploading for one job."""

    def __init__(
        self, services: Services, job: TrainingJobRecord, hosts: list[Host], s3: Any, log: Callable[[str], None]
    ) -> None:
        self._services, self._job, self._hosts, self._s3, self._log = services, job, hosts, s3, log
        self._monitors: list[JobProcess] = []
        self._monitor_output: deque[str] = deque(maxlen=20)
        self._interval_ms = 0
        self._restarts = 0
        self._uploaders: dict[str, Uploader] = {}
        self._reported: set[str] = set()  # kinds of problems of all uploads
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._upload, daemon=True)

    def start(self) -> None:
        """Start sampling and uploading; a bucket that cannot be used is reported at once."""
        if (uri := self._job.profiler_path) is not None:
            self._job.profile_stored = self._uploader(self._hosts[0].folder, uri).check()
        self.follow_config()
        self._thread.start()

    def follow_config(self) -> None:
        """Sample as the job's current ProfilerConfig requests."""
        config = self._job.profiler_config or {}
        wanted = config.get("ProfilingIntervalInMilliseconds", INTERVAL.default) if self._job.profiling else 0
        with self._lock:
            if wanted == self._interval_ms or self._done.is_set():
                return
            self._interval_ms = wanted
            self._stop_monitors()
            if wanted:
                self._monitors = [self._start_monitor(host, wanted) for host in self._hosts]

    def _start_monitor(self, host: Host, interval_ms: int) -> JobProcess:
        folder = host.folder / "metrics"
        folder.mkdir(exist_ok=True)
        options = ["--out", str(folder), "--interval-ms", str(interval_ms)]
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **machine_environment(), ROOT.name: str(host.ml)}

        def keep(line: str) -> None:
            self._monitor_output.append(f"metrics of {host.name}: {line}")

        return JobProcess([sys.executable, "-m", "sm_profiler", "monitor", *options], environment, folder, keep, 5.0)

    def _restart_ended_monitors(self) -> None:
        with self._lock:
            for number, monitor in enumerate(self._monitors):
                if monitor.running or self._done.is_set() or self._restarts == MAX_RESTARTS:
                    continue
                self._restarts += 1
                host, code = self._hosts[number], monitor.wait() or 0
                self._log(f"system metrics of {host.name} ended with {describe_exit(code)}; restarting them")
                self._monitors[number] = self._start_monitor(host, self._interval_ms)

    def _stop_monitors(self) -> None:
        for monitor in self._monitors:
            monitor.stop()
        codes = [monitor.wait() for monitor in self._monitors]
        if any(codes):  # output of a monitor that works does not belong in a training's log
            for line in self._monitor_output:
                self._log(line)
        self._monitors = []

    def _upload(self) -> None:
        while not self._done.wait(UPLOAD_EVERY_S):
            with contextlib.suppress(Exception):  # retried a second later; the last round reports failures
                self._restart_ended_monitors()
                self._round()

    def _round(self) -> None:
        if (uri := self._job.profiler_path) is None:
            return
        for host in self._hosts:
            for folder in (host.folder / "metrics", local_path(host, self._job.profiler_config)):
                if str(folder) not in self._uploaders:
                    self._uploaders[str(folder)] = self._uploader(folder, uri)
        for uploader in self._uploaders.values():  # an update may have changed LocalPath
            if uploader.upload_new():
                self._job.profile_stored = True

    def _uploader(self, folder: Path, uri: str) -> Uploader:
        destination = open_destination(f"{uri}/profiler-output", client=self._s3)
        return Uploader(folder, destination, report=self._log, reported=self._reported)

    def finish(self, *, ended: bool = True) -> None:
        """Stop sampling, upload the remaining files and, if the job has ended, write the end markers."""
        with self._lock:
            self._done.set()
            self._stop_monitors()
        self._thread.join()
        if (uri := self._job.profiler_path) is None:
            return
        try:
            self._round()
            markers = self._uploader(self._job.folder, uri)
            problem = "" if not ended or markers.put_markers() else markers.error
        except Exception as error:  # uploads must not fail the training
            problem = str(error)
        left = sum(uploader.remaining() for uploader in self._uploaders.values())
        if problem or left:
            self._job.profile_stored = False
            reason = f": {problem}" if problem and not self._reported else ""  # else the log has it
            self._log(f"{plural(left, 'file')} of the profile could not be uploaded to {uri}{reason}")


def local_path(host: Host, config: dict[str, Any] | None) -> Path:
    """Return the folder that the hook writes to on this host: LocalPath of the profiling parameters."""
    parameters = (config or {}).get("ProfilingParameters") or {}
    return Path(host.map(parameters.get("LocalPath", DEFAULT_PROFILER_OUTPUT)))


POLL_S = 0.2
HOOK_IS_ADDED = (
    f"sm-profiler: the local endpoint added {AUTO.name}=1; on SageMaker, add {AUTO.name}=1 to the job's environment"
)
PACKAGES_ARE_ADDED = f"the local endpoint lent its own sm-profiler; on SageMaker, {INSTALL}"


class ScriptFailedError(Exception):
    """The training script failed; the message is the job's FailureReason, which has several lines."""


class JobStoppedError(Exception):
    """The job was stopped or reached its runtime limit; the message is its final secondary status."""


class JobInterruptedError(Exception):
    """The job's machines were taken away."""


class TrainingRun(threading.Thread):
    """Life of one training job, which always ends in a final status."""

    def __init__(self, services: Services, job: TrainingJobRecord) -> None:
        super().__init__(name=f"training {job.name}", daemon=True)
        self.services, self.job = services, job
        self.processes: list[JobProcess] = []
        self.rules: list[RuleRun] = []
        self.streams: list[LogStream] = []
        self.hosts: list[Host] = []
        self.pythons: list[Path] = []  # of each host
        self.programs: list[Program] = []
        self.profiling: Profiling | None = None
        self.metrics: MetricMatcher | None = None
        self.closing = threading.Event()
        self.interrupted = threading.Event()  # its machines were taken away
        self.errors: list[ErrorLines] = []
        self.attempts = 0
        self.trained_s = 0.0  # in earlier attempts

    def run(self) -> None:
        ending, status, reason = "Completed", "Completed", ""
        try:
            self._train()
        except JobStoppedError as stop:
            ending, status = str(stop), "Stopped"
        except (ProfilerError, ScriptFailedError) as error:
            ending, status, reason = "Failed", "Failed", str(error)
        except Exception as error:  # clients wait for a final status
            ending, status = "Failed", "Failed"
            reason = f"InternalServerError: the local endpoint failed: {error!r} at {_location(error)}"
        self._finish()
        if self.interrupted.is_set():  # for the last time: no attempt follows that would end the rules
            for run in self.rules:
                run.training_ended()
        with self.job.lock:
            self.job.failure = reason[:MAX_REASON]
            self.job.move(ending, status)

    def _train(self) -> None:
        """Run attempts until an attempt is not interrupted."""
        while True:
            try:
                self._attempt()
            except JobInterruptedError:
                self._prepare_next_attempt()
            else:
                return

    def _prepare_next_attempt(self) -> None:
        """Begin anew after an interruption, as the service does: checkpoints and the profile on S3 are all that is left.

        Raises:
            ProfilerError: the request allows no further attempt.
        """
        self.attempts += 1
        if self.job.request.get("EnableManagedSpotTraining"):
            self.job.move("Interrupted")
        elif self.attempts <= self.job.request.get("RetryStrategy", {}).get("MaximumRetryAttempts", 0):
            self.job.move("Restarting")
        else:
            raise ProfilerError("InternalServerError: We encountered an internal error. Please try again.")
        self.interrupted.clear()
        for host in self.hosts:
            host.folder.rename(host.folder.with_name(f"{host.name}.attempt-{self.attempts}"))
        for stream in self.streams:
            stream.close()
        if self.metrics is not None:
            self.metrics.close()
        self.processes, self.profiling, self.metrics = [], None, None

    def _attempt(self) -> None:
        job, request = self.job, self.job.request
        s3, logs = self.services.client("s3", job.region), self.services.client("logs", job.region)
        job.move("Starting")
        with _client_errors(s3):
            self.hosts = self._make_hosts()
        started = int(time.time()) + self.attempts  # no two attempts share a log stream
        self.streams = [LogStream(logs, TRAINING_GROUP, f"{job.name}/{host.name}-{started}") for host in self.hosts]
        self._make_pythons()
        job.move("Downloading")
        self.programs = [self._prepare_host(s3, number) for number in range(len(self.hosts))]
        self._check_stop(0, float("inf"))
        job.move("Training")
        self._start_profiling(s3)
        limit = request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME_S)
        started_s = time.monotonic()
        try:
            if self.programs[0].installs:
                self._install(self.programs[0])
            self._run_script(started_s, limit - self.trained_s)
        except JobInterruptedError:
            self.trained_s += time.monotonic() - started_s
            self._end_profiling(ended=False)
            self._upload_checkpoints(s3)
            raise
        except Exception:
            self._end_profiling()
            with contextlib.suppress(Exception):  # the script's failure is what is reported
                self._upload_results(s3)
            raise
        self._end_profiling()
        with _client_errors(s3):
            self._upload_results(s3)

    def _make_hosts(self) -> list[Host]:
        resources = self.job.request["ResourceConfig"]
        groups = resources.get("InstanceGroups")
        count = sum(group["InstanceCount"] for group in groups) if groups else resources.get("InstanceCount", 1)
        names, port = tuple(host_names(count)), free_port()
        clusters = clusters_of(resources, names)
        temporary = self.services.temporary_folder
        return [Host(name, clusters, self.job.folder / name, temporary(), port) for name in names]

    def _make_pythons(self) -> None:
        """Create an environment for all hosts or, since the toolkit installs on each host, for each of them."""
        toolkit = toolkit_python()
        if toolkit is None:
            name = f"env.{self.attempts}" if self.attempts else "env"
            self.pythons = [create_overlay(self.job.folder / name)] * len(self.hosts)
        else:
            self.pythons = [create_overlay(host.folder / "env", toolkit) for host in self.hosts]

    def _prepare_host(self, s3: Any, number: int) -> Program:
        host, request = self.hosts[number], self.job.request
        with _client_errors(s3):
            with self.job.lock:  # an update either precedes this and is in the config, or finds the folder
                host.prepare(request, self.job.profiler_config)
            for line in fetch_channels(s3, host, request):
                self.streams[number].write(line)
            checkpoints = request.get("CheckpointConfig", {}).get("S3Uri")
            if checkpoints and s3_keys(s3, checkpoints):
                download(s3, checkpoints.rstrip("/") + "/", host.path(CHECKPOINTS))
            toolkit = toolkit_python() is not None
            return program_of(s3, host, request, self.pythons[number], gpu_count(), toolkit=toolkit)

    def environment(self, number: int) -> dict[str, str]:
        """Return all variables of one host's process."""
        host, job = self.hosts[number], self.job
        found = base_environment(host, self.pythons[number], self.services.environment(job.region))
        found |= service_environment(host, job.request, job.arn)
        if self.programs[number].by_toolkit:
            found = start_environment(host, found)
        else:
            found |= toolkit_environment(host, job.request, gpu_count())
        if job.hook_is_added:
            found[AUTO.name] = "1"
        for name, value in job.request.get("Environment", {}).items():  # the hook itself applies SM_PROFILER_ROOT
            found[name] = value if name.startswith("SM_PROFILER") else host.map(value)
        return found

    def _install(self, program: Program) -> None:
        command = install_command(self.pythons[0], program.installs)
        pip = JobProcess(command, pip_environment(self.environment(0)), program.folder, self.streams[0].write)
        self.processes.append(pip)
        while (code := pip.wait(POLL_S)) is None:
            self._check_stop(0, float("inf"))
        if code:
            tail = " ".join(self.streams[0].tail[-3:])
            raise ProfilerError(f"AlgorithmError: InstallRequirementsError: {describe_exit(code)}: {tail}")

    def _lends_profiler(self) -> bool:
        """Return whether the job asks for the hook, and would lack it on SageMaker: its image is AWS's, and its source names none."""
        request, code = self.job.request, self.hosts[0].path(CODE)
        asked = self.job.hook_is_added or AUTO.usable(request.get("Environment", {}))
        if not asked or AwsImage.named(request["AlgorithmSpecification"].get("TrainingImage")) is None:
            return False
        return code.is_dir() and not may_install_profiler(code)

    def _start_profiling(self, s3: Any) -> None:
        if self.job.tensor_rules:
            self.streams[0].write(f"sm-profiler: {NO_TENSORS}, not evaluated: {', '.join(self.job.tensor_rules)}")
        if self.job.hook_is_added:
            self.streams[0].write(HOOK_IS_ADDED)
            self.job.hook_was_added = True
        if self._lends_profiler():
            self.streams[0].write(PACKAGES_ARE_ADDED)
        self.profiling = Profiling(self.services, self.job, self.hosts, s3, self.streams[0].write)
        self.profiling.start()
        self.update_rules()

    def update_rules(self) -> None:
        """Start the rules that are not running yet."""
        with self.job.lock:
            known = {run.rule.name for run in self.rules}
            for rule in self.job.rules:
                if rule.name not in known and self.job.profiling:
                    run = RuleRun(self.services, self.job, rule)
                    self.rules.append(run)
                    run.start()

    def update_profiler(self) -> None:
        """Write the changed ProfilerConfig for the running hook, and adapt the machine metrics to it."""
        with self.job.lock:
            for host in self.hosts:
                if self.job.profiler_config is not None and host.ml.exists():
                    host.write_config("profilerconfig", self.job.profiler_config)
        if self.profiling is not None:  # otherwise it will start with the changed config
            self.profiling.follow_config()
            self.update_rules()

    def _run_script(self, start: float, limit: float) -> None:
        definitions = self.job.request["AlgorithmSpecification"].get("MetricDefinitions", [])
        self.metrics = MetricMatcher(definitions, self._record_metric, self.streams[0].write)
        self.errors = [ErrorLines() for _ in self.hosts]
        scripts = []
        for number, program in enumerate(self.programs):
            script = JobProcess(program.command, self.environment(number), program.folder, self._line_handler(number))
            scripts.append(script)
            self.processes.append(script)
        while any(script.running for script in scripts):
            self._check_stop(start, limit)
            ended = [script for script in scripts if not script.running]
            if any(script.wait() for script in ended):  # the other hosts would wait forever for a host that failed
                break
            time.sleep(POLL_S)
        for script in scripts:
            script.stop()
        codes = [script.wait() or 0 for script in scripts]
        failed = next((number for number, code in enumerate(codes) if code and not _was_stopped(code, codes)), None)
        if failed is not None:
            raise ScriptFailedError(self._failure_reason(failed, codes[failed]))

    def _line_handler(self, number: int) -> Callable[[str], None]:
        def handle(line: str) -> None:
            self.streams[number].write(line)
            self.errors[number].add(line)
            if self.metrics is not None:
                self.metrics.search(line)

        return handle

    def _record_metric(self, name: str, value: float) -> None:
        with self.job.lock:
            self.job.metrics[name] = {"MetricName": name, "Value": value, "Timestamp": now()}

    def _failure_reason(self, number: int, code: int) -> str:
        """Return the service's reason: the failure file, which is often missing, and the container's exit code.

        Where the endpoint replaces AWS's training toolkit, the file is the toolkit's, whose own exit code is 1.
        """
        text = ""
        with contextlib.suppress(OSError):
            text = self.hosts[number].path(FAILURE).read_text("utf-8", "replace").strip()
        if not text and not self.job.request["AlgorithmSpecification"].get("ContainerEntrypoint"):
            of_script, quoted = SIGNALLED - code if code > SIGNALLED else code, self.errors[number]
            command = " ".join(self.programs[number].command)
            text = f'ExecuteUserScriptError:\nExitCode {of_script}\nErrorMessage "{quoted}"\nCommand "{command}"'
            code = 1
        return f"AlgorithmError: {text}, exit code: {code}"

    def _check_stop(self, start: float, limit: float) -> None:
        ending = ""
        if self.job.stop_requested.is_set() or self.closing.is_set():
            ending = "Stopped"
        elif time.monotonic() - start > limit:
            ending = "MaxRuntimeExceeded"
        if ending:
            self.job.move("Stopping", "Stopping")
            self._stop_processes()
            raise JobStoppedError(ending)
        if self.interrupted.is_set():
            self._stop_processes()
            raise JobInterruptedError

    def _stop_processes(self) -> None:
        for process in self.processes:
            process.stop()
        for process in self.processes:
            process.wait()

    def _end_profiling(self, *, ended: bool = True) -> None:
        if self.profiling is not None:
            self.profiling.finish(ended=ended)
        for run in self.rules if ended else ():
            run.training_ended()

    def _upload_results(self, s3: Any) -> None:
        self.job.move("Uploading")
        for name, folder in (("model", "model"), ("output", "output/data")):
            archive = self.job.folder / f"{name}.tar.gz"
            folders = [host.ml / folder for host in self.hosts]
            if pack(folders, archive) or name == "model":
                upload_file(s3, archive, f"{self.job.output_uri}/{name}.tar.gz")
        self._upload_checkpoints(s3)

    def _upload_checkpoints(self, s3: Any) -> None:
        checkpoints = self.job.request.get("CheckpointConfig", {}).get("S3Uri")
        if checkpoints:
            for host in self.hosts:
                open_uploader(s3, host.path(CHECKPOINTS), checkpoints.rstrip("/"), self.streams[0].write).upload_new()

    def _finish(self) -> None:
        for process in self.processes:
            process.stop()
            process.wait()
        if self.metrics is not None:
            self.metrics.close()
        for stream in self.streams:
            with contextlib.suppress(Exception):  # a lost log line must not prevent the final status
                stream.close()

    def close(self) -> None:
        """Stop the job because the endpoint ends."""
        self.closing.set()
        for process in self.processes:
            process.stop()
        for run in self.rules:
            run.close()


@contextlib.contextmanager
def _client_errors(s3: Any) -> Iterator[None]:
    """Report what is wrong with a request, or with the user's data, as the service does."""
    try:
        yield
    except (ProfilerError, S3UploadFailedError, s3.exceptions.ClientError) as error:
        raise ProfilerError(f"ClientError: {error}") from error


def _was_stopped(code: int, codes: list[int]) -> bool:
    """Return whether a host was stopped because another failed: it has a signal, the other an error."""
    return code > SIGNALLED and any(0 < other <= SIGNALLED for other in codes)


def gpu_count() -> int:
    """Return the number of GPUs of this machine, from its device files."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _location(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
