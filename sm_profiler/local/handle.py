"""`LocalSageMaker`: a running endpoint, seen from the process that uses it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from sm_profiler.errors import ProfilerError
from sm_profiler.local.endpoint_base import Face
from sm_profiler.local.services import Services

STOP_S = 60.0  # then it is killed; the supervisors of its jobs see that, and end them


class LocalSageMaker(Face):
    """A SageMaker, S3, IAM, STS and CloudWatch Logs endpoint on this machine that really runs jobs.

        with LocalSageMaker() as local:
            subprocess.run([...], env={**os.environ, **local.environment})

    It is a process of its own, so mocks and threads of the caller do not meet it, and several can run at once.  It ends
    with `stop`, with the `with` block, and in any case with the process that started it.

    Args:
        port: 0 takes a free one.
        folder: where jobs stand; a temporary folder, removed at the end, by default.

    Attributes:
        environment: what a client's process needs (address, region, credentials, SDK settings).
    """

    def __init__(self, port: int = 0, folder: str | Path | None = None) -> None:
        self._port, self._wanted = port, folder
        self._process: subprocess.Popen[str] | None = None
        self.environment: dict[str, str] = {}

    def start(self) -> LocalSageMaker:
        """Start it; the environment is complete when this returns.

        Raises:
            ProfilerError: the port is taken, or moto is missing.
        """
        folder = "" if self._wanted is None else str(Path(self._wanted).absolute())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sm_profiler.local", str(self._port), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is the caller's to handle
        )
        try:
            line = self._process.stdout.readline() if self._process.stdout else ""
        except BaseException:
            self.stop()
            raise
        silent = {"error": "the local endpoint did not start; its words stand above"}
        found: dict[str, Any] = json.loads(line) if line else silent
        if "error" in found:
            self.stop()
            raise ProfilerError(found["error"])
        self.environment = found["environment"]
        self._services = Services(found["url"], Path(found["folder"]))
        return self

    def stop(self) -> None:
        """Stop jobs and endpoint; no process of a job is left when it returns."""
        process, self._process, self._services = self._process, None, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()  # the endpoint sees that, and ends
        try:
            process.wait(STOP_S)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        finally:
            if process.stdout is not None:
                process.stdout.close()
