"""All jobs of an endpoint: started here, updated here, and stopped with it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from sm_profiler.local.processing import ProcessingRun
from sm_profiler.local.records import JsonDict, ProcessingJob, RuleJob, TrainingJob
from sm_profiler.local.services import Services
from sm_profiler.local.training import TrainingRun

CLOSE_S = 30.0


class Jobs:
    """The running jobs; every call returns at once."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._training: dict[str, TrainingRun] = {}
        self._processing: list[ProcessingRun] = []

    def folder_for(self, kind: str, name: str) -> Path:
        """A new folder for a job; names are checked by the service model and hold no separators."""
        folder = self._services.folder / "jobs" / kind / name
        number = 1
        while folder.exists():  # the same name in another region
            number += 1
            folder = folder.with_name(f"{name}.{number}")
        folder.mkdir(parents=True)
        return folder

    def start_training(self, job: TrainingJob) -> None:
        """Run a training job."""
        with self._lock:
            job.say = self._services.say
            run = self._training[job.arn] = TrainingRun(self._services, job)
            run.start()

    def update_training(self, job: TrainingJob, config: JsonDict | None, rules: list[RuleJob]) -> None:
        """Change the profiler of a running job."""
        with job.lock:
            if config is not None:
                job.profiler_config = {**(job.profiler_config or {}), **config}
            job.rules.extend(rules)
        self._training[job.arn].update_profiler()

    def start_processing(self, job: ProcessingJob) -> None:
        """Run a processing job."""
        with self._lock:
            run = ProcessingRun(self._services, job)
            self._processing.append(run)
            run.start()

    def close(self) -> None:
        """Stop everything that runs; returns when nothing is left."""
        with self._lock:
            runs: list[Any] = [*self._training.values(), *self._processing]
        for run in runs:
            run.close()
        for run in runs:
            run.join(CLOSE_S)
            for rule in getattr(run, "rules", ()):
                rule.join(CLOSE_S)
