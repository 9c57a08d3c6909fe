"""Detect whether a source holds traces or a profile."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.kineto_reader import is_kineto, unpacked_head
from sm_profiler.source.elsewhere import profile_around
from sm_profiler.storage import Storage, open_storage

_OURS = re.compile(r"(?:^|/)((?:system|framework)/.*|profiler-output/.*)")
_LOOKED_AT = 2000  # files of a folder or prefix
_OPENED = 40  # of them, those named after traces first
_HEAD = 64 << 10


def holds_only_traces(where: str) -> bool:
    """Return whether a source is a trace of torch.profiler, or holds some among its first files and no profile.

    Raises:
        SourceError: it is, or only holds, traces of other programs.
    """
    remote = "://" in where
    if not remote and not Path(where).exists():
        return False  # the name of a training job
    if not remote and Path(where).is_file():
        path = Path(where)
        head = _head(open_storage(path.parent), path.name)
        if not is_kineto(head) and (kind := _other_trace(head)):
            raise SourceError(f"{where} is {kind}, not a trace of torch.profiler")
        return is_kineto(head)
    try:
        storage = open_storage(where)
        keys = [info.key for info in islice(storage.list(), _LOOKED_AT)]
        if any(_is_ours(key) for key in keys):
            return False
        candidates = [key for key in keys if key.endswith((".json", ".json.gz"))]
        candidates = sorted(candidates, key=lambda key: "trace" not in key.lower())[:_OPENED]
        others = {}
        for key in candidates:
            head = _head(storage, key)
            if is_kineto(head):
                return True
            if kind := _other_trace(head):
                others[key] = kind
    except SourceError:
        return False  # reported by the reader of profiles
    if others and not profile_around(where):
        key, kind = next(iter(others.items()))
        raise SourceError(f"{where} contains neither a profile nor a trace of torch.profiler; {key} is {kind}")
    return False


def _is_ours(key: str) -> bool:
    """Return whether a file belongs to a profile; other programs, too, have folders named `system`."""
    found = _OURS.search(key)
    if found is None:
        return False
    path = found[1].removeprefix("profiler-output/")
    return path in layout.END_MARKERS or path.endswith(layout.TEMPORARY) or layout.parse_path(path) is not None


def _head(storage: Storage, key: str) -> bytes:
    return unpacked_head(storage.read(key, 0, _HEAD))


def _other_trace(head: bytes) -> str:
    """Return what a file is if it is a trace of another kind; empty for anything else."""
    if b'"nodes"' in head and b'"schema"' in head:
        return "an execution trace (of ExecutionTraceObserver), which has no kernels' times"
    if b'"traceEvents"' in head or (head.lstrip()[:1] == b"[" and b'"ph"' in head):
        return "a trace of another program"
    return ""
