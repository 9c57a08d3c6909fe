"""The slowest stage of a tf.data pipeline, from what TensorFlow's own model measured of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.model import Evidence, Location
from sm_profiler.formats import event_names
from sm_profiler.formatting import duration

_CALLS_PYTHON = ("from_generator",)
_FUNCTIONS = ("map", "interleave", "filter", "flat_map")


@attrs.frozen
class Stage:
    """One stage of a pipeline.

    Attributes:
        name: `map(decode)`.
        element: seconds for one of its elements; 0 if TensorFlow forgot them.
        batch: seconds for a batch of the loop, with its parallelism.
        share: part of the time of all stages for a batch.
        parallelism: elements that it processes at once.
        parallel: whether that number can be raised.
        prefetch, cache: whether a stage of the pipeline does that.
        place: the user's function, if it is known.
    """

    name: str
    element: float
    batch: float
    share: float
    parallelism: int
    parallel: bool
    prefetch: bool
    cache: bool
    place: Location | None

    @property
    def clause(self) -> str:
        """End of a headline."""
        if not self.element:
            return f": most of it in {self.name}"
        how = f"{self.parallelism} at once" if self.parallelism > 1 else "one at a time"
        return f": {self.name} takes {duration(self.element)} for an element, {how}"

    @property
    def advice(self) -> str:
        """The next step."""
        steps = [self._faster()]
        if not self.prefetch:
            steps.append("End the pipeline with .prefetch(tf.data.AUTOTUNE), so that it works while the model does.")
        if not self.cache and self.name.startswith(_FUNCTIONS):
            steps.append(
                "If the result is the same in every epoch and fits in memory, add .cache() behind it; else store it once."
            )
        return " ".join(steps)

    def _faster(self) -> str:
        if self.name.startswith(_CALLS_PYTHON):
            return (
                f"{self.name} runs Python code, one element at a time: read with TensorFlow's own datasets (TFRecord), or "
                "interleave several generators with num_parallel_calls."
            )
        if self.name.startswith(("map", "interleave")) and not self.parallel:
            return f"Give {self.name} num_parallel_calls=tf.data.AUTOTUNE."
        if self.name.startswith("map") and self.parallelism <= 1:
            return f"Give {self.name} num_parallel_calls (tf.data.AUTOTUNE, or the number of cores)."
        if self.name.startswith(_FUNCTIONS):
            return (
                f"{self.name} runs on {self.parallelism} threads already: make it cheaper. Code in tf.py_function or "
                "tf.numpy_function holds Python's lock; replace it with TensorFlow's operators, or run it on whole batches "
                "(.batch before .map)."
            )
        if self.name.startswith("shuffle"):
            return "Use a smaller shuffle buffer, or shuffle file names and smaller elements before decoding."
        return f"Make {self.name} cheaper: read larger files (TFRecord), interleave them with num_parallel_calls."

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The measurements."""
        if not self.element:
            return (Evidence("slowest stage of the input pipeline", self.name),)
        return (
            Evidence("slowest stage of the input pipeline", self.name),
            Evidence("its time for one element", round(self.element * 1e3, 4), unit="ms"),
            Evidence("its time for a batch", round(self.batch * 1e3, 3), unit="ms"),
            Evidence("its part of all stages' time", round(self.share, 4), policy.SLOW_STAGE, unit="share", held="judged from"),
        )  # fmt: skip


def batch_seconds(context: JudgeContext) -> float:
    """Return the seconds in which the stages make a batch, without handing over what is ready; 0 if none were recorded."""
    return max(
        (
            sum(
                _number(one.get("batch_us"))
                for one in _stages(about)
                if not str(one.get("stage", "")).startswith("prefetch")
            )
            / 1e6
            for about in _latest(context)
        ),
        default=0.0,
    )


def slow_stage(context: JudgeContext) -> Stage | None:
    """Return the stage that takes most of the time for a batch, or None if none dominates or none was recorded."""
    wait = context.mean(lambda rank: rank.mean("wait", without_stalls=False))
    stages = [stage for about in _latest(context) if (stage := forgotten(about, wait) or slowest(about)) is not None]
    return max(stages, key=lambda stage: stage.batch, default=None)


def _latest(context: JudgeContext) -> list[Mapping[str, Any]]:
    """Return the most complete record of each judged process."""
    found = context.metrics.records.get(event_names.DATA_STAGES)
    names = {rank.name for rank in context.ranks}
    latest: dict[str, Mapping[str, Any]] = {}
    for record in found.longest if found else ():
        if record.process in names and known(record.args) > known(latest.get(record.process, {})):
            latest[record.process] = record.args
    return list(latest.values())


def forgotten(about: Mapping[str, Any], wait: float) -> Stage | None:
    """Return the stage that TensorFlow forgot, if those that it measured explain little of the wait for a batch."""
    lost = about.get("forgotten")
    measured = sum(_number(one.get("batch_us")) for one in _stages(about)) / 1e6
    if about.get("partial") is not True or not isinstance(lost, dict) or measured > policy.MEASURED_STAGES * wait:
        return None
    place = _place(lost, 1.0)
    name = str(lost.get("stage", ""))[:100]
    cached = about.get("cache") is True
    if place is None:
        return None
    return Stage(name, 0.0, wait, 1.0, 1, parallel=False, prefetch=True, cache=cached, place=place)


def known(about: Mapping[str, Any]) -> tuple[bool, float]:
    """Return how complete the stages of a record are: all of them, for many batches."""
    return about.get("partial") is not True and bool(about), _number(about.get("batches"))


def slowest(about: Mapping[str, Any]) -> Stage | None:
    """Return the stage of a record that takes most of the time for a batch, or None if none dominates."""
    known = _stages(about)
    total = sum(_number(one.get("batch_us")) for one in known)
    worst = max(known, key=lambda one: _number(one.get("batch_us")), default=None)
    if worst is None or total <= 0:
        return None
    share = _number(worst.get("batch_us")) / total
    if share < policy.SLOW_STAGE or str(worst.get("stage", "")).startswith("prefetch"):
        return None  # to hand over what is ready is no work
    place = _place(worst, share)
    if place is None and str(worst.get("stage", "")).startswith(_CALLS_PYTHON):
        return None  # a library's generator, whose workers are known otherwise
    return Stage(
        str(worst.get("stage", ""))[:100], _number(worst.get("us")) / 1e6, _number(worst.get("batch_us")) / 1e6, share,
        max(int(_number(worst.get("parallelism"))), 1), worst.get("parallel") is True, about.get("prefetch") is True,
        about.get("cache") is True,
        place,
    )  # fmt: skip


def _stages(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    stages = about.get("stages")
    return [one for one in stages if isinstance(one, dict)] if isinstance(stages, list) else []


def _place(about: Mapping[str, Any], share: float) -> Location | None:
    file, line, function = (about.get(name) for name in ("file", "line", "function"))
    known = isinstance(file, str) and isinstance(line, int) and isinstance(function, str)
    return Location(str(file), int(str(line)), str(function), share, "wait") if known else None


def _number(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return max(float(value), 0.0) if number else 0.0
