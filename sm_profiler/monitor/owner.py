"""Identity of the job and its machine among the system metrics: the only record of it in a profile without steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from sm_profiler.container import INPUT_CONFIG, Resources, read_resources
from sm_profiler.formats.system_writer import Measurement
from sm_profiler.identity import IDENTITY_TYPE, INSTANCE_TYPE, LABEL, LABEL_TYPE, MACHINE, identity
from sm_profiler.monitor.host import host_id

EVERY_S = 60.0  # each minute's file has it, so that any part of a profile does


def _machine() -> str:
    return host_id(in_container=Path(INPUT_CONFIG).is_dir())


@attrs.define(eq=False)
class Owner:
    """Source of rows whose name and dimension are a key and its text, and whose value is 1.

    Attributes:
        who: returns the identity.
        machine: returns the id of the machine, the same in all of its jobs; "" if none is known.
        resources: returns this machine's place in its job.
    """

    who: Callable[[], dict[str, str]] = identity
    machine: Callable[[], str] = _machine
    resources: Callable[[], Resources] = read_resources
    name: str = "identity"
    _rows: list[Measurement] | None = attrs.field(default=None, init=False)
    _due: float = attrs.field(default=float("-inf"), init=False)

    def measure(self, now: float) -> Iterable[Measurement]:
        """Return the rows, once a minute."""
        if now < self._due:
            return ()
        self._due = now + EVERY_S
        if self._rows is None:
            self._rows = self._read()
        return self._rows

    def _read(self) -> list[Measurement]:
        found = {**self.who(), MACHINE: self.machine(), INSTANCE_TYPE: self.resources().instance_type or ""}
        return [
            Measurement(LABEL_TYPE, key.removeprefix(LABEL), text, 1.0)
            if key.startswith(LABEL)
            else Measurement(IDENTITY_TYPE, key, text, 1.0)
            for key, text in found.items()
            if text
        ]
