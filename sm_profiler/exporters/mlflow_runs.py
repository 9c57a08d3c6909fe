"""A job as an MLflow run: verdict as tags, series as metrics with MLflow's own names, the report as artifacts."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from sm_profiler.errors import SourceError
from sm_profiler.exporters.destination import group_means, place_of, within
from sm_profiler.formats.columns import Floats
from sm_profiler.metrics import parts
from sm_profiler.printable import one_line, printable
from sm_profiler.report import Report, write_report

try:
    from mlflow.entities import Metric, RunTag
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
except ImportError as missing:
    raise SourceError("this destination needs MLflow: pip install 'sm-profiler[mlflow]'") from missing

EXPERIMENT, RUN_ID, EXPERIMENT_NAME = "sm-profiler", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"
SOURCE_TAG, ARTIFACTS = "sm_profiler.source", "sm-profiler"
REQUEST_S = 180.0  # with the attempts that MLflow makes
MAX_POINTS = 500  # of a series
MAX_SERIES = 2000
MAX_RANKS = 64
_BATCH = 1000  # metrics of a request; MLflow's limit
_TAG_LENGTH = 500
# Ours → MLflow's name, with `{}` for the number of a GPU.
NAMES = {
    "cpu": "cpu_utilization_percentage",
    "memory": "system_memory_usage_percentage",
    "gpu": "gpu_{}_utilization_percentage",
    "gpu_memory": "gpu_{}_memory_usage_percentage",
}


@attrs.define(eq=False)
class Tracking:
    """Writes a job to a tracking server; the same job again goes into the same run.

    Attributes:
        client: MLflow's.
        once: tags and series may change while a job runs.
    """

    client: MlflowClient
    once: bool = False

    def send(self, report: Report) -> str:
        try:
            named = os.environ.get(RUN_ID)
            run = named or self._run(report)
            tags = [RunTag(name, printable(value)[:_TAG_LENGTH]) for name, value in tags_of(report).items()]
            self._ask(self.client.log_batch, run, tags=tags)
            batch: list[Metric] = []
            for name, seconds, values in series_of(report):
                first = float(seconds[0])
                rows = zip(seconds.tolist(), values.tolist(), strict=True)
                batch += [Metric(name, value, int(at * 1000), int(at - first)) for at, value in rows]
            for start in range(0, len(batch), _BATCH):
                self._ask(self.client.log_batch, run, metrics=batch[start : start + _BATCH])
            with tempfile.TemporaryDirectory(prefix="sm-profiler-") as scratch:
                write_report(report, Path(scratch, ARTIFACTS))
                self._ask(self.client.log_artifacts, run, str(Path(scratch, ARTIFACTS)), ARTIFACTS)
            if not named and not report.metrics.running:
                end = report.metrics.end
                self._ask(
                    self.client.set_terminated, run, end_time=int(end * 1000) if np.isfinite(end) and end > 0 else None
                )
        except (MlflowException, OSError, SourceError) as error:
            raise SourceError(f"MLflow: {one_line(error)[:300]}") from error
        return f"tags, {len(batch)} values and the report to run {run}"

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return within(REQUEST_S, partial(call, *arguments, **options))

    def _run(self, report: Report) -> str:
        """Return the run of this job, a new run if there is none."""
        name = os.environ.get(EXPERIMENT_NAME) or EXPERIMENT
        experiment = self._ask(self.client.get_experiment_by_name, name)
        number = experiment.experiment_id if experiment else self._ask(self.client.create_experiment, name)
        source = re.sub(r"['\"`\\]", "_", printable(place_of(report) or report.metrics.name))[:_TAG_LENGTH]
        quoted = source.replace("'", "\\'")
        found = self._ask(self.client.search_runs, [number], f"tags.`{SOURCE_TAG}` = '{quoted}'", max_results=1)
        if found:
            return str(found[0].info.run_id)
        start_ms = int(min((rank.start for rank in report.metrics.ranks), default=0.0) * 1000)
        tags = {SOURCE_TAG: source}
        run = self._ask(
            self.client.create_run,
            number,
            start_time=start_ms or None,
            tags=tags,
            run_name=printable(report.metrics.name)[:200],
        )
        return str(run.info.run_id)


def tags_of(report: Report) -> dict[str, str]:
    """Return the tags: the verdict in a few words."""
    main = report.verdict.main
    found = {
        "sm_profiler.verdict": main.kind.value,
        "sm_profiler.confidence": main.confidence,
        "sm_profiler.headline": main.headline,
        "sm_profiler.next_step": main.next_step,
        "sm_profiler.also": ", ".join(finding.kind.value for finding in report.verdict.also),
    }
    if main.where:
        found["sm_profiler.where"] = f"{main.where[0].file}:{main.where[0].line}"
    return {name: value for name, value in found.items() if value}


def series_of(report: Report) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield name, seconds since the epoch and values of each series, at most MAX_SERIES.

    Names of system metrics are those that MLflow records itself; with several nodes, the node's name comes first, as
    MLflow has it.
    """
    metrics, count = report.metrics, 0
    several = len(metrics.nodes) > 1
    for (node, metric, device), data in metrics.system.series.items():
        name = NAMES.get(metric)
        seen = data.count > 0
        if name is None or not seen.any() or count >= MAX_SERIES:
            continue
        count += 1
        number = re.sub(r"\D", "", device) or "0"
        prefix = f"system/{_safe(node)}" if several else "system"
        yield f"{prefix}/{name.format(number)}", *_thinned(data.seconds[seen], data.mean[seen])
    for rank in metrics.ranks[:MAX_RANKS]:
        rows = rank.iterations
        for key in (parts.WHOLE, "wait"):
            values = rows.of(key) * 1e3
            if len(rows) and values.any():
                label = "step_time_ms" if key == parts.WHOLE else "data_wait_ms"
                yield f"sm-profiler/{_safe(rank.name)}/{label}", *_thinned(rows.start, values)


def _safe(name: str) -> str:
    """Return a name of characters that MLflow's metrics may have."""
    return re.sub(r"[^\w. -]+", "_", name, flags=re.ASCII)[:100] or "_"


def _thinned(seconds: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return the means of equal groups, at most MAX_POINTS, without values that are not finite."""
    good = np.isfinite(values) & np.isfinite(seconds)
    seconds, values = seconds[good], values[good]
    if not len(values):
        return np.zeros(1), np.zeros(1)
    starts, means = group_means(values, MAX_POINTS)
    return seconds[starts], means


def open_exporter(place: str) -> Tracking:
    """Return the exporter; MLflow then follows no redirect, which would send the report to another host."""
    os.environ.setdefault("MLFLOW_ALLOW_HTTP_REDIRECTS", "false")
    try:
        return Tracking(MlflowClient(tracking_uri=place or None))
    except MlflowException as error:
        raise SourceError(f"MLflow: {one_line(error)[:300]}") from error
