"""Write one trace of a whole job, for Perfetto and chrome://tracing, while reading it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from sm_profiler.formats.columns import EventColumns
from sm_profiler.formats.event_names import HANG
from sm_profiler.gpu_traces.timeline import add_windows, outside
from sm_profiler.metrics.hang import hang_arguments
from sm_profiler.metrics.scaling.folding import reading_with
from sm_profiler.timeline import Export, timeline_file


def export_timeline(source: Any, where: str | Path, *, executor: str | Executor | None = None) -> Export:
    """Write the whole job of a source as one trace; a file named .gz is compressed.

    Args:
        source: the profile.
        where: the file.
        executor: fetch and parse the files in other processes, as in `build_report`; the trace has the same bytes.

    Raises:
        SourceError: the file cannot be written, or the data cannot be read.
    """
    with (
        reading_with(source, executor),
        timeline_file(where, float(source.first_timestamp_us or 0), describe_hangs) as writer,
    ):
        windows = add_windows(writer, source.storage)
        for batch in source.batches(unsettled=True):
            writer.add_events(outside(windows, batch.events))
            writer.add_system(batch.system)
        return writer.finish(list(source.metadata()), source.origin)


def describe_hangs(events: EventColumns) -> list[Mapping[str, Any]] | None:
    """Return the stacks of hangs among events, which nothing else shows; None without any."""
    hangs = events.phase.mask(HANG)
    if not hangs.any():
        return None
    texts = zip(events.args.decode().tolist(), hangs.tolist(), strict=True)
    return [hang_arguments(text) if is_hang else {} for text, is_hang in texts]
