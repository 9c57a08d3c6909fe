"""Pages that are kept for the next start stay in a test's own folder."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("SM_PROFILER_CACHE", str(tmp_path_factory.mktemp("cache")))
