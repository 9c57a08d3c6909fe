"""Synthetic jobs on disk."""

import atexit
import contextlib
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from tests.tools import make_job as generator


def remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not a child that a test has forked
        shutil.rmtree(folder, ignore_errors=True)


@cache
def written_once(options: tuple[str, ...]) -> Path:
    scratch = tempfile.mkdtemp(prefix="sm-profiler-tests-")
    atexit.register(remove, scratch, os.getpid())
    folder = Path(scratch, "job", "profiler-output")
    with contextlib.redirect_stdout(None):
        generator.main(["--out", str(folder), *options])
    return folder


def shared_job(*options: object) -> Path:
    """Return the folder of a job that tests only read; it is written once for each set of options of `make_job.py`."""
    return written_once(tuple(" ".join(map(str, options)).split()))


def make_job(folder: Path, *options: object) -> Path:
    """Write a job with these options of `make_job.py` into a folder, and return the folder."""
    return Path(shutil.copytree(shared_job(*options), folder, copy_function=shutil.copyfile, dirs_exist_ok=True))
