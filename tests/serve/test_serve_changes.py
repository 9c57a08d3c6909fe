"""Windows of running jobs are changed only if that is allowed, after a question, and never by another site."""

import json
import re

import pytest
from starlette.testclient import TestClient

from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.serve.app import FileTarget, JobTarget, Window, create_app, target_of
from sm_profiler.serve.jobs import Jobs, find_shown
from tests.support.serving import Polled, copy_files, data_files, make_job

CONFIG = {
    "S3OutputPath": "s3://bucket/x",
    "ProfilingParameters": {
        "LocalPath": "/tmp/x",
        "DataloaderProfilingConfig": '{"StartStep": 7, "NumSteps": 1, "MetricsRegex": ".*"}',
    },
}
ASKED = {"kind": "dataloader", "start": "500", "steps": "4"}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("changes") / "job", "--minutes", "1")


@pytest.fixture
def folder(source, tmp_path):
    copy_files(source, tmp_path / "job", data_files(source))
    (tmp_path / "job" / "profilerconfig.json").write_text(json.dumps(CONFIG))
    return tmp_path / "job"


def opened(folder, *, allow_changes=True):
    app = create_app(Jobs([str(folder)], follow=Polled), allow_changes=allow_changes)
    (found,) = find_shown(str(folder))
    return TestClient(app, base_url="http://127.0.0.1:8899"), f"/jobs/{found.id}/windows"


def window_of(folder):
    request = json.loads((folder / "profilerconfig.json").read_text())
    return json.loads(request["ProfilingParameters"]["DataloaderProfilingConfig"])


def csrf(browser, path):
    return re.search(r'name="csrf" value="([^"]+)"', browser.get(path).text)[1]


def test_is_hidden_and_refused_unless_allowed(folder):
    browser, path = opened(folder, allow_changes=False)
    assert "windows" not in browser.get(path.removesuffix("/windows")).text.partition("<main")[0].partition("<body")[2]
    assert browser.get(path).status_code == 403
    assert browser.post(path, data={**ASKED, "sure": "yes"}).status_code == 403
    assert window_of(folder)["StartStep"] == 7


def test_asks_before_it_changes_the_file(folder):
    browser, path = opened(folder)
    assert f'href="{path.split("/")[2]}/windows"' in browser.get(path.removesuffix("/windows")).text
    form = {**ASKED, "csrf": csrf(browser, path)}
    answer = browser.post(path, data=form)
    assert "Really change it?" in answer.text
    assert window_of(folder)["StartStep"] == 7
    answer = browser.post(path, data={**form, "sure": "yes"})
    assert "The window is changed" in answer.text
    assert window_of(folder) == {"StartStep": 500, "NumSteps": 4, "MetricsRegex": ".*"}


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}])
def test_other_sites_change_nothing(folder, headers):
    browser, path = opened(folder)
    form = {**ASKED, "csrf": csrf(browser, path), "sure": "yes"}
    assert browser.post(path, data=form, headers=headers).status_code == 403
    assert browser.post(path, data={**form, "csrf": "wrong"}).status_code == 403
    assert browser.post(path, data={**ASKED, "sure": "yes"}).status_code == 403
    assert window_of(folder)["StartStep"] == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "x"},
        {"start": "-1"},
        {"start": "1e9"},
        {"start": "\u0661"},
        {"steps": "0"},
        {"steps": "1001"},
        {"steps": ""},
    ],
)
def test_refuses_what_is_no_window(folder, wrong):
    browser, path = opened(folder)
    form = {**ASKED, **wrong, "csrf": csrf(browser, path), "sure": "yes"}
    answer = browser.post(path, data=form)
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text
    assert window_of(folder)["StartStep"] == 7


def test_a_profile_without_a_configuration_cannot_be_changed(source, tmp_path):
    with pytest.raises(ConfigError, match=r"no profilerconfig\.json"):
        target_of(str(source), "job")


def test_a_file_that_is_no_configuration_is_left_alone(tmp_path):
    path = tmp_path / "profilerconfig.json"
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="must contain a JSON object"):
        FileTarget(path).change(Window.parse(ASKED))
    assert path.read_text() == "[1]"


class Client:
    def __init__(self, status="InProgress"):
        self.status, self.updates = status, []

    def describe_training_job(self, **_):
        return {"TrainingJobStatus": self.status, "ProfilerConfig": {**CONFIG, "Extra": 1}}

    def update_training_job(self, **request):
        self.updates.append(request)


def test_a_training_job_is_changed_by_the_api():
    client = Client()
    JobTarget("job", client).change(Window.parse(ASKED))
    (update,) = client.updates
    assert update["TrainingJobName"] == "job"
    assert set(update["ProfilerConfig"]) == {"S3OutputPath", "ProfilingParameters"}
    assert json.loads(update["ProfilerConfig"]["ProfilingParameters"]["DataloaderProfilingConfig"])["StartStep"] == 500


def test_a_job_that_is_over_is_not_changed():
    client = Client("Completed")
    with pytest.raises(SourceError, match="not running"):
        JobTarget("job", client).change(Window.parse(ASKED))
    assert client.updates == []
