"""Fixtures shared by all packages' tests."""

import os
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNTIL = float(os.environ.get("SM_PROFILER_TESTS_UNTIL", "inf"))  # seconds since the epoch


def pytest_runtest_setup():
    """Skip what does not fit into the time that CI has."""
    if time.time() > UNTIL:
        pytest.skip("no time is left: SM_PROFILER_TESTS_UNTIL has passed")


@pytest.fixture(scope="session")
def sdk3_python():
    """Python of the environment with SageMaker SDK v3; without it the test is skipped, in CI it fails."""
    python = ROOT / ".envs/sdk3/bin/python"
    if not python.exists():
        message = "no environment with SageMaker SDK v3: `make test` creates it"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return python
