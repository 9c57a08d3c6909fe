"""A running endpoint."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sm_profiler.local import LocalSageMaker
from tests.support.local import Bench


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSageMaker]:
    with LocalSageMaker(folder=tmp_path_factory.mktemp("endpoint")) as running:
        yield running


@pytest.fixture(scope="session")
def bench(local: LocalSageMaker) -> Bench:
    return Bench(local)


@pytest.fixture
def repository() -> Path:
    return Path(__file__).parents[2]
