"""Properties of profiler files that their names contain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.storage import open_storage

_NO_METADATA = ("", "0", "0")
_TIME = re.compile(r"[0-9]{1,18}")


def is_valid_tracefilename(filename: str) -> bool:
    """Return True for a trace file of the hook (`…/pevents/…/<end_us>_<node>_<kind>.json`)."""
    return filename.endswith(".json") and "pevents" in filename and len(filename.split("_")) >= 3  # the three parts


def is_valid_tfprof_tracefilename(filename: str) -> bool:
    """Return True for a trace of TensorFlow's profiler."""
    return filename.endswith("trace.json.gz") and f"tensorflow/{layout.DETAILED}" in filename


def validate_system_profiler_file(filename: str) -> bool:
    """Return True for a system metrics file."""
    return _system_file(filename) is not None


def get_node_id_from_system_profiler_filename(filename: str) -> str | None:
    """Return the node of a system metrics file (`algo-1`); None for another file."""
    found = _system_file(filename)
    return found.node if found else None


def get_utctimestamp_us_since_epoch_from_system_profiler_file(filename: str) -> int | None:
    """Return the start of a system metrics file's minute, microseconds since the epoch; None for another file."""
    found = _system_file(filename)
    return found.at_us if found else None


def get_node_id_from_tracefilename(filename: str) -> str:
    """Return the process of a trace file (`0-algo-1`).

    For a trace of TensorFlow's profiler it comes from the metadata file; "" without one.
    """
    if is_valid_tracefilename(filename):
        return filename.rsplit("/", 1)[-1].split("_")[1]
    return read_tf_profiler_metadata_file(filename)[0]


def get_timestamp_from_tracefilename(filename: str) -> int:
    """Return the end of a trace file's last event, microseconds since the epoch; 0 if unknown."""
    if is_valid_tracefilename(filename):
        text = filename.rsplit("/", 1)[-1].split("_", maxsplit=1)[0]
        return _whole(text)
    return _whole(read_tf_profiler_metadata_file(filename)[2])


def read_tf_profiler_metadata_file(file_path: str) -> tuple[str, str, str]:
    """Read the metadata file next to a trace of TensorFlow's profiler.

    Returns:
        Node, start and end (microseconds since the epoch) as text; "", "0" and "0" without such a file.
    """
    if not is_valid_tfprof_tracefilename(file_path):
        return _NO_METADATA
    folder = "/".join(file_path.split("/")[:-4])
    try:
        names = sorted(_metadata_names(folder))
    except SourceError:
        return _NO_METADATA
    for name in names:
        parts = PurePosixPath(name).name.removesuffix(layout.METADATA_SUFFIX).split("_")
        if len(parts) == 3:  # node, start and end
            return parts[0], parts[1], parts[2].split(".")[0]
    return _NO_METADATA


def is_s3(path: str) -> tuple[bool, str | None, str | None]:
    """Split an s3:// URI.

    Returns:
        True, the bucket and the key; False, None and None for any other path.
    """
    if not path.startswith("s3://"):
        return False, None, None
    bucket, _, key = path.removeprefix("s3://").partition("/")
    return True, bucket, key


def _whole(text: str) -> int:
    """Convert the digits of a time in a file name; 0 if it is not one."""
    return int(text) if _TIME.fullmatch(text) else 0


def _metadata_names(folder: str) -> Iterator[str]:
    for info in open_storage(folder).list(""):
        if info.key.endswith(layout.METADATA_SUFFIX):
            yield info.key


def _system_file(filename: str) -> layout.SystemFile | None:
    _, found, rest = filename.rpartition("system/")
    parsed = layout.parse_path(f"system/{rest}") if found else None
    return parsed if isinstance(parsed, layout.SystemFile) else None
