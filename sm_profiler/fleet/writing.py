"""Write fleet.html, fleet.json and fleet.parquet."""

from __future__ import annotations

import os

from sm_profiler.fleet.model import Fleet
from sm_profiler.fleet.table import to_parquet
from sm_profiler.storage import Storage, open_storage

HTML, JSON, TABLE = "fleet.html", "fleet.json", "fleet.parquet"


def write_fleet(fleet: Fleet, where: str | os.PathLike[str] | Storage) -> list[str]:
    """Write the files of a fleet to a folder or a storage, each in one piece.

    Args:
        fleet: the fleet.
        where: a folder, an s3:// URI, or a storage.

    Returns:
        Keys of the files, relative to `where`.

    Raises:
        SourceError: a file cannot be written.
    """
    storage: Storage = open_storage(where) if isinstance(where, (str, os.PathLike)) else where
    storage.write(JSON, fleet.to_json())
    storage.write(TABLE, to_parquet(fleet.jobs))
    from sm_profiler.fleet.page import render_html  # templates take time to load

    storage.write(HTML, render_html(fleet, storage.uri).encode())
    return [HTML, JSON, TABLE]
