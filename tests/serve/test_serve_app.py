"""The pages, their answers, and who gets them."""

import asyncio
import json
import re
import shutil
import time
from urllib.parse import urlencode, urljoin

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from sm_profiler.cli.main import main
from sm_profiler.errors import ConfigError
from sm_profiler.serve.app import LOOK_S, MAX_WAITING, WAIT_S, Site, create_app
from sm_profiler.serve.jobs import MAX_LIVE, Found, Jobs, find_shown
from sm_profiler.serve.live import LiveJob
from sm_profiler.serve.server import MAX_BODY_BYTES, clean_base, listen
from tests.support.serving import Polled, copy_files, data_files, end, make_job, until

TOKEN = "a-token"  # guards nothing
NASTY = "<img src=x onerror=alert(1)>'\"{{7*7}}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("jobs")
    make_job(root / "first", "--minutes", "2", "--scenario", "dataloader-slow")
    end(root / "first")
    copy_files(root / "first", root / "deeper" / NASTY / "profiler-output", data_files(root / "first"))
    return root


def client(folder, jobs=None, **options):
    jobs = jobs or Jobs([str(folder)], follow=Polled)
    return TestClient(create_app(jobs, **options), base_url="http://127.0.0.1:8899", follow_redirects=False)


def address(folder, name="first"):
    return next(f"/jobs/{one.id}" for one in find_shown(str(folder)) if one.name == name)


def test_lists_each_job_of_a_folder(folder):
    answer = client(folder).get("/")
    assert answer.status_code == 200
    assert "first" in answer.text
    assert "&lt;img src=x" in answer.text
    assert "<img" not in answer.text
    assert "{{7*7}}" in answer.text


def links(page):
    """Return the addresses of the line of links at a page's top."""
    line = re.search(r'<nav class="back".*?</nav>', page, re.DOTALL)
    return re.findall(r'href="([^"]*)"', line[0]) if line else []


def test_every_page_leads_to_the_others(folder):
    """Behind a proxy, too: no link leaves the path under which it shows the pages."""
    base = "/user/me/proxy/8899"
    browser = client(folder, base=base, allow_changes=True)
    jobs = [f"{base}/jobs/{one.id}" for one in find_shown(str(folder))]
    pair = f"{base}/compare?a={jobs[0].rpartition('/')[2]}&b={jobs[1].rpartition('/')[2]}"
    home = {f"{base}/", f"{base}/fleet"}
    assert browser.get(f"{base}/").status_code == 200
    seen = {}
    for start in (*home, *jobs, pair, f"{jobs[1]}/windows", f"{base}/jobs/none", f"{base}/jobs/none/windows"):
        answer = browser.get(start)
        found = {urljoin(start, link) for link in links(answer.text)}
        assert home - {start} <= found, (start, answer.text)
        assert start not in found
        seen |= dict.fromkeys(found, start)
    for link, start in seen.items():
        assert link.startswith(f"{base}/")
        expected = {400} if link.endswith("/windows") else {200, 202}  # nothing configures these jobs
        assert browser.get(link).status_code in expected, (link, start)
    assert set(jobs) <= seen.keys()  # from the comparison and from the form
    assert any(link.endswith("/windows") for link in seen)


def test_one_job_alone_has_no_page_of_a_fleet(folder):
    answer = client(folder / "first").get("/")
    assert links(answer.text) == []


def test_a_single_profile_is_one_job(folder):
    assert [one.name for one in find_shown(str(folder / "first"))] == ["first"]


def test_a_job_page_has_the_sections_of_the_report(folder):
    answer = client(folder).get(address(folder))
    for key in ("verdict", "glance", "timeline", "rules", "quality"):
        assert f'<div data-part="{key}"><section id="{key}"' in answer.text.replace("\n", "")
    assert "Waiting for data" in answer.text
    assert answer.text.index('id="verdict"') < answer.text.index('id="glance"')


@pytest.mark.parametrize("path", ["/", "job", "/jobs/none", "/compare?a=x&b=y"])
def test_each_page_allows_only_its_own_style_and_script(folder, path):
    answer = client(folder).get(address(folder) if path == "job" else path)
    policy = answer.headers["content-security-policy"]
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.text.count("<script nonce") == answer.text.count(f'<script nonce="{nonce}"') == 1
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not any(sign in answer.text.partition("<main")[2] for sign in (" onclick", " onload", ' style="'))


def test_addresses_are_relative(folder):
    browser = client(folder)
    for path in ("/", address(folder)):
        page = browser.get(path).text
        assert 'href="/' not in page
        assert 'action="/' not in page
        assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_works_without_script_by_reloading(folder):
    assert '<noscript><meta http-equiv="refresh" content="10"></noscript>' in client(folder).get("/").text


def test_updates_hold_what_has_changed_since_a_version(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("sm_profiler.metrics.metric_folds.SILENT_S", 1e12)  # its data is old
    monkeypatch.setattr("sm_profiler.serve.app.WAIT_S", 0.0)
    copy_files(folder / "first", tmp_path / "job", data_files(folder / "first"))
    browser, job = client(tmp_path / "job"), address(tmp_path / "job", "job")
    first = browser.get(f"{job}/updates").json()
    assert first["state"] == "running"
    assert "verdict" in first["parts"]
    assert browser.get(f"{job}/updates", params={"since": first["version"]}).json()["parts"] == {}
    end(tmp_path / "job")
    last = browser.get(f"{job}/updates", params={"since": first["version"]}).json()
    assert last["state"] == "ended"
    assert "glance" in last["parts"]
    assert "loader" not in last["parts"]


def test_a_version_from_before_a_restart_gets_everything(folder):
    job = address(folder)
    version = client(folder).get(f"{job}/updates").json()["version"]
    assert "verdict" in client(folder).get(f"{job}/updates", params={"since": version}).json()["parts"]


class Silent(LiveJob):
    """A job without news."""

    def watch(self):
        return self.snapshot


def seconds_waited(folder, others=0):
    """Return how long a request without news waits while others do."""
    site, waits = Site(Jobs([str(folder)], follow=Silent)), []
    site._waiting = others
    query = urlencode({"since": f"{site.boot}:0"}).encode()
    identifier = address(folder, "job").rpartition("/")[2]
    scope = {"type": "http", "path_params": {"id": identifier}, "query_string": query, "headers": []}

    async def pause(seconds):
        waits.append(seconds)
        await asyncio.sleep(0)

    site.pause = pause
    answer = asyncio.run(site.updates(Request(scope)))
    assert json.loads(answer.body)["state"] == "reading"
    assert site._waiting == others
    return sum(waits)


def test_a_request_waits_for_news_for_a_while_unless_many_others_do(tmp_path):
    (tmp_path / "job" / "framework").mkdir(parents=True)
    assert seconds_waited(tmp_path) == pytest.approx(WAIT_S, abs=2 * LOOK_S)
    assert seconds_waited(tmp_path, others=MAX_WAITING) == 0


def test_an_absurd_version_is_refused(folder):
    job = address(folder)
    browser = client(folder)
    boot = browser.get(f"{job}/updates").json()["version"].partition(":")[0]
    assert browser.get(f"{job}/updates", params={"since": f"{boot}:{'9' * 5000}"}).status_code == 400


def test_answers_with_report_json(folder):
    answer = client(folder).get(f"{address(folder)}/report.json")
    assert answer.json()["verdict"]["class"] == "INPUT_BOUND"


def test_compares_two_jobs(folder):
    first, second = (one.id for one in find_shown(str(folder)))
    answer = client(folder).get("/compare", params={"a": first, "b": second})
    assert answer.status_code == 200
    assert "Two runs compared" in answer.text
    assert "style-src 'sha256-" in answer.headers["content-security-policy"]


def test_a_job_without_data_waits(tmp_path):
    (tmp_path / "new" / "system").mkdir(parents=True)
    browser, job = client(tmp_path), address(tmp_path, "new")
    assert ">waiting for the first data<" in browser.get(job).text
    assert "No data has been read yet." in browser.get(job).text
    pair = {"a": job.rpartition("/")[2], "b": job.rpartition("/")[2]}
    assert "new: waiting for the first data." in browser.get("/compare", params=pair).text
    assert browser.get(f"{job}/report.json").status_code == 404


def test_errors_of_one_job_leave_the_others_alone(folder, tmp_path, monkeypatch):
    jobs = Jobs([str(folder), str(tmp_path / "missing")], follow=Polled)
    browser = client(None, jobs)
    (broken,) = (one for one in jobs.listing() if one.where.endswith("missing"))
    assert "cannot be read" in browser.get(f"/jobs/{broken.id}").text
    assert "Waiting for data" in browser.get(address(folder)).text
    assert browser.get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8899", "127.0.0.1.evil.example", ""])
def test_refuses_names_that_are_not_of_this_machine(folder, host):
    assert client(folder).get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
)
def test_refuses_requests_of_other_sites(folder, headers):
    assert client(folder).get("/list", headers=headers).status_code == 403


def test_a_link_on_another_site_may_lead_here(folder):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client(folder).get("/", headers=headers).status_code == 200


def test_a_token_is_required_and_turned_into_a_cookie(folder):
    browser = client(folder, token=TOKEN, port=8899, base="/proxy/8899")
    assert browser.get("/").status_code == 403
    assert browser.get("/?token=wrong").status_code == 403
    answer = browser.get(f"/proxy/8899/?token={TOKEN}", headers={"host": "studio.example"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "./"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "Path=/proxy/8899" in cookie
    named = {"cookie": cookie.partition(";")[0]}
    assert browser.get("/proxy/8899/", headers=named).status_code == 200
    assert browser.get(address(folder), headers={**named, "host": "studio.example"}).status_code == 200
    assert browser.get("/", headers={"cookie": "sm-profiler-8899=wrong"}).status_code == 403


def test_a_long_cookie_takes_no_time_of_other_viewers(folder):
    """It is read before the token is known to be right."""
    browser, other = client(folder, token=TOKEN, port=8899), 'a="' + "\\1" * 30_000 + '"'
    before = time.process_time()
    assert browser.get("/list", headers={"cookie": f"{other}; sm-profiler-8899={TOKEN}"}).status_code == 200
    assert time.process_time() - before < 1


def test_answers_with_and_without_the_base(folder):
    browser = client(folder, base="/a/proxy/1")
    assert browser.get("/a/proxy/1").headers["location"] == "1/"
    assert browser.get("/a/proxy/1/list").text.count("<li>") == browser.get("/list").text.count("<li>") == 2


def test_refuses_large_bodies(folder):
    assert client(folder).post("/", content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
    assert client(folder).post("/", content=b"x").status_code == 405


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "POST"])
def test_refuses_bodies_of_unknown_length(folder, method):
    assert client(folder).request(method, "/", content=iter([b"x"])).status_code == 413


def test_keeps_the_state_of_a_bounded_number_of_jobs(tmp_path):
    made = []
    jobs = Jobs([str(tmp_path)], follow=lambda where: made.append(Polled(where)) or made[-1])
    for number in range(MAX_LIVE + 5):
        (tmp_path / f"job-{number}" / "system").mkdir(parents=True)
    for found in jobs.listing():
        jobs.live(found)
    assert len(made) == MAX_LIVE + 5
    assert len(jobs._live) == MAX_LIVE


def test_refuses_more_jobs_than_it_keeps(tmp_path, monkeypatch):
    monkeypatch.setattr("sm_profiler.serve.jobs.MAX_LIVE", 1)
    monkeypatch.setattr(Polled, "is_followed", True)
    for name in ("one", "two"):
        (tmp_path / name / "system").mkdir(parents=True)
    jobs = Jobs([str(tmp_path)], follow=Polled)
    browser = client(None, jobs)
    first, second = jobs.listing()
    assert browser.get(f"/jobs/{first.id}").status_code == 200
    assert browser.get(f"/jobs/{second.id}").status_code == 503
    assert browser.get("/").status_code == 200


def test_a_page_takes_the_place_of_a_job_that_only_the_list_follows(tmp_path, monkeypatch):
    """The list followed eight jobs, so that the fifth page of others was refused."""
    monkeypatch.setattr("sm_profiler.serve.jobs.MAX_LIVE", 1)
    monkeypatch.setattr(Polled, "is_followed", True)
    for name in ("one", "two"):
        (tmp_path / name / "framework").mkdir(parents=True)
    jobs = Jobs([str(tmp_path)], follow=Polled)
    browser = client(None, jobs)
    browser.get("/list")
    first, second = sorted(jobs.listing(), key=lambda job: jobs.watched(job) is None)
    assert jobs.watched(first) is not None
    assert browser.get(f"/jobs/{second.id}").status_code == 200
    browser.get("/list")
    assert jobs.watched(first) is None
    assert browser.get(f"/jobs/{first.id}").status_code == 503


def test_the_list_reads_jobs_that_have_ended_one_by_one(folder, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(folder / "first", tmp_path / name)
        end(tmp_path / name)
    jobs = Jobs([str(tmp_path)])
    browser = client(None, jobs)
    browser.get("/list")
    assert [jobs.watched(one) is not None for one in jobs.listing()].count(True) == 1
    until(lambda: browser.get("/list").text.count("badge") == 2)
    jobs.close()


def test_shows_the_saved_verdict_until_the_profile_is_read(folder, tmp_path):
    copy_files(folder / "first", tmp_path / "job", data_files(folder / "first"))
    saved = {"verdict": {"class": "GC_BOUND", "headline": "Collections take 40 %."}}
    (tmp_path / "job" / "report.json").write_text(json.dumps(saved))

    class Slow(LiveJob):
        def watch(self):
            return self.snapshot

    job = address(tmp_path / "job", "job")
    assert "Collections take 40 %." in client(None, Jobs([str(tmp_path / "job")], follow=Slow)).get(job).text
    assert "Collections take 40 %." not in client(tmp_path / "job").get(job).text
    assert "Collections take 40 %." in client(None, Jobs([str(tmp_path / "job")], follow=Slow)).get("/").text


def test_identifiers_are_harmless_and_differ(tmp_path):
    assert Found("a/../b c", "x").id.startswith("a-..-b-c-")
    assert Found("a", "x").id != Found("a", "y").id


def test_a_taken_port_is_refused_in_one_line():
    taken = listen("127.0.0.1", 0)
    with taken.socket, pytest.raises(ConfigError, match="in use"):
        listen("127.0.0.1", taken.port)


def test_a_port_that_is_none_is_refused_by_its_option():
    with pytest.raises(ConfigError, match=r"^--port 99999: expected a number from 0 to 65535$"):
        listen("127.0.0.1", 99999)


def test_a_folder_that_does_not_exist_is_named(tmp_path, monkeypatch, capsys):
    """A mistyped folder was served for ever as a job that waits, without a word."""

    def stopped(_app, opened, close):
        for one in opened:
            one.close()
        close()

    monkeypatch.setattr("sm_profiler.serve.server.serve", stopped)
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr("sm_profiler.cli.serve.name_unreadable", bool)  # a thread, which asks S3 and prints later
    assert main(["serve", str(tmp_path / "rums"), str(tmp_path / "runs"), "s3://bucket/jobs", "--port", "0"]) == 0
    errors = capsys.readouterr().err
    said = f"sm-profiler: there is no folder {tmp_path / 'rums'} (did you mean {tmp_path / 'runs'}?); waiting for it until Ctrl-C"
    assert errors.splitlines() == [said, "sm-profiler: serving until Ctrl-C"]
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert main(["serve", "nope", "--port", "0"]) == 0
    errors = []
    until(lambda: errors.append(capsys.readouterr().err) or "".join(errors))  # a thread asks the account
    said = "sm-profiler: there is no folder nope; waiting for it, or for a training job of that name, until Ctrl-C"
    assert "".join(errors).splitlines() == [said]


@pytest.mark.parametrize("path", ["http://host/x", "/a/../b", "/a?b", "//a//b"])
def test_refuses_a_base_that_is_no_path(path):
    with pytest.raises(ConfigError):
        clean_base(path)


def test_follows_a_growing_job_by_itself(folder, tmp_path):
    files = data_files(folder / "first")
    copy_files(folder / "first", tmp_path / "job", files[: len(files) // 2])
    jobs = Jobs([str(tmp_path / "job")])
    browser, job = client(None, jobs), address(tmp_path / "job", "job")
    try:
        first = until(lambda: (found := browser.get(f"{job}/updates").json())["parts"] and found)
        copy_files(folder / "first", tmp_path / "job", files[len(files) // 2 :])
        since = {"since": first["version"]}
        until(lambda: "glance" in browser.get(f"{job}/updates", params=since).json()["parts"])
    finally:
        jobs.close()


def test_versions_of_other_processes_are_not_numbers_of_this_one():
    site = Site(Jobs([]))
    news = site._news(LiveJob("nothing").snapshot, "other:١٢", "")
    assert news["version"] == f"{site.boot}:0"


def test_names_cannot_reverse_their_own_letters(folder, tmp_path):
    copy_files(folder / "first", tmp_path / "jobs" / "\u202etxt.exe\u2066", data_files(folder / "first"))
    answer = client(tmp_path / "jobs").get("/")
    assert ">txt.exe</a>" in answer.text
    assert "\u202e" not in answer.text
