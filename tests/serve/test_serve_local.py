"""A job of the local endpoint, watched in Chromium from start to end, under the path prefix of a proxy."""

import re

import pytest

from sm_profiler.local import LocalSageMaker
from tests.support.local import start_job, wait_for_end
from tests.support.proxy import BASE, LONG_MS, Proxy, chromium, served

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(3600)]


def test_a_job_of_the_endpoint_is_watched_from_start_to_end(tmp_path, monkeypatch):
    stop = tmp_path / "stop"
    with LocalSageMaker(folder=tmp_path / "endpoint") as local, chromium() as page:
        page.set_default_timeout(10 * LONG_MS)
        for name, value in local.environment.items():
            monkeypatch.setenv(name, value)
        try:
            start_job(local, "my-training", stop)
            with served(f"account:{local.environment['AWS_REGION']}") as port:
                proxy = Proxy(target=port)
                page.goto(f"{proxy.url}?token=known")
                page.get_by_role("link", name="my-training").click()
                page.locator("#state", has_text="running").wait_for()
                page.evaluate("window.kept = true")  # a reload would lose it
                page.locator("#glance", has_text=re.compile(r"\d steps")).wait_for()
                page.locator("#log", has_text="epoch 1").wait_for()
                page.locator("#verdict .badge", has_text="Waiting for data").wait_for()
                assert "/jobs/my-training-" in page.url
                stop.touch()
                assert wait_for_end(local, "my-training")["TrainingJobStatus"] == "Completed"
                page.locator("#state", has_text=re.compile("^ended")).wait_for()
                page.locator("#log", has_text="done").wait_for()
                assert page.evaluate("window.kept")
                assert page.problems == []
                assert all(path.startswith(BASE) for path in proxy.seen)
                proxy.kill()
        finally:
            stop.touch()
