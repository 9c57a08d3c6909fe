"""The report's own folds, and the metrics of a job from them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs
import numpy as np

from sm_profiler.folding import error_line
from sm_profiler.formats import event_names
from sm_profiler.identity import INSTANCE_TYPE
from sm_profiler.metrics.attempts import processes_before
from sm_profiler.metrics.ends import LEFT_S, SILENT_S, EndFacts, StoredEnd
from sm_profiler.metrics.job_metrics import JobMetrics, measure_job
from sm_profiler.metrics.left_out import FunctionTime, read_functions
from sm_profiler.metrics.memory_fold import MemoryFold
from sm_profiler.metrics.record_fold import RecordFold
from sm_profiler.metrics.sample_fold import SampleFold
from sm_profiler.metrics.step_fold import StepFold, StepSummary
from sm_profiler.metrics.system_fold import SystemFold, SystemSeries, UsageFold
from sm_profiler.rules.profiler_report import ProfilerReport
from sm_profiler.source.open_files import closes_in
from sm_profiler.source.opening import job_name

STORED_S = 120.0  # of records after those of an earlier report; with more, the job went on


@attrs.frozen
class JobInfo:
    """Properties of a job that its profile does not contain.

    Attributes:
        name: name of the training job; default: from the source.
        instance_type: such as `ml.g5.xlarge`; default: from the hook's metadata.
        finished: whether the job is over; default: from the source's end markers, or the age of its data.
        prices: instance type → dollars an hour, added to the built-in table or in its place; see `report.prices.Prices`.
        description: the response of DescribeTrainingJob, for the parts of the start that the profile does not contain.
        stored_end: its end in an earlier report.
    """

    name: str | None = None
    instance_type: str | None = None
    finished: bool | None = None
    prices: Mapping[str, object] | None = None
    description: Mapping[str, Any] | None = None
    stored_end: StoredEnd | None = None


@attrs.define
class MetricFolds:
    """The report's own folds, updated in the rules' pass."""

    steps: StepFold = attrs.field(factory=StepFold)
    system: SystemFold = attrs.field(factory=SystemFold)
    memory: MemoryFold = attrs.field(factory=MemoryFold)
    records: RecordFold = attrs.field(factory=RecordFold)
    samples: SampleFold = attrs.field(factory=SampleFold)
    usage: UsageFold = attrs.field(factory=UsageFold)

    def all(self) -> list[Any]:
        """Return the folds for `run_rules(extra_folds=…)`."""
        return [getattr(self, field.name) for field in attrs.fields(type(self))]

    @classmethod
    def of(cls, folds: Iterable[Any]) -> MetricFolds:
        """Return the folds of `all()` again, from an engine that fed them."""
        by_type = {type(fold): fold for fold in folds}
        return cls(*(by_type[type(fold)] for fold in cls().all()))

    def metrics(self, source: Any, job: JobInfo, broken: dict[str, str] | None = None) -> JobMetrics:
        """Return the metrics of the data so far.

        Args:
            source: the profile source.
            job: what it does not contain.
            broken: receives the names of folds without a result, each with one line about the error; default: raise it.
        """

        def result(fold: Any, *known: Any) -> Any:
            try:
                return fold.result(*known)
            except Exception as error:
                if broken is None:
                    raise
                broken.setdefault(type(fold).__name__, error_line(error))
                return type(fold)().result()

        records = (one for one in source.metadata() if one.get("name") == event_names.PROCESS)
        metadata = tuple(dict(one["args"]) for one in records if isinstance(one.get("args"), Mapping))
        system = result(self.system)
        types = {node: owner[INSTANCE_TYPE] for node, owner in system.owners.items() if owner.get(INSTANCE_TYPE)}
        types |= {str(one.get("node")): str(one["instance_type"]) for one in metadata if one.get("instance_type")}
        recorded_type = next(iter(types.values()), None)
        samples, steps = result(self.samples, processes_before(metadata)), result(self.steps)
        description = job.description if job.description is not None else getattr(source, "description", None)
        return measure_job(
            steps,
            system,
            name=job.name or job_name(getattr(source, "origin", source.uri)),
            running=False,
            instance_type=job.instance_type or recorded_type,
            metadata=metadata,
            memory=result(self.memory),
            records=result(self.records),
            samples=samples,
            usage=result(self.usage),
            description=description,
            functions=() if samples.stacks else _functions(source, broken),
            types_by_node={} if job.instance_type else types,
            facts=_facts(source, job, description or {}, _last(steps, system) if metadata else None),
        )


def new_folds(parameters: Mapping[str, object], compat: Literal["service"] | None = None) -> list[Any]:
    """Return all that a report folds, without any data: the rules, then the folds of `MetricFolds`.

    Args:
        parameters: of the rules, as `run_rules` takes them.
        compat: "service" for the managed service's numbers; such folds cannot be merged.
    """
    values: dict[str, Any] = dict(parameters)
    return [ProfilerReport(compat=compat, **values), *MetricFolds().all()]


def _last(steps: StepSummary, system: SystemSeries) -> float | None:
    """Return the time of the last record, seconds since the epoch; None without any."""
    times = [system.last_s, *(end / 1e6 for _, end in steps.loop.values())]
    return max((one for one in times if np.isfinite(one)), default=None)


def _facts(source: Any, job: JobInfo, description: Mapping[str, Any], last: float | None) -> EndFacts:
    """Return what is known of the job's end besides the records of its processes."""
    run, last_us = getattr(source, "run", None), getattr(source, "last_timestamp_us", None)
    left_open = getattr(source, "left_open", False)
    silent_s = max(time.time() - last, 0.0) if last is not None else None
    stored, latest = job.stored_end, last if last is not None else (last_us or 0) / 1e6
    if stored is not None and stored.last < latest - STORED_S:
        stored = None  # the job went on
    since = (silent_s, LEFT_S) if left_open else (last_us and time.time() - last_us / 1e6, SILENT_S)
    return EndFacts(
        run=run.end if run is not None else "",
        exit_code=run.exit_code if run is not None else None,
        finished=source.finished if job.finished is None else job.finished,
        is_fresh=job.finished is False or (since[0] is not None and since[0] < since[1]),
        first_file_s=closes_in(source.storage.root) if run is not None and not run.is_over else None,
        description=description,
        left_open=left_open,
        silent_s=silent_s,
        stored=stored,
    )


def _functions(source: Any, broken: dict[str, str] | None) -> tuple[FunctionTime, ...]:
    """Return the functions of the Python window, which matter if no stacks were sampled."""
    try:
        return read_functions(source)
    except Exception as error:
        if broken is None:
            raise
        broken.setdefault(read_functions.__name__, error_line(error))
        return ()
