"""The endpoint: moto's server on 127.0.0.1, with jobs that run."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import attrs
from botocore.model import OperationNotFoundError
from moto import backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import BaseWSGIServer, make_server

from sm_profiler.errors import ProfilerError
from sm_profiler.local.backend import Jobs, MalformedRequestError, swapped_urls
from sm_profiler.local.endpoint import ADDRESS, ENVIRONMENT_PATH, INTERRUPT_PATH, EndpointBase, is_own_client
from sm_profiler.local.services import REGION, ROLE, Services
from sm_profiler.printable import printable

MAX_REQUEST = 10_000_000  # bytes of an API call; S3 objects are not limited
MAX_LOGGED = 500  # characters of an error
STALLED_S = 120  # without a byte from a client
OWN_PATHS = (ENVIRONMENT_PATH, INTERRUPT_PATH)
SERVICES = ("s3", "sagemaker", "iam", "sts", "logs", "ecr")
TRUST = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"sagemaker.amazonaws.com"},"Action":"sts:AssumeRole"}]}'


@attrs.define(eq=False)
class RequestGuard:
    """Refuses requests of other users and of web pages, which must not start jobs, and those that would exhaust memory.

    Attributes:
        application: moto's application.
        environment: returns the clients' environment.
        interrupt: interrupts the training job of this name; returns False if none runs.
        log_event: receives a line for each request that failed unexpectedly.
    """

    application: Any
    environment: Callable[[], dict[str, str]]
    interrupt: Callable[[str], bool]
    log_event: Callable[[str], None]
    _checked: WeakKeyDictionary[socket.socket, bool] = attrs.field(factory=WeakKeyDictionary, init=False)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        if problem := self._problem(environ):
            return _error(start_response, *problem)
        try:
            if environ.get("PATH_INFO", "").startswith(OWN_PATHS):
                return self._answer(environ, start_response)
            return self.application(environ, start_response)
        except MalformedRequestError as error:
            return _error(start_response, HTTPStatus.BAD_REQUEST, "SerializationException", str(error))
        except OperationNotFoundError as error:
            return _error(start_response, HTTPStatus.BAD_REQUEST, "UnknownOperationException", str(error))
        except Exception as error:  # moto may fail on any input, and clients need an answer
            self.log_event(f"request failed: {printable(repr(error)[:MAX_LOGGED])}")
            return _error(start_response, HTTPStatus.INTERNAL_SERVER_ERROR, "InternalFailure", repr(error))

    def _answer(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        """Answer what is no API of AWS's."""
        path, found = environ["PATH_INFO"], b"{}"
        if path == ENVIRONMENT_PATH:
            found = json.dumps(self.environment()).encode()
        elif environ.get("REQUEST_METHOD") != "POST" or not self.interrupt(path.removeprefix(INTERRUPT_PATH)):
            return _error(start_response, HTTPStatus.NOT_FOUND, "ResourceNotFound", "no such training job is running")
        start_response("200 OK", [("Content-Type", "application/json")])
        return [found]

    def _is_own(self, environ: dict[str, Any]) -> bool:
        connection = environ["werkzeug.socket"]
        if connection not in self._checked:  # the system's table of connections may be long
            self._checked[connection] = is_own_client(int(environ["REMOTE_PORT"]), int(environ["SERVER_PORT"]))
        return self._checked[connection]

    def _problem(self, environ: dict[str, Any]) -> tuple[HTTPStatus, str, str] | None:
        host = environ.get("HTTP_HOST", "").rpartition(":")[0] or environ.get("HTTP_HOST", "")
        if host not in (ADDRESS, "localhost") or "HTTP_ORIGIN" in environ:
            return HTTPStatus.FORBIDDEN, "AccessDeniedException", "this endpoint answers only programs on this machine"
        if not self._is_own(environ):
            return HTTPStatus.FORBIDDEN, "AccessDeniedException", "this endpoint answers only programs of its own user"
        if environ.get("PATH_INFO", "").startswith("/moto-api"):  # resets and reconfigures moto
            return HTTPStatus.NOT_FOUND, "UnknownOperationException", "not available"
        if environ.get("PATH_INFO") == "/" and environ.get("REQUEST_METHOD") == "POST":
            return _body_problem(environ)
        return None  # S3, whose objects are as large as a model


def _body_problem(environ: dict[str, Any]) -> tuple[HTTPStatus, str, str] | None:
    length = environ.get("CONTENT_LENGTH", "")
    if "HTTP_TRANSFER_ENCODING" in environ or not length.isdecimal():
        return HTTPStatus.LENGTH_REQUIRED, "SerializationException", "Content-Length is missing or invalid"
    if "HTTP_CONTENT_ENCODING" in environ:
        return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "SerializationException", "compressed requests are not supported"
    if len(length) > len(str(MAX_REQUEST)) or int(length) > MAX_REQUEST:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "RequestEntityTooLarge", f"at most {MAX_REQUEST} bytes"
    return None


def _error(start_response: Any, status: HTTPStatus, kind: str, message: str) -> list[bytes]:
    headers = [("Content-Type", "application/x-amz-json-1.1"), ("x-amzn-ErrorType", kind), ("Connection", "close")]
    start_response(f"{status.value} {status.phrase}", headers)
    return [json.dumps({"__type": kind, "message": message[:MAX_LOGGED]}).encode()]


class QuietHandler(MotoRequestHandler):
    """moto's handler without its log of requests; a client that stalls is disconnected."""

    timeout = STALLED_S

    def log_request(self, *_: Any, **__: Any) -> None:
        """Log nothing."""

    def log_error(self, *_: Any) -> None:
        """Log nothing: clients receive the error."""


_only = threading.Lock()  # moto keeps its state in modules, so a process can have one endpoint


class Endpoint(EndpointBase):
    """An endpoint in this process; users want `LocalSageMaker`, which runs it in a separate process.

    Args:
        port: port on 127.0.0.1; 0 picks a free port.
        folder: folder for job files; by default a temporary folder, removed at the end.
        log_event: receives a line whenever a job changes.

    Attributes:
        environment: variables for a client's process: address, region, credentials, SDK settings.
    """

    def __init__(
        self, port: int = 0, folder: str | Path | None = None, log_event: Callable[[str], None] = lambda _: None
    ) -> None:
        self._port, self._wanted, self._log_event = port, folder, log_event
        self._server: BaseWSGIServer | None = None
        self._stack = contextlib.ExitStack()
        self.jobs: Jobs
        self.environment: dict[str, str] = {}

    def start(self) -> Endpoint:
        """Start listening; `environment` is complete on return.

        Raises:
            ProfilerError: the port is in use, or another endpoint runs in this process.
        """
        if not _only.acquire(blocking=False):
            raise ProfilerError(
                "an endpoint is already running in this process; sm_profiler.local.LocalSageMaker can run several"
            )
        self._stack.callback(_only.release)
        if self._wanted is None:
            folder = Path(tempfile.mkdtemp(prefix="sm-profiler-local-"))
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        else:
            folder = Path(self._wanted).absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._listen(folder)
            self._make_defaults()
        except OSError as error:
            self.stop()
            raise ProfilerError(f"{error.filename or folder}: {error.strerror}") from error
        except BaseException:
            self.stop()
            raise
        return self

    def _listen(self, folder: Path) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        application = RequestGuard(
            DomainDispatcherApplication(create_backend_app),
            lambda: self.environment,
            lambda job: self.jobs.interrupt_training(job),  # noqa: PLW0108 - `jobs` comes later
            self._log_event,
        )
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((ADDRESS, self._port))
            except (OSError, OverflowError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ProfilerError(f"port {self._port} of {ADDRESS}: {reason}; choose another with --port") from error
            listener.listen(128)
            self._server = make_server(
                ADDRESS, self._port, application, threaded=True, request_handler=QuietHandler, fd=listener.fileno()
            )
        self._server.daemon_threads = True  # type: ignore[attr-defined] # of the threaded server class
        self._services = Services(f"http://{ADDRESS}:{self._server.port}", folder, log_event=self._log_event)
        self.jobs = Jobs(self.services)
        self._stack.callback(self.services.remove_temporary_folders)
        get_backend = cast("Any", backends.get_backend)
        for service in SERVICES:  # an earlier endpoint of this process may have left state
            get_backend(service).reset()
        self._stack.enter_context(swapped_urls(self.jobs))
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        self._stack.callback(thread.join, 5)
        self._stack.callback(self._server.server_close)
        self._stack.callback(self._server.shutdown)
        self._stack.callback(self.jobs.close)

    def _make_defaults(self) -> None:
        self.client("s3", REGION).create_bucket(Bucket=self.bucket)
        name = ROLE.rpartition("/")[2]
        self.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
        self.environment = self.services.client_environment()

    def interrupt(self, job: str) -> None:
        """Take the machines of a running training job away."""
        if not self.jobs.interrupt_training(job):
            raise ProfilerError(f"no training job {job} is running")

    def stop(self) -> None:
        """Stop jobs and server; on return, no process of a job is left."""
        self._stack.close()
