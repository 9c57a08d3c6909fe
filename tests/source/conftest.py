import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sm_profiler.formats.columns import Category

MAKE_JOB = Path(__file__).parents[1] / "tools" / "make_job.py"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def make_job(tmp_path_factory):
    """A synthetic job with these options, made once."""
    made = {}

    def make(*options: str) -> Path:
        if options not in made:
            made[options] = tmp_path_factory.mktemp("job") / "profiler-output"
            subprocess.run(
                [sys.executable, MAKE_JOB, "--out", made[options], *options], check=True, capture_output=True
            )
        return made[options]

    return make


@pytest.fixture(scope="session")
def job(make_job):
    return make_job("--minutes", "4", "--gpus", "2", "--horovod", "--nodes", "2")


def assert_same(one, other):
    """Two tables with the same rows in the same order."""
    assert type(one) is type(other)
    for field in one.__attrs_attrs__:
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, Category):
            a, b = a.decode(), b.decode()
        np.testing.assert_array_equal(a, b, err_msg=field.name)


@pytest.fixture(name="assert_same")
def assert_same_fixture():
    return assert_same
