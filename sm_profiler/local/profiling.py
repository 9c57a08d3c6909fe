"""The service's part of profiling: sample the machine, upload files while the script runs, write end markers."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sm_profiler.container import DEFAULT_PROFILER_OUTPUT
from sm_profiler.formatting import plural
from sm_profiler.local.host import Host, machine_environment
from sm_profiler.local.process import JobProcess, describe_exit
from sm_profiler.local.records import TrainingJobRecord
from sm_profiler.local.services import Services
from sm_profiler.monitor.uploader import Uploader, open_destination
from sm_profiler.settings import INTERVAL, ROOT

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
        return Uploader(folder, open_destination(f"{uri}/profiler-output", client=self._s3), report=self._log)

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
            self._log(f"{plural(left, 'file')} of the profile could not be uploaded to {uri}: {problem}")


def local_path(host: Host, config: dict[str, Any] | None) -> Path:
    """Return the folder that the hook writes to on this host: LocalPath of the profiling parameters."""
    parameters = (config or {}).get("ProfilingParameters") or {}
    return Path(host.map(parameters.get("LocalPath", DEFAULT_PROFILER_OUTPUT)))
