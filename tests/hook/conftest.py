import json

import pytest

from sm_profiler.hook import entry


@pytest.fixture
def session(tmp_path, monkeypatch):
    """The session of an installed hook without windows."""
    monkeypatch.setenv("SM_PROFILER_CONFIG", json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path)}}))
    yield entry.install().session
    entry.uninstall()
