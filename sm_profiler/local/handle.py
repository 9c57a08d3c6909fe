"""`LocalSageMaker`: an endpoint in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from sm_profiler.errors import ProfilerError
from sm_profiler.local.endpoint_base import EndpointBase
from sm_profiler.local.services import Services

STOP_S = 60.0  # the endpoint is killed after that; the supervisors of its jobs notice and end them


class LocalSageMaker(EndpointBase):
    """A SageMaker, S3, IAM, STS and CloudWatch Logs endpoint on this machine that really runs jobs.

        with LocalSageMaker() as local:
            subprocess.run([...], env={**os.environ, **local.environment})

    The endpoint is a process of its own, so the caller's mocks and threads do not affect it and several can run at once.
    It ends with `stop`, with the `with` block, and at the latest with the process that started it.

    Args:
        port: port on 127.0.0.1; 0 picks a free one.
        folder: folder for job files; by default a temporary one, removed at the end.

    Attributes:
        environment: variables for a client's process: address, region, credentials, SDK settings.
    """

    def __init__(self, port: int = 0, folder: str | Path | None = None) -> None:
        self._port, self._wanted = port, folder
        self._process: subprocess.Popen[str] | None = None
        self.environment: dict[str, str] = {}

    def start(self) -> LocalSageMaker:
        """Start the endpoint; `environment` is complete on return.

        Raises:
            ProfilerError: the port is in use, or moto is missing.
        """
        folder = "" if self._wanted is None else str(Path(self._wanted).absolute())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sm_profiler.local", str(self._port), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # the caller handles Ctrl-C
        )
        try:
            line = self._process.stdout.readline() if self._process.stdout else ""
        except BaseException:
            self.stop()
            raise
        no_answer = {"error": "the local endpoint did not start; see its output above"}
        found: dict[str, Any] = json.loads(line) if line else no_answer
        if "error" in found:
            self.stop()
            raise ProfilerError(found["error"])
        self.environment = found["environment"]
        self._services = Services(found["url"], Path(found["folder"]))
        return self

    def interrupt(self, job: str) -> None:
        """Take the machines of a running training job away."""
        from sm_profiler.local.server import interrupt_at  # noqa: PLC0415 - loads moto

        interrupt_at(int(self.url.rpartition(":")[2]), job)

    def stop(self) -> None:
        """Stop jobs and endpoint; on return, no process of a job is left."""
        process, self._process, self._services = self._process, None, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()  # the endpoint ends when its standard input does
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
