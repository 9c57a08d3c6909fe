"""Detect whether a source holds traces or a profile."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

from sm_profiler.errors import SourceError
from sm_profiler.formats.kineto_reader import is_kineto, unpacked_head
from sm_profiler.storage import open_storage

_OURS = re.compile(r"(^|/)(system|framework|profiler-output)/|\.tmp$")
_LOOKED_AT = 200  # files of a folder or prefix
_OPENED = 20  # of them
_HEAD = 64 << 10


def holds_only_traces(where: str) -> bool:
    """Return whether a source is a trace of torch.profiler, or holds some among its first files and no profile."""
    remote = "://" in where
    if not remote and not Path(where).exists():
        return False  # the name of a training job
    if not remote and Path(where).is_file():
        path = Path(where)
        return is_kineto(unpacked_head(open_storage(path.parent).read(path.name, 0, _HEAD)))
    try:
        storage = open_storage(where)
        keys = [info.key for info in islice(storage.list(), _LOOKED_AT)]
        if any(_OURS.search(key) for key in keys):
            return False
        candidates = [key for key in keys if key.endswith((".json", ".json.gz"))][:_OPENED]
        return any(is_kineto(unpacked_head(storage.read(key, 0, _HEAD))) for key in candidates)
    except SourceError:
        return False  # reported by the reader of profiles
