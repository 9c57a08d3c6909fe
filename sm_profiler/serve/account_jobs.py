"""Training jobs of an account as a source: their states, and the verdicts of those that have a report."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import attrs

from sm_profiler.fleet.candidate import ACCOUNT, Candidate
from sm_profiler.report.saved import SavedVerdict, verdict_of

CLOSING_S = 5.0
MAX_SHOWN = 200  # the newest jobs: two requests a minute


@attrs.frozen
class Listed:
    """One job of an account.

    Attributes:
        name: its name.
        where: its name with the account's region, as `split_place` takes it.
        state: `running` or `ended`.
        created: seconds since the epoch.
        saved: the verdict of its report; None without one, or if it has not been read yet.
    """

    name: str
    where: str
    state: str
    created: float
    saved: SavedVerdict | None = None


def is_account(source: str) -> bool:
    """Return whether a source is `account:REGION`, or a job of one."""
    return source.startswith(ACCOUNT)


def split_place(where: str) -> tuple[str, str]:
    """Return region and name of a job of an account."""
    region, _, name = where.removeprefix(ACCOUNT).partition("/")
    return region, name


@attrs.define(eq=False)
class AccountJobs:
    """Lists an account's jobs, and reads the reports of ended ones in the background, at the pace the service accepts.

    Attributes:
        source: `account:REGION`.
    """

    source: str
    _account: Any = None
    _known: dict[str, SavedVerdict | None] = attrs.field(factory=dict)
    _reader: threading.Thread | None = None
    _stop: threading.Event = attrs.field(factory=threading.Event)

    def jobs(self) -> Iterator[Listed]:
        """Yield the newest jobs.

        Raises:
            SourceError: they cannot be listed.
        """
        from sm_profiler.fleet.account import Account  # noqa: PLC0415 - needs boto3

        account = self._account = self._account or Account.open(self.source.removeprefix(ACCOUNT))
        found = list(islice(account.candidates(), MAX_SHOWN))
        self._read([one for one in found if one.ended and self._key(one) not in self._known])
        for one in found:
            state = "ended" if one.ended else "running"
            where = f"{ACCOUNT}{account.region}/{one.name}"
            yield Listed(one.name, where, state, one.started, self._known.get(self._key(one)))

    def close(self) -> None:
        """Stop reading; a request that is under way ends first."""
        self._stop.set()
        if self._reader is not None:
            self._reader.join(CLOSING_S)

    def _read(self, missing: list[Candidate]) -> None:
        if missing and (self._reader is None or not self._reader.is_alive()):
            self._reader = threading.Thread(target=self._read_all, args=(missing,), daemon=True)
            self._reader.start()

    def _read_all(self, missing: list[Candidate]) -> None:
        for one in missing:
            if self._stop.is_set():
                return
            self._known[self._key(one)] = _verdict(one)

    @staticmethod
    def _key(one: Candidate) -> str:
        return f"{one.job}\n{one.modified}"


def _verdict(one: Candidate) -> SavedVerdict | None:
    try:
        report: Any = one.load().report
    except Exception:  # noqa: BLE001 - a job that cannot be read is shown without a verdict, and the others are read
        return None
    return verdict_of(report) if report is not None else None
