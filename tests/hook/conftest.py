import json
import sys
from pathlib import Path

import pytest

from sm_profiler.hook import entry

sys.path.append(str(Path(__file__).parents[1] / "formats"))  # for the maker of xplane traces


@pytest.fixture
def session(tmp_path, monkeypatch):
    """The session of an installed hook without windows."""
    monkeypatch.setenv("SM_PROFILER_CONFIG", json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path)}}))
    yield entry.install().session
    entry.uninstall()
