"""Names of a notebook's cells: code of a cell has a file name that its author has never seen."""

from __future__ import annotations

import re
import sys

from sm_profiler.formats.event_names import CELL

_FILES = re.compile(r".*/ipykernel_\d+/[^/]+\.py|<ipython-input-(\d+)-\w+>")
_files: dict[str, str] = {}  # name → file
MAX_CELLS = 10_000  # whose file is remembered


def cell_name(file: str) -> str | None:
    """Return the name of the cell whose code has this file name, `cell 5`; None if it belongs to no cell."""
    found = _FILES.fullmatch(file)
    if found is None:
        return None
    number = found.group(1) or _number(file)
    if number is None:
        return None
    name = f"{CELL}{number}"
    if len(_files) < MAX_CELLS:
        _files[name] = file
    return name


def shown(file: str) -> str:
    """Return the file name of code as its author sees it."""
    return cell_name(file) or file


def file_of(name: str) -> str:
    """Return the file name of a cell's code; other names are returned as they are."""
    return _files.get(name, name)


def _number(file: str) -> int | None:
    """Return the number of the execution that compiled the cell's code; IPython keeps it for its tracebacks."""
    try:
        shell = sys.modules["IPython"].get_ipython()
        number = shell.compile._filename_map.get(file)  # nothing public has it
    except (KeyError, AttributeError, TypeError):
        return None
    return number if isinstance(number, int) else None
