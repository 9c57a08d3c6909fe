"""Running jobs of an endpoint: start, update, and stop with the endpoint."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from sm_profiler.local.processing import ProcessingRun
from sm_profiler.local.records import ENDED, JsonDict, ProcessingJobRecord, RuleRecord, TrainingJobRecord
from sm_profiler.local.services import Services
from sm_profiler.local.training import TrainingRun

CLOSE_S = 30.0


class Jobs:
    """The running jobs; calls do not wait for them, except `close`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._training: dict[str, TrainingRun] = {}
        self._processing: list[ProcessingRun] = []

    def folder_for(self, kind: str, name: str) -> Path:
        """Create and return a job's folder; the service model's pattern keeps separators out of its name."""
        folder = self._services.folder / "jobs" / kind / name
        number = 1
        while folder.exists():  # the same name in another region
            number += 1
            folder = folder.with_name(f"{name}.{number}")
        folder.mkdir(parents=True)
        return folder

    def start_training(self, job: TrainingJobRecord) -> None:
        """Run a training job."""
        with self._lock:
            job.log_event = self._services.log_event
            run = self._training[job.arn] = TrainingRun(self._services, job)
            run.start()

    def update_training(self, job: TrainingJobRecord, config: JsonDict | None, rules: list[RuleRecord]) -> None:
        """Change the profiler of a running job."""
        with job.lock:
            if config is not None:
                job.profiler_config = {**(job.profiler_config or {}), **config}
            job.rules.extend(rules)
        self._training[job.arn].update_profiler()

    def interrupt_training(self, name: str) -> bool:
        """Take a running training job's machines away; return False if there is no such job."""
        with self._lock:
            runs = [run for run in self._training.values() if run.job.name == name and run.job.status not in ENDED]
        for run in runs:
            run.interrupted.set()
        return bool(runs)

    def start_processing(self, job: ProcessingJobRecord) -> None:
        """Run a processing job."""
        with self._lock:
            run = ProcessingRun(self._services, job)
            self._processing.append(run)
            run.start()

    def close(self) -> None:
        """Stop all jobs and wait for their end."""
        with self._lock:
            runs: list[Any] = [*self._training.values(), *self._processing]
        for run in runs:
            run.close()
        for run in runs:
            run.join(CLOSE_S)
            for rule in getattr(run, "rules", ()):
                rule.join(CLOSE_S)
