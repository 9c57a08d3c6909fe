import json

import pytest

from sm_profiler.hook import entry


@pytest.fixture
def hook(tmp_path, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CONFIG", json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path)}}))
    hook = entry.install()
    yield hook
    entry.uninstall()
