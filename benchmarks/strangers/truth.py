"""The truth of each script: `truth.toml`."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent


@attrs.frozen
class Stranger:
    """A script, and what a right diagnosis of it is.

    Attributes:
        name: name of the script.
        sealed: True if it is in the sealed part.
        framework: what it trains with.
        expected: classes of which a right diagnosis has one in the lead.
        also: classes of which a right diagnosis names one as well, for two problems at once; either may lead.
        guilty: a unique fragment of each line that may be named.
        repair: `REPAIRED=1` if this variable switches to the repaired variant, `none` for a healthy script.
        ranks: processes that torchrun starts.
        measured: `loop` if the time that the script prints is compared with the gain, `job` if the whole run is.
    """

    name: str
    sealed: bool
    framework: str
    expected: tuple[str, ...] = attrs.field(converter=tuple)
    repair: str
    also: tuple[str, ...] = attrs.field(converter=tuple, default=())
    guilty: tuple[str, ...] = attrs.field(converter=tuple, default=())
    ranks: int = 1
    measured: str = "loop"

    @property
    def path(self) -> Path:
        """Return the script's file."""
        return HERE / ("sealed" if self.sealed else "open") / f"{self.name}.py"

    @property
    def healthy(self) -> bool:
        """Return True if nothing is wrong with the script."""
        return self.repair == "none"

    def lines(self) -> dict[str, list[int]]:
        """Return the numbers of the lines that contain each guilty fragment."""
        text = self.path.read_text(encoding="utf-8").splitlines()
        return {part: [number for number, line in enumerate(text, 1) if part in line] for part in self.guilty}


def strangers(*, sealed: bool) -> list[Stranger]:
    """Return one part of the scripts."""
    truth = tomllib.loads((HERE / "truth.toml").read_text(encoding="utf-8"))
    part = truth.get("sealed" if sealed else "open", {})
    return [Stranger(name=name, sealed=sealed, **entry) for name, entry in part.items()]
