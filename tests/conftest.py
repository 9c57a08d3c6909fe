"""Fixtures shared by all packages' tests."""

import os
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.jobs import remove_shared_jobs

ROOT = Path(__file__).parents[1]
REMEDIES = (
    ("Chromium is not installed", "tests in a browser", "install Chromium (apt install chromium)"),
    ("the image cannot be built here", "tests of the rule image", "install buildah and debootstrap, and be root"),
)
UNTIL = float(os.environ.get("SM_PROFILER_TESTS_UNTIL", "inf"))  # seconds since the epoch

# Hundreds of processes import the same modules: what one has compiled, the others read, even where the shell has
# PYTHONDONTWRITEBYTECODE.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

with suppress(ImportError):  # the environments of other SDKs and frameworks have pytest only
    from hypothesis import settings

    settings.register_profile(
        "no deadline", deadline=None
    )  # an example that takes 0.2 s on a busy machine is no failure
    settings.load_profile("no deadline")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave the cases after the first ones of a test with the marker `first` to the long tests."""
    cases = Counter()
    for item in items:
        if (first := item.get_closest_marker("first")) and not item.get_closest_marker("long"):
            name = item.nodeid.partition("[")[0]
            cases[name] += 1
            if cases[name] > first.args[0]:
                item.add_marker(pytest.mark.long)


def pytest_runtest_setup():
    """Skip what does not fit into the time that CI has."""
    if time.time() > UNTIL:
        pytest.skip("no time is left: SM_PROFILER_TESTS_UNTIL has passed")


def pytest_sessionfinish():
    """Remove the jobs that tests share, in pytest's workers, too, which run no exit functions."""
    remove_shared_jobs()


def pytest_terminal_summary(terminalreporter):
    """Print what switches on the tests that were skipped for want of a tool."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
    for part, kind, remedy in REMEDIES:
        if count := sum(part in reason for reason in reasons):
            terminalreporter.write_line(f"{count} {kind} were skipped; to run them: {remedy}")


@pytest.fixture(scope="session")
def sdk3_python():
    """Python of the environment with SageMaker SDK v3; without it the test is skipped, in CI it fails."""
    python = ROOT / ".envs/sdk3/bin/python"
    if not python.exists():
        message = "no environment with SageMaker SDK v3: `make test` creates it"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return python
