"""Names of the Parquet files of profiles: `<table>/job=<job>/node=<node>/hour=<YYYYMMDDHH>/data.parquet`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, unquote

import attrs

from sm_profiler.formats import layout
from sm_profiler.source.item_table import Item
from sm_profiler.storage import Storage

SYSTEM, EVENTS, STEPS, SAMPLES, FILES = TABLES = ("system", "events", "steps", "samples", "files")
STATES = "states"  # no table
DATA = "data.parquet"
_PART = re.compile(
    rf"(?P<table>{'|'.join(TABLES)})/job=(?P<job>[^/]+)/(?:node=(?P<node>[^/]+)/hour=(?P<hour>[0-9]{{10,20}})/)?{DATA}"
)
_NODE = re.compile(r"algo-[0-9]{1,9}")
_MAX_ESCAPED = 240  # characters of a folder's name
_CUT = 20  # characters of a node's name, each of which may become 12 of those
_JOB = re.compile(r"(?P<root>.*?)/*(?:^|/)job=(?P<job>[^/]+)/*")


@attrs.frozen(order=True)
class PartKey:
    """The rows of one table, job, node and hour.

    Attributes:
        table: one of TABLES.
        node: `algo-1`; "" for the table of files.
        hour: YYYYMMDDHH, UTC, of the names of the files that the rows come from; "" for the table of files.
    """

    table: str
    job: str
    node: str = ""
    hour: str = ""

    @property
    def key(self) -> str:
        inner = f"node={_escaped(self.node)}/hour={self.hour}/" if self.node else ""
        return f"{folder_of(self.table, self.job)}{inner}{DATA}"

    def of(self, table: str) -> PartKey:
        """Return the same node and hour of another table."""
        return attrs.evolve(self, table=table)

    @classmethod
    def for_item(cls, item: Item, job: str) -> PartKey:
        """Return the part that the rows of a file belong to."""
        return cls(SYSTEM if item.is_system else EVENTS, job, host_of(item.node), layout.hour_folder(item.at_us))

    @classmethod
    def parse(cls, key: str) -> PartKey | None:
        """Parse a path; None if it is something else."""
        found = _PART.fullmatch(key)
        if not found or (found["table"] == FILES) != (found["node"] is None):
            return None
        return cls(found["table"], unquote(found["job"]), unquote(found["node"] or ""), found["hour"] or "")


def host_of(node: str) -> str:
    """Return the node of a node and process: `algo-1` for `algo-1-0`; of a foreign name too long for a folder, its beginning."""
    found = _NODE.match(node)
    name = found[0] if found else node or "unknown"
    return name if len(_escaped(name)) <= _MAX_ESCAPED else name[:_CUT]


def folder_of(table: str, job: str) -> str:
    """Return the folder of a job's table, or of the list of its files, with a slash at the end."""
    return f"{table}/job={_escaped(job)}/"


def contents_of(job: str) -> str:
    """Return the path of the list of a profile's files."""
    return f"{folder_of(STATES, job)}files.state"


def jobs_in(storage: Storage) -> Iterator[str]:
    """Yield the names of the jobs of a dataset; each has one table of files."""
    for info in storage.list(f"{FILES}/job="):
        part = PartKey.parse(info.key)
        if part is not None:
            yield part.job


def split_job(where: str) -> tuple[str, str] | None:
    """Return root and job of `ROOT/job=NAME`; None for other texts."""
    found = _JOB.fullmatch(where)
    return (found["root"] or ".", unquote(found["job"])) if found else None


def _escaped(text: str) -> str:
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")
