"""The board as OpenTelemetry metrics, pushed by the SDK as its OTEL_* variables configure it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable
from typing import Any

from sm_profiler._version import __version__
from sm_profiler.errors import ProfilerError
from sm_profiler.monitor.board import BUILD, CPU, GAUGES, OF_STEPS, Board, Instrument
from sm_profiler.printable import one_line, printable

try:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource
except ImportError as missing:
    raise ProfilerError("OpenTelemetry metrics need its SDK: pip install 'sm-profiler[otel]'") from missing


def start_telemetry(board: Board, job: str = "", reader: MetricReader | None = None) -> MeterProvider:
    """Push the board's values until the provider is shut down, which sends the last of them."""
    known = dict(board.labels)
    job = job or known.get("training_job", "")
    named = {
        "host.name": known.get("host") or socket.gethostname(),
        "sm_profiler.job": job,
        "user.name": known.get("user", ""),
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
    return PeriodicExportingMetricReader(OTLPMetricExporter())


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
        error = record.exc_info[1] if record.exc_info else None
        reason = one_line(error) if error is not None else " ".join(printable(record.getMessage()).split())
        record.msg = "sm-profiler: the OpenTelemetry collector cannot be reached; metrics are dropped until it can: %s"
        record.args = (reason[:300],)
        record.exc_info = record.exc_text = None
        return True


def _reader_of(board: Board, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Any]]:
    def read(_: CallbackOptions) -> Iterable[Any]:
        return [
            Observation(value.value, dict(value.labels))
            for value in board.values()
            if value.instrument.name == instrument.name
        ]

    return read
