"""Profiles near a place that holds none: around it, or below it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import FRAMEWORK, SYSTEM, parse_path
from sm_profiler.printable import printable
from sm_profiler.storage import Storage, open_storage

OUTPUT = "profiler-output"
_SHOWN = 5
_LOOKED_AT = 2000  # files
_LAST = "\U0010ffff"


def profile_around(where: str, client: Any = None) -> str:
    """Return the profile that a folder or prefix is a part of; "" if it is in none."""
    remote = "://" in where
    scheme, _, path = where.rpartition("://") if remote else ("", "", str(Path(where).absolute()))
    parts = path.rstrip("/").split("/")
    for at in range(len(parts) - 1, 0, -1):
        if parts[at] not in (SYSTEM, FRAMEWORK):
            continue
        above = "/".join(parts[:at]) or "/"
        found = f"{scheme}://{above}" if remote else above
        try:
            files = open_storage(found, client=client).list(f"{parts[at]}/")
            if any(parse_path(one.key) is not None for one in islice(files, _LOOKED_AT)):
                return found
        except SourceError:  # the place itself is what is reported
            return ""
    return ""


def profiles_below(storage: Storage) -> list[str]:
    """Return the first profiles below a folder or prefix, by their locations; a few more than are shown."""
    found: list[str] = []
    after: str | None = None
    while len(found) <= _SHOWN:
        root = next((root for one in islice(storage.list("", after), _LOOKED_AT) if (root := _root_of(one.key))), "")
        if not root:
            break
        found.append(f"{storage.uri.rstrip('/')}/{root.removesuffix(f'/{OUTPUT}')}")
        after = f"{root}/{_LAST}"
    return found


def _root_of(key: str) -> str:
    """Return the folder of the profile that a file belongs to; "" if it belongs to none."""
    parts = key.split("/")
    for at, part in enumerate(parts[1:], 1):
        if part in (SYSTEM, FRAMEWORK) and parse_path("/".join(parts[at:])) is not None:
            return "/".join(parts[:at])
    return ""


def where_instead(where: str, storage: Storage, client: Any = None) -> str:
    """Return which place to name instead of one that holds no profile; "" if none is near."""
    if around := profile_around(where, client):
        return f"it is a folder inside of one: name {printable(around)}"
    below = profiles_below(storage)
    if not below:
        return ""
    if len(below) == 1:
        return f"there is one below it: name {printable(below[0])}"
    many = f"more than {_SHOWN}" if len(below) > _SHOWN else str(len(below))
    return f"there are {many} below it: name one of {', '.join(map(printable, below[:_SHOWN]))}"
