import json

import pytest

from sm_profiler.hook import entry
from sm_profiler.settings import REPORTED


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch):
    """A process that has reported why the hook is off keeps that in its environment, for those that it starts."""
    monkeypatch.setenv(REPORTED.name, "")


@pytest.fixture
def session(tmp_path, monkeypatch):
    """The session of an installed hook without windows."""
    monkeypatch.setenv("SM_PROFILER_CONFIG", json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path)}}))
    yield entry.install().session
    entry.uninstall()
