"""The board as OpenTelemetry metrics, pushed by the SDK as its OTEL_* variables configure it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sm_profiler._version import __version__
from sm_profiler.errors import ProfilerError
from sm_profiler.monitor.board import CPU, GAUGES, STEPS, Board, Instrument

try:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource
except ImportError as missing:
    raise ProfilerError("OpenTelemetry metrics need its SDK: pip install 'sm-profiler[otel]'") from missing


def start_telemetry(board: Board, job: str = "", reader: MetricReader | None = None) -> MeterProvider:
    """Push the board's values until the provider is shut down, which sends the last ones.

    Args:
        board: the newest values.
        job: name of the training job, an attribute of the resource.
        reader: of the metrics; default: a periodic one that pushes by OTLP over HTTP.
    """
    attributes = {"service.name": "sm-profiler", "host.name": board.node, **({"sm_profiler.job": job} if job else {})}
    provider = MeterProvider([reader or _otlp_reader()], Resource.create(attributes), shutdown_on_exit=False)
    meter = provider.get_meter("sm_profiler", __version__)
    for instrument in (CPU, STEPS, *{one.name: one for one in GAUGES.values()}.values()):
        create = meter.create_observable_counter if instrument.counts else meter.create_observable_gauge
        create(instrument.name, [_reader_of(board, instrument)], instrument.unit, instrument.text)
    return provider


def _otlp_reader() -> MetricReader:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 - may be replaced
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415

    return PeriodicExportingMetricReader(OTLPMetricExporter())


def _reader_of(board: Board, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Any]]:
    def read(_: CallbackOptions) -> Iterable[Any]:
        return [
            Observation(value.value, dict(value.labels))
            for value in board.values()
            if value.instrument.name == instrument.name
        ]

    return read
