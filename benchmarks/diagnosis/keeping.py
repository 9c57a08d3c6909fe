"""Runs that are kept, so that later code can judge their profiles again without running anything."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

PROFILES = "sm-profiler"  # where `sm-profiler run` writes, below the script's folder
FACTS = "case.json"


def profile_in(folder: Path) -> Path:
    """Return the profile that `sm-profiler run` wrote below a folder."""
    (profile,) = (folder / PROFILES).iterdir()
    return profile


def keep(ran: Path, /, *, folder: Path, **facts: Any) -> None:
    """Copy the profile of a run to a folder of its own, with the facts that it is judged by and the load average."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if (ran / PROFILES).exists():
        ended = shutil.ignore_patterns("*.sock", "processes-*")  # of a monitor that may still run
        shutil.copytree(ran / PROFILES, folder / PROFILES, ignore=ended)
    text = json.dumps(facts | {"load_average": os.getloadavg()}, indent=1)
    (folder / FACTS).write_text(text, encoding="utf-8")


def kept(folder: Path) -> dict[Path, dict[str, Any]]:
    """Return the folder of each kept run, and its facts."""
    found = {path.parent: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"*/{FACTS}"))}
    if not found:
        raise SystemExit(f"nothing was kept in {folder}")
    return found
