"""The board as metrics: in Prometheus' text format, over HTTP, and for OpenTelemetry, pushed by its SDK."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import math
import os
import re
import socket
import textwrap
import threading
import time
from collections.abc import Callable, Iterable
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm_profiler._version import __version__
from sm_profiler.errors import ProfilerError
from sm_profiler.monitor.board import BUILD, CPU, GAUGES, OF_STEPS, Board, Instrument, Value
from sm_profiler.printable import one_line, printable

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader
    from requests import Response, Session

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TIMEOUT_S = 10.0  # of a request, from its connection to the last byte of the answer
EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 - compared, not listened on
MAX_REQUESTS = 32  # at the same time; further requests are refused
PAUSE_S = 0.25  # after a connection that could not be taken
MAX_REASON = 300  # characters
PORTS = 16  # from the given one on: jobs of one machine that are served
RENEW_S, LOST_S = (
    60.0,
    300.0,
)  # a file with an address is touched this often; an untouched file is that of a killed monitor
_OURS = re.compile(r"sm-profiler-.+-\d{1,5}\.json")  # a host and its port
# Variables of the SDK by which the user's own session reaches the collector.
_SESSIONS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_METRICS_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
)
# Units at the end of a metric's name, as Prometheus' convention for OpenTelemetry's metrics has it.
_SUFFIXES = {
    "1": "_ratio", "By/s": "_bytes_per_second", "W": "_watts", "Cel": "_celsius", "{step}": "", "s": "_seconds",
    "{sample}/s": "_per_second", "{bool}": "", "{info}": "",
}  # fmt: skip


def render(values: Iterable[Value]) -> str:
    """Return values in the text format, the series of a metric together."""
    lines: list[str] = []
    by_name: dict[str, list[Value]] = {}
    for value in values:
        if math.isfinite(value.value):
            by_name.setdefault(name_of(value), []).append(value)
    for name, group in sorted(by_name.items()):
        instrument = group[0].instrument
        kind = "counter" if instrument.counts else "gauge"
        lines += [f"# HELP {name} {instrument.text}", f"# TYPE {name} {kind}"]
        for value in group:
            labels = ",".join(f'{key.replace(".", "_")}="{_escaped(text)}"' for key, text in value.labels)
            lines.append(f"{name}{{{labels}}} {value.value:.10g}")
    return "\n".join(lines) + "\n"


def name_of(value: Value) -> str:
    """Return the name of a metric: `hw.gpu.utilization` is hw_gpu_utilization_ratio."""
    instrument = value.instrument
    total = "_total" if instrument.counts else ""
    return instrument.name.replace(".", "_") + _SUFFIXES[instrument.unit] + total


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _Handler(BaseHTTPRequestHandler):
    """Answers GET /metrics."""

    timeout = TIMEOUT_S
    server: Exposition

    def do_GET(self) -> None:
        """Send the values."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = render(self.server.values()).encode("utf-8", "backslashreplace")
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: a scrape comes every few seconds."""


class Exposition(ThreadingHTTPServer):
    """Serves the values in its own threads, until `close`."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str, port: int, values: Callable[[], list[Value]]) -> None:
        """Listen.

        Args:
            address: of the interface; 127.0.0.1 for this machine only.
            port: 0 for any free one. If it is taken, by another job of this machine, the next free one of PORTS.
            values: returns the newest values.

        Raises:
            ProfilerError: the address or the port cannot be used.
        """
        self.values, self.interface = values, address
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        self._begun: dict[socket.socket, float] = {}  # connections that are served, since when
        self._target: Path | None = None
        self._address, self._renew_at, self._announcing = "", math.inf, threading.Lock()
        for number in range(port, port + (PORTS if port else 1)):
            try:
                super().__init__((address, number), _Handler)
                break
            except (OSError, OverflowError) as error:
                if getattr(error, "errno", None) == errno.EADDRINUSE and number + 1 < port + PORTS:
                    continue
                reason = getattr(error, "strerror", None) or error
                where = f"{address}:{port}" + (f" to {number}" if number > port else "")
                raise ProfilerError(f"metrics at {where}: {reason}") from None
        self._thread = threading.Thread(target=self.serve_forever, name="sm-profiler-metrics", daemon=True)
        self._thread.start()

    def get_request(self) -> Any:
        """Return a connection; if there is no descriptor for it, it waits, and would be announced again at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread, unless many others wait: each may send a byte of its request now and then."""
        if self._free.acquire(blocking=False):
            self._begun[request] = time.monotonic()
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # there may be no further thread
                self._ended(request)
                raise  # to the server, which closes the connection
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def _ended(self, request: Any) -> None:
        self._begun.pop(request, None)
        self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a client that goes away is no error of the job."""

    def announce(self, folder: Path, host: str) -> None:
        """Write a file with the address for Prometheus' `file_sd_configs`; `close` removes it.

        The address is the interface if only that one is listened on, otherwise the host. A monitor that is killed cannot
        remove its file. So the file is renewed regularly, and other monitors with this folder remove it if it is not.

        Raises:
            ProfilerError: the folder cannot be written.
        """
        self._address = f"{host if self.interface == EVERY_INTERFACE else self.interface}:{self.server_port}"
        target = folder / f"sm-profiler-{host}-{self.server_port}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._write(target)
        except OSError as error:
            raise ProfilerError(f"metrics in {folder}: {error.strerror}") from None
        self._target, self._renew_at = target, 0.0  # the server's thread removes what others left

    def _write(self, target: Path) -> None:
        temporary = target.with_suffix(f".{os.getpid()}.tmp")
        temporary.unlink(missing_ok=True)
        with open(temporary, "x", encoding="utf-8") as file:  # not where a link of another user leads
            file.write(json.dumps([{"targets": [self._address]}]))
        temporary.replace(target)

    def service_actions(self) -> None:
        """End requests that take too long, renew the file with the address, and remove those of killed monitors; called twice a second.

        The handler's own limit is that of each read: a client that sends a byte now and then would keep its thread for hours.
        """
        for request, begun in list(self._begun.items()):
            if time.monotonic() - begun > TIMEOUT_S:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)
        if (now := time.monotonic()) < self._renew_at:
            return
        self._renew_at = now + RENEW_S
        with contextlib.suppress(OSError), self._announcing:
            if (target := self._target) is None:
                return
            self._write(target)
            renewed = target.stat().st_mtime  # by the clock of the file system
            for other in target.parent.glob("sm-profiler-*.json"):
                if not _OURS.fullmatch(other.name):
                    continue
                with contextlib.suppress(OSError):  # it is gone, or that of another user
                    if renewed - other.lstat().st_mtime > LOST_S:
                        other.unlink()

    def withdraw(self) -> None:
        """Remove the file with the address."""
        with self._announcing:
            target, self._target = self._target, None
            if target is not None:
                with contextlib.suppress(OSError):
                    target.unlink()

    def close(self) -> None:
        """Stop listening."""
        self.withdraw()
        self.shutdown()
        self.server_close()
        self._thread.join()


# OpenTelemetry.


def start_telemetry(board: Board, job: str = "", reader: MetricReader | None = None) -> MeterProvider:
    """Push the board's values, as the SDK's OTEL_* variables configure it, until the provider is shut down.

    Raises:
        ProfilerError: the SDK is missing.
    """
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource
    except ImportError as missing:
        raise ProfilerError("OpenTelemetry metrics need its SDK: pip install 'sm-profiler[otel]'") from missing
    known = dict(board.labels)
    job = job or known.get("training_job", "")
    named = {
        "host.name": known.get("host") or socket.gethostname(),
        "sm_profiler.job": job,
        "user.name": known.get("user", ""),
        "sm_profiler.account": known.get("account", ""),
    }
    attributes = {"service.name": "sm-profiler", **{key: value for key, value in named.items() if value}}
    provider = MeterProvider([reader or _otlp_reader()], Resource.create(attributes), shutdown_on_exit=False)
    meter = provider.get_meter("sm_profiler", __version__)
    for instrument in (CPU, BUILD, *OF_STEPS, *{gauge.name: gauge for gauge in GAUGES.values()}.values()):
        create = meter.create_observable_counter if instrument.counts else meter.create_observable_gauge
        create(instrument.name, [_reader_of(board, instrument)], instrument.unit, instrument.text)
    return provider


def _otlp_reader() -> MetricReader:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # may be replaced
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    silence_retries()
    session = None if any(os.environ.get(name) for name in _SESSIONS) else _session()
    return PeriodicExportingMetricReader(OTLPMetricExporter(session=session))


def _session() -> Session:
    """Return a session that reads no answer but its status, and follows no redirect.

    An answer may have no end, or unpack to gigabytes, and another host must not get the headers, which may hold a key.
    """
    import requests  # the exporter's
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> Any:
            pool = super().get_connection_with_tls_context(*arguments, **named)
            pool.ConnectionCls = _in_time(pool.ConnectionCls)
            return pool

    def close(response: Response, **_: object) -> None:
        response.close()
        if response.is_redirect:  # the exporter would take it for a success
            raise requests.TooManyRedirects(f"it answers with a redirect (HTTP status {response.status_code})")

    session = requests.Session()
    session.stream = True
    for scheme in ("http://", "https://"):
        session.mount(scheme, Adapter())
    session.hooks["response"].append(close)
    return session


@functools.cache
def _in_time(kind: Any) -> Any:
    """Return a kind of connections that end if their peer takes too long: their own limit is that of each byte of its answer."""

    class Connection(kind):  # type: ignore[misc]
        def connect(self) -> None:
            self._limit(super().connect)

        def getresponse(self) -> Any:
            return self._limit(super().getresponse)

        def _limit(self, action: Callable[[], Any]) -> Any:
            late = threading.Event()

            def end() -> None:
                late.set()
                with contextlib.suppress(OSError, TypeError):  # it is closed, or was never connected
                    socket.socket.shutdown(self.sock, socket.SHUT_RDWR)  # whether encrypted or not

            timer = threading.Timer(self.timeout or TIMEOUT_S, end)
            timer.daemon = True
            timer.start()
            try:
                answer = action()
            except (OSError, HTTPException):
                if late.is_set():
                    raise TimeoutError from None
                raise
            finally:
                timer.cancel()
            if late.is_set():  # what has arrived may look complete
                if answer is not None:
                    answer.close()
                raise TimeoutError
            return answer

    return Connection


def silence_retries() -> None:
    """Have an unreachable collector reported once, not at each try: urllib3 and the SDK log a line for each."""
    reported = _Once()
    for name in (
        "opentelemetry.exporter.otlp.proto.http.metric_exporter",
        "opentelemetry.sdk.metrics._internal.export",
    ):
        logging.getLogger(name).addFilter(reported)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


class _Once(logging.Filter):
    """Replaces the first problem by one line, and drops the others."""

    def __init__(self) -> None:
        super().__init__()
        self._reported = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        if record.levelno < logging.WARNING or self._reported:
            return False
        self._reported = True
        given = record.args if isinstance(record.args, tuple) else ()
        errors = [record.exc_info[1] if record.exc_info else None, *given]
        error = next((one for one in errors if isinstance(one, BaseException)), None)
        reason = _reason_of(error) if error is not None else " ".join(record.getMessage().split())
        record.msg = "sm-profiler: the OpenTelemetry collector cannot be reached; metrics are dropped until it can: %s"
        record.args = (textwrap.shorten(printable(reason), MAX_REASON, placeholder=" …"),)
        record.exc_info = record.exc_text = None
        return True


def _reason_of(error: BaseException) -> str:
    """Return the reason of an error of urllib3 and requests, whose text has each error that led to it."""
    seen: list[BaseException] = []
    found: object = error
    while isinstance(found, BaseException) and found not in seen:
        seen.append(found)
        inner = (getattr(found, "reason", None), *found.args, found.__cause__, found.__context__)
        found = next((one for one in inner if isinstance(one, BaseException)), None)
    last = seen[-1]
    if isinstance(last, TimeoutError):
        return "no answer in time"
    return (isinstance(last, OSError) and last.strerror) or one_line(last)


def _reader_of(board: Board, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Any]]:
    from opentelemetry.metrics import Observation

    def read(_: CallbackOptions) -> Iterable[Any]:
        return [
            Observation(value.value, dict(value.labels))
            for value in board.values()
            if value.instrument.name == instrument.name
        ]

    return read
