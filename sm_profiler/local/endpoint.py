"""`LocalSageMaker`: an endpoint in a separate process, and what it shares with an endpoint in this process."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import attrs

from sm_profiler.errors import ProfilerError
from sm_profiler.local.services import CLIENT_VARIABLES, ROLE, Services
from sm_profiler.processes import start_module

if TYPE_CHECKING:
    from typing_extensions import Self


ADDRESS = "127.0.0.1"  # never another: clients of the endpoint can run code
ENVIRONMENT_PATH = "/_sm_profiler/environment"
INTERRUPT_PATH = "/_sm_profiler/interrupt/"  # and the name of a training job
MAX_ENVIRONMENT = 65_536  # bytes
ANSWER_S = 10.0


class EndpointBase(ABC):
    """An endpoint's address, default bucket, role and clients; a `with` block starts and stops it."""

    environment: dict[str, str]
    _services: Services | None = None

    @property
    def services(self) -> Services:
        if self._services is None:
            raise ProfilerError("the local endpoint is not running: call start(), or use it in a with statement")
        return self._services

    @abstractmethod
    def start(self) -> Self:
        """Start the endpoint; `environment` is complete on return."""

    @abstractmethod
    def stop(self) -> None:
        """Stop jobs and endpoint; on return, no process of a job is left."""

    @abstractmethod
    def interrupt(self, job: str) -> None:
        """Take the machines of a running training job away, as happens to spot instances.

        With EnableManagedSpotTraining, or while RetryStrategy allows it, the job starts anew with its checkpoints;
        otherwise it fails.

        Raises:
            ProfilerError: no such job is running.
        """

    @property
    def url(self) -> str:
        """http://127.0.0.1:port."""
        return self.services.url

    @property
    def folder(self) -> Path:
        return self.services.folder

    @property
    def bucket(self) -> str:
        """Name of the default bucket, which exists."""
        return self.services.bucket

    @property
    def role(self) -> str:
        return ROLE

    def client(self, service: str, region: str | None = None) -> Any:
        return self.services.client(service, region)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


STOP_S = 60.0  # the endpoint is killed after that; the supervisors of its jobs notice and end them


class LocalSageMaker(EndpointBase):
    """A SageMaker, S3, IAM, STS and CloudWatch Logs endpoint on this machine that really runs jobs.

        with LocalSageMaker() as local:
            subprocess.run([...], env={**os.environ, **local.environment})

    The endpoint is a separate process, so the caller's mocks and threads do not affect it and several can run at once.
    It ends with `stop`, with the `with` block, and at the latest with the process that started it.

    Args:
        port: port on 127.0.0.1; 0 picks a free port.
        folder: folder for job files; by default a temporary folder, removed at the end.

    Attributes:
        environment: variables for a client's process: address, region, credentials, SDK settings.
    """

    def __init__(self, port: int = 0, folder: str | Path | None = None) -> None:
        self._port, self._wanted = port, folder
        self._process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}

    def start(self) -> LocalSageMaker:
        """Start the endpoint; `environment` is complete on return.

        Raises:
            ProfilerError: the port is in use, or moto is missing.
        """
        folder = "" if self._wanted is None else str(Path(self._wanted).absolute())
        pipe = subprocess.PIPE
        self._process = start_module(
            "sm_profiler.local", [str(self._port), folder], cwd=".", stdin=pipe, stdout=pipe, new_session=True
        )
        try:
            line = self._process.stdout.readline() if self._process.stdout else b""
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


def environment_at(port: int) -> dict[str, str] | None:
    """Return the client environment of an endpoint that already serves this port; None if there is none.

    Users let their shell evaluate it, and another user's program may listen on the port: only variables and addresses
    that an endpoint sets are accepted.
    """
    if not is_own_listener(port):
        return None
    try:
        status, body = _ask(port, "GET", ENVIRONMENT_PATH)
        found = json.loads(body) if status == HTTPStatus.OK else None
    except (ProfilerError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("AWS_ENDPOINT_URL") != f"http://{ADDRESS}:{port}":
        return None
    return {name: found[name] for name in CLIENT_VARIABLES if isinstance(found.get(name), str)}


def interrupt_at(port: int, name: str) -> None:
    """Interrupt a training job of the endpoint that serves this port."""
    if not is_own_listener(port):
        raise ProfilerError(f"no endpoint of yours serves port {port}")
    if _ask(port, "POST", INTERRUPT_PATH + quote(name, safe=""))[0] != HTTPStatus.OK:
        raise ProfilerError(f"no training job {name} is running")


def _ask(port: int, method: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=ANSWER_S)
    try:
        connection.request(method, path, headers={"Content-Length": "0"} if method == "POST" else {})
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_ENVIRONMENT)
    except (OSError, http.client.HTTPException) as error:
        raise ProfilerError(f"the endpoint on port {port} does not answer: {error}") from error
    finally:
        connection.close()


TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED, LISTENING = "01", "0A"


@attrs.frozen
class Connection:
    """One row of a table: ports, state, and the user who owns the socket."""

    local_port: int
    remote_port: int
    state: str
    user: int


def is_own_listener(port: int) -> bool:
    """Return whether only this user's programs listen on a port; True if the system does not report owners."""
    return all(
        found.user == os.getuid()
        for found in connections(port)
        if found.state == LISTENING and found.local_port == port
    )


def is_own_client(client_port: int, server_port: int) -> bool:
    """Return whether this user owns the client's end of a connection; True if the system does not report owners.

    The end of a client that has already closed it has no owner and is refused.
    """
    listed = list(connections(server_port))
    if not any(found.state == LISTENING and found.local_port == server_port for found in listed):
        return True  # not Linux, or a sandbox that hides connections
    return any(
        found.user == os.getuid()
        for found in listed
        if (found.state, found.local_port, found.remote_port) == (ESTABLISHED, client_port, server_port)
    )


def connections(port: int) -> Iterator[Connection]:
    """Yield the TCP connections with a port at either end; none if the system does not report them."""
    for table in TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            if f":{port:04X} " not in line:
                continue
            _, local, remote, state, *_, user = line.split()[:8]
            yield Connection(_port(local), _port(remote), state, int(user))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
