"""Changes of a running job's windows: in the file that its hook reads again, or by UpdateTrainingJob."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs

from sm_profiler.config import load_profile
from sm_profiler.config.profile import COLLECTORS
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.serve.reading import local_folder
from sm_profiler.source.opening import is_account, split_account
from sm_profiler.storage import LocalStorage

CONFIG_FILE = "profilerconfig.json"
MAX_CONFIG_BYTES = 1 << 20
KINDS = {"detailed": "Operators (the framework's profiler)", "dataloader": "Data loader", "python": "Python functions"}
MAX_STEP = 10**9
MAX_STEPS = 1000  # of a window; each slows the training down
_PLACE = ("StartStep", "NumSteps", "StartTimeInSecSinceEpoch", "DurationInSeconds")
_JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_KEYS = ("S3OutputPath", "ProfilingIntervalInMilliseconds", "ProfilingParameters", "DisableProfiler")


@attrs.frozen
class Window:
    """A requested window.

    Attributes:
        kind: one of KINDS.
        start: its first step.
        steps: its length.
    """

    kind: str
    start: int
    steps: int

    @classmethod
    def parse(cls, form: Mapping[str, str]) -> Window:
        """Return the window of a form.

        Raises:
            ConfigError: a field is missing or out of its range.
        """
        kind = form.get("kind", "")
        if kind not in KINDS:
            raise ConfigError("choose what to record")
        numbers = []
        for name, label, low, high in (
            ("start", "first step", 0, MAX_STEP),
            ("steps", "number of steps", 1, MAX_STEPS),
        ):
            text = form.get(name, "").strip()
            if not (text.isascii() and text.isdigit() and len(text) <= len(str(high)) and low <= int(text) <= high):
                raise ConfigError(f"{label}: give a whole number from {low} to {high:,}")
            numbers.append(int(text))
        return cls(kind, *numbers)

    def within(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a ProfilerConfig with this window in place of that of its kind.

        Raises:
            ConfigError: the result is not valid.
        """
        given = request.get("ProfilingParameters")
        parameters = dict(given) if isinstance(given, Mapping) else {}
        wire = COLLECTORS[self.kind].wire
        try:
            found = json.loads(parameters.get(wire) or "{}")
        except (ValueError, TypeError, RecursionError):
            found = {}
        kept = {key: value for key, value in found.items() if key not in _PLACE} if isinstance(found, dict) else {}
        parameters[wire] = json.dumps({"StartStep": self.start, "NumSteps": self.steps, **kept})
        changed = {**request, "ProfilingParameters": parameters}
        problems = [problem for problem in load_profile(json.dumps(changed)).problems if wire in problem]
        if problems:
            raise ConfigError(problems[0])
        return changed


class Target(Protocol):
    """Place where a job's configuration is changed."""

    @property
    def shown(self) -> str:
        """Name of what is changed."""

    def change(self, window: Window) -> None:
        """Change it."""


@attrs.frozen
class FileTarget:
    """A file that the hook reads again when it changes."""

    path: Path

    @property
    def shown(self) -> str:
        """Name of what is changed."""
        return f"the file {self.path}"

    def change(self, window: Window) -> None:
        """Change it, atomically.

        Raises:
            ConfigError, SourceError: it cannot be read or written, or the result is not valid.
        """
        storage = LocalStorage(self.path.parent)
        try:
            request = json.loads(storage.read(self.path.name, end=MAX_CONFIG_BYTES))
        except (ValueError, RecursionError):
            raise ConfigError(f"{self.path} is not JSON") from None
        if not isinstance(request, dict):
            raise ConfigError(f"{self.path} must contain a JSON object")
        storage.write(self.path.name, json.dumps(window.within(request), indent=1).encode())


@attrs.frozen
class JobTarget:
    """A training job of SageMaker."""

    name: str
    client: Any = None
    region: str | None = None

    @property
    def shown(self) -> str:
        """Name of what is changed."""
        return f"the training job {self.name}, by UpdateTrainingJob"

    def change(self, window: Window) -> None:
        """Send UpdateTrainingJob.

        Raises:
            ConfigError: the result is not valid.
            SourceError: there is no such job, it is over, or the request fails.
        """
        from botocore.exceptions import BotoCoreError, ClientError  # a third of a second

        from sm_profiler.source.job import describe
        from sm_profiler.storage.s3_client import create_api_client, reason_of

        client = self.client or create_api_client(
            "sagemaker", region=self.region or os.environ.get("AWS_REGION") or None
        )
        job = describe(self.name, client=client)
        if job.get("TrainingJobStatus") != "InProgress":
            raise SourceError(f"{self.name} is not running")
        request = window.within(job.get("ProfilerConfig") or {})
        update = {key: request[key] for key in _KEYS if key in request}
        try:
            client.update_training_job(TrainingJobName=self.name, ProfilerConfig=update)
        except (BotoCoreError, ClientError, ValueError) as error:
            raise SourceError(f"UpdateTrainingJob: {reason_of(error)}") from error


def target_of(where: str, name: str) -> Target:
    """Return where a job's windows can be changed.

    Raises:
        ConfigError: nowhere.
    """
    folder = local_folder(where)
    if folder is None:
        if not _JOB_NAME.fullmatch(name):
            raise ConfigError(f"{name} is not the name of a training job")
        return JobTarget(name, region=split_account(where)[0] if is_account(where) else None)
    for path in (folder / CONFIG_FILE, folder.resolve().parent / CONFIG_FILE):
        if path.is_file() and not path.is_symlink():
            return FileTarget(path)
    raise ConfigError(f"there is no {CONFIG_FILE} beside this profile, so its hook reads no file again")
