"""A list of sent findings, so that a finding is sent once however often it is exported."""

from __future__ import annotations

import hashlib
import json

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.exporters.message import place_of
from sm_profiler.report import Report
from sm_profiler.storage import MissingFileError, Storage

FILE = "sent.json"
MAX_BYTES = 4_000_000


@attrs.define(eq=False)
class Ledger:
    """The list beside a job's report: keys of findings that were sent.

    A process that is killed right after sending, before it is noted, sends once more the next time.
    """

    storage: Storage
    _sent: set[str] | None = None

    def has(self, report: Report, destination: str) -> bool:
        """Return whether the report's verdict was sent to a destination."""
        return key_of(report, destination) in self._keys()

    def prepare(self) -> None:
        """Write the list as it is: what could not be noted would be sent each time.

        Raises:
            SourceError: the list cannot be written.
        """
        self._write(self._keys())

    def note(self, report: Report, destination: str) -> None:
        """Note that it was sent.

        Raises:
            SourceError: the list cannot be written.
        """
        self._write(self._keys() | {key_of(report, destination)})

    def _write(self, keys: set[str]) -> None:
        self.storage.write(FILE, (json.dumps({"sent": sorted(keys)}, indent=1) + "\n").encode())
        self._sent = keys

    def _keys(self) -> set[str]:
        if self._sent is None:
            try:
                found = json.loads(self.storage.read(FILE)[:MAX_BYTES])
            except MissingFileError:
                found = {}
            except (ValueError, RecursionError):
                raise SourceError(f"{self.storage.uri}/{FILE} is damaged: remove it to send everything again") from None
            sent = found.get("sent") if isinstance(found, dict) else None
            self._sent = {one for one in sent if isinstance(one, str)} if isinstance(sent, list) else set()
        return self._sent


def key_of(report: Report, destination: str) -> str:
    """Return the key of a report's verdict at a destination; the destination's address, often a secret, stays out of it."""
    text = f"{destination}\0{place_of(report)}\0{report.metrics.name}\0{report.verdict.kind.value}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
