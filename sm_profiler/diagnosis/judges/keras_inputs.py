"""Causes of slow input in Keras trainings: what a PyDataset or a generator could do better."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.judges.workers import workers_of
from sm_profiler.diagnosis.model import Evidence, Location
from sm_profiler.formats import event_names
from sm_profiler.metrics.record_fold import Record


@attrs.frozen
class KerasInput:
    """The input of a Keras training that is slow.

    Attributes:
        clause: end of the headline.
        advice: the next step.
        evidence: what was recorded of it.
        place: the line that defines what is slow, if it is known.
    """

    clause: str
    advice: str
    evidence: tuple[Evidence, ...] = ()
    place: Location | None = None


def keras_input(context: JudgeContext) -> KerasInput | None:
    """Return the cause in a PyDataset or a generator; None for other inputs."""
    one = training_input(context)
    if one is None or one.name not in {"PyDataset", "generator"}:
        return None
    return _py_dataset(one, context) if one.name == "PyDataset" else GENERATOR


def training_input(context: JudgeContext) -> Record | None:
    """Return the input that most training steps read, or None; a loop over an input begins after its record.

    One that was read again is recorded once: its later steps count for the input before them.
    """
    records = context.metrics.records.get(event_names.INPUT)
    if records is None or not records.longest:
        return None
    rank = next((one for one in context.ranks if records.of(one.name)), None)
    if rank is None or not len(rank.train):
        return records.longest[0]
    own = records.of(rank.name)
    rows = np.searchsorted(rank.steps.start, [one.start * 1e6 for one in own])
    read = [(one, row) for one, row in zip(own, rows, strict=True) if row < len(rank.train) and rank.train[row]]
    if not read:
        return own[0]
    ends = [*(row for _, row in read[1:]), len(rank.train)]
    steps = [int(rank.train[row:end].sum()) for (_, row), end in zip(read, ends, strict=True)]
    return read[steps.index(max(steps))][0]


def _py_dataset(record: Record, context: JudgeContext) -> KerasInput:
    workers, pool = record.args.get("num_workers"), workers_of(context)
    workers = workers if isinstance(workers, int) and workers > 0 else 0
    place, more = _place(record), max(pool.suggested, 2)
    evidence = (Evidence("workers of the PyDataset", max(workers, 1), unit=""),)
    if not workers:
        return KerasInput(
            " because the PyDataset prepares batches one after the other (workers=1)",
            f"Prepare batches ahead: create the PyDataset with workers={more}, max_queue_size={2 * more} and, if its "
            f"__getitem__ computes in Python, use_multiprocessing=True. {pool.advice()}",
            evidence,
            place,
        )
    threads = record.args.get("processes") is not True
    return KerasInput(
        f": {workers} {'threads' if threads else 'processes'} of the PyDataset cannot keep up",
        f"Create the PyDataset with more workers ({max(more, workers + 1)} instead of {workers})"
        f"{' and, if its __getitem__ computes in Python, with use_multiprocessing=True' if threads else ''}; or do the work "
        f"once and store its result. {pool.advice()}",
        evidence,
        place,
    )


GENERATOR = KerasInput(
    " because a generator prepares batches one after the other",
    "Turn the generator into a keras.utils.PyDataset with workers=4, or into a tf.data pipeline with "
    "map(…, num_parallel_calls=tf.data.AUTOTUNE) and prefetch(tf.data.AUTOTUNE).",
)


def _place(record: Record) -> Location | None:
    file, line, function = (record.args.get(name) for name in ("file", "line", "function"))
    if isinstance(file, str) and isinstance(line, int) and isinstance(function, str):
        return Location(file, line, function, share=1.0)
    return None
