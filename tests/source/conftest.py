import numpy as np
import pytest

from sm_profiler.formats.columns import Category
from tests.support.jobs import shared_job


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def job():
    return shared_job("--minutes", "4", "--gpus", "2", "--horovod", "--nodes", "2")


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
