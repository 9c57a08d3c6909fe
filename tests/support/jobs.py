"""Synthetic jobs on disk."""

import atexit
import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from tests.tools import make_job as generator

OWNER = os.getpid()
written: dict[tuple[str, ...], Path] = {}


@atexit.register
def remove_shared_jobs() -> None:
    """Remove what `shared_job` wrote; a child that a test forks removes nothing."""
    while written and os.getpid() == OWNER:
        shutil.rmtree(written.popitem()[1].parents[1], ignore_errors=True)


def shared_job(*options: object) -> Path:
    """Return the folder of a job that tests only read; it is written once for each set of options of `make_job.py`."""
    words = tuple(" ".join(map(str, options)).split())
    if words not in written:
        folder = Path(tempfile.mkdtemp(prefix="sm-profiler-tests-"), "job", "profiler-output")
        with contextlib.redirect_stdout(None):
            generator.main(["--out", str(folder), *words])
        written[words] = folder
    return written[words]


def make_job(folder: Path, *options: object) -> Path:
    """Write a job with these options of `make_job.py` into a folder, and return the folder."""
    return Path(shutil.copytree(shared_job(*options), folder, copy_function=shutil.copyfile, dirs_exist_ok=True))
