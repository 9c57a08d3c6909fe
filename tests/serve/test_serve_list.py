"""The list of jobs: its states, what an address asks for, and how large it becomes."""

import json
import os
import re
import time
from html import unescape
from urllib.parse import urlencode

import attrs
import msgspec
import pytest
from msgspec.structs import replace
from starlette.testclient import TestClient

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import Finding
from sm_profiler.fleet.model import Fleet, Node
from sm_profiler.metrics.ends import EndFacts
from sm_profiler.monitor.run_state import write_state
from sm_profiler.serve.app import create_app
from sm_profiler.serve.fleet_page import Facts, FleetPage, facts_of, pages_of
from sm_profiler.serve.jobs import Found, Jobs
from sm_profiler.serve.listing import ROWS, Listed, Query, Row, row_of
from sm_profiler.serve.live import LiveJob
from sm_profiler.serve.owners import Owners
from sm_profiler.serve.pages import render
from sm_profiler.serve.snapshot import Snapshot, in_brief
from tests.support.fleets import finding, priced, report_json
from tests.support.reports import START_S, report_from, training
from tests.support.serving import Polled, copy_files, data_files, end, make_job, until

NASTY = "<img src=x onerror=alert(1)>\"'&\n\u202e"


@pytest.mark.parametrize(
    ("found", "snapshot", "status", "being_read", "state", "line"),
    [
        ("running", None, "", False, "running", "running"),
        ("", None, "", False, "waiting", "waiting"),
        ("running", Snapshot(), "", True, "running", "reading what is there"),
        ("running", Snapshot(version=1, state="waiting", note="waiting for the first data"), "", True, "running", "waiting for the first data"),
        ("ended", None, "", False, "ended", "ended"),
        ("ended", None, "completed", False, "completed", "completed"),
        ("ended", Snapshot(), "", True, "ended", "ended; it is being read"),
        ("ended", Snapshot(), "completed", False, "completed", "completed"),
        ("ended", Snapshot(version=3, state="reading", note="as of now; reading what is there"), "", False, "ended", "ended"),
        ("ended", Snapshot(version=3, state="reading"), "", True, "ended", "ended; it is being read"),
        ("ended", Snapshot(version=1, state="waiting", note="waiting for the first data"), "", False, "ended", "ended without data"),
        ("ended", Snapshot(version=1, state="running"), "", True, "ended", "running"),
        ("ended", Snapshot(version=1, state="ended"), "stopped", False, "stopped", "stopped"),
        ("ended", Snapshot(version=1, state="ended", note="ended with exit code 3"), "", False, "ended", "ended with exit code 3"),
        ("ended", Snapshot(version=1, state="ended", note="ended with exit code 3"), "failed", False, "failed", "failed: ended with exit code 3"),
        ("ended", Snapshot(version=1, state="ended", note="was ended by SIGINT"), "stopped", False, "stopped", "stopped: ended by SIGINT"),
        ("ended", Snapshot(version=1, state="ended", note="was stopped"), "stopped", False, "stopped", "stopped"),
        ("ended", Snapshot(version=1, state="ended", note="completed"), "completed", False, "completed", "completed"),
        ("ended", Snapshot(version=1, state="ended", note="completed"), "failed", False, "failed", "failed"),
        ("ended", Snapshot(version=1, state="unreadable", note="no access"), "", False, "cannot be read", "cannot be read, trying again: no access"),
    ],
)  # fmt: skip
def test_a_job_has_one_state(found, snapshot, status, being_read, state, line):
    """A job that had ended was shown as being read for ever, although nothing read it."""
    row = row_of(Found("a", "/jobs/a", state=found, status=status), snapshot, being_read=being_read)
    assert (row.state, row.line) == (state, line)


def test_time_that_repairs_would_save_is_not_called_lost():
    """A job that waits 85 % of its time had lost 5 of 14 s, by a number that has no explanation there."""
    rows = [
        Row("a", "a", "completed", "completed", cost="14 s", lost="5 s"),
        Row("b", "b", "failed", "failed", cost="4 s", lost="4 s"),
    ]
    shown = render("list.html", listed=Listed.of(Query(), rows), problems=(), surveying=False, pending=0)
    assert "14 s, 5 s of which repairs would save" in shown
    assert "4 s, 4 s of it lost" in shown


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        (Finding(Class.DEAD_RANK, "After 90 training steps, algo-1-1 was killed.", of="job"), "After 90 training steps, rank 1 was killed."),
        (Finding(Class.INPUT_BOUND, "It waits, algo-1-1 most."), "The job was ended by a signal after 90 training steps. It waits, rank 1 most."),
    ],
)  # fmt: skip
def test_an_end_that_the_verdict_has_is_there_once_with_the_names_of_the_page(verdict, shown):
    rows = training(100, node="algo-1-0") + training(90, node="algo-1-1")
    ranks = [{"node": "algo-1", "rank": rank, "pid": 100 + rank, "start_us": (START_S + 1) * 1e6} for rank in range(2)]
    report = report_from(rows, metadata=ranks, facts=EndFacts(run="killed"))
    ended = attrs.evolve(report.metrics.ending, state="killed", step=90, counted=True, silent_s=None, unrecorded=())
    metrics = attrs.evolve(report.metrics, ending=ended)
    report = attrs.evolve(report, metrics=metrics, verdict=attrs.evolve(report.verdict, main=verdict))
    snapshot = Snapshot(version=1, state="ended", **in_brief(report))
    assert row_of(Found("a", "/jobs/a", state="ended"), snapshot).headline == shown


def test_a_failure_without_a_verdict_is_one_sentence():
    """“The job failed before its first training step: … It failed before its first training step.”"""
    verdict = Finding(Class.INCONCLUSIVE, "It failed before its first training step.")
    end = "The job failed before its first training step: ValueError: no such file (train.py:3)."
    snapshot = Snapshot(version=1, state="ended", main=verdict, end=end)
    assert row_of(Found("a", "/jobs/a", state="ended"), snapshot).headline == end


def test_a_failed_job_has_the_label_of_its_verdict():
    """Its badge was “Failed”, beside its state “failed”, until the job was followed."""
    end = {"end": {"state": "crashed", "exit_code": 1, "error": "x", "where": "", "step": 5}}
    died, healthy = (Facts.of(priced(report_json(verdict=finding(kind, label=label)) | end)) for kind, label in (("DEAD_RANK", "A rank died"), ("BALANCED", "Healthy")))  # fmt: skip
    assert (died.label, died.mood) == ("A rank died", "issue")
    assert (healthy.label, healthy.mood) == ("Failed", "issue")


def test_an_end_that_only_the_scheduler_has_is_shown():
    facts = Facts(status="Failed", failure="Slurm's state: NODE_FAIL", label="Failed", headline="Slurm's state: NODE_FAIL", mood="issue")  # fmt: skip
    found, ended = Found("a", "/jobs/a", state="ended"), Snapshot(version=1, state="ended", note="completed")
    shown = [row_of(found, replace(ended, main=Finding(kind, "It waits.")), facts) for kind in Class if kind in {Class.INPUT_BOUND, Class.COMPUTE_BOUND}]  # fmt: skip
    assert {(row.state, row.line, row.mood) for row in shown} == {("failed", "failed", "issue")}
    assert {row.headline for row in shown} == {"Slurm's state: NODE_FAIL", "Slurm's state: NODE_FAIL. It waits."}
    running = row_of(Found("a", "/jobs/a", state="running"), Snapshot(version=1, state="running"), facts)
    assert (running.state, running.line) == ("running", "running")


def test_the_times_of_a_job_are_those_of_its_profile():
    """A copy of a profile ran when it was copied."""
    found = Found("a", "/jobs/a", 1_795_800_000.0, "ended")
    assert row_of(found, None).when == "2026-11-27 17:20"
    facts = Facts(started=1_790_000_000.0, ended=1_790_000_600.0)
    assert row_of(found, None, facts).when == "2026-09-21 14:13 to 14:23"
    later = Snapshot(version=1, state="ended", begun=1_790_000_000.0, data_at=1_790_100_000.0)
    row = row_of(found, later, facts)
    assert (row.when, row.latest) == ("2026-09-21 14:13 to 2026-09-22 18:00", 1_790_100_000.0)
    running = row_of(attrs.evolve(found, state="running"), replace(later, state="running"), facts)
    assert running.when == "since 2026-09-21 14:13"
    goes_on = row_of(attrs.evolve(found, state="running"), None, facts)
    assert goes_on.latest == found.changed


def test_a_requeued_job_has_the_machines_of_all_attempts(tmp_path):
    """It had those of the last one."""
    job = attrs.evolve(priced(report_json(hosts=("gpu02",))), machines={"gpu01": 0.75, "gpu02": 0.25})
    assert Facts.of(job).hosts == ("gpu01", "gpu02")
    for number, host in enumerate(("gpu01", "gpu02")):
        begin(tmp_path, "slurm-1", "bob", "requeue", host, number)
    assert Jobs([str(tmp_path)]).listing()[0].owner.hosts == ("gpu01", "gpu02")


def test_the_name_that_a_run_was_given_by_itself_is_no_other_name():
    """`sm-profiler run` calls the job by its folder with a number, and so it was there twice."""
    names = [("train-20261126-23", "train-20261126-23-257"), ("slurm-7", "bert"), ("7", "7"), ("bert", "17"), ("a", "")]
    shown = [row_of(Found(name, "/a", state="ended"), None, Facts(job=job)).label for name, job in names]
    assert shown == ["train-20261126-23", "slurm-7 (bert)", "7", "bert (17)", "a"]


@pytest.mark.parametrize("listed_between", [True, False])
def test_a_requeued_job_has_the_state_of_its_last_attempt(tmp_path, monkeypatch, listed_between):
    """It stayed "stopped" in the list after it had completed, while its page and the report had the new end."""
    source, folder, now = make_job(tmp_path / "source", "--minutes", "2"), tmp_path / "jobs" / "a", [0.0]
    files = data_files(source)
    copy_files(source, folder, files[: len(files) // 2])
    write_state(folder, 143, stopped=True)
    jobs = Jobs([str(tmp_path / "jobs")], follow=Polled, clock=lambda: now[0])
    site = TestClient(create_app(jobs), base_url="http://127.0.0.1:8899")
    (found,) = jobs.listing()
    if listed_between:
        assert jobs.live(found).watch().status == "Stopped"
    page = {found.id: Facts(status="Stopped", changed=found.changed, is_judged=True, user="anna", cost="$7")}
    monkeypatch.setattr(FleetPage, "facts", lambda _: page)
    before = site.get("/list?state=stopped").text
    assert names_in(before) == ["a"]
    assert "$7" in before
    write_state(folder)  # the second attempt
    copy_files(source, folder, files[len(files) // 2 :])
    now[0] += 60
    assert names_in(site.get("/list?state=running").text) == ["a"]
    write_state(folder, 0)
    os.utime(folder / "system", (time.time() + 1,) * 2)
    now[0] += 60
    assert names_in(site.get("/list?state=stopped").text) == []
    jobs.live(found).poll()  # its thread does, once it is watched
    page_of_job = site.get(f"/jobs/{found.id}").text
    after = site.get("/list?state=completed").text
    assert names_in(after) == ["a"]
    assert "anna" in after
    assert "$7" not in after
    assert "completed" in page_of_job


def test_a_job_that_ended_again_between_two_looks_is_read_again(tmp_path):
    source, folder = make_job(tmp_path / "source", "--minutes", "2"), tmp_path / "a"
    files = data_files(source)
    copy_files(source, folder, files[: len(files) // 2])
    write_state(folder, 143, stopped=True)
    jobs = Jobs([str(folder)], follow=LiveJob)
    (found,) = jobs.listing()
    live = jobs.live(found)
    live.poll()
    assert jobs.current(found).status == "Stopped"
    copy_files(source, folder, files[len(files) // 2 :])
    write_state(folder, 0)
    assert jobs.current(found) is None
    live.poll()
    assert jobs.current(found).status == "Completed"
    assert live.snapshot.files == len(files)


def test_the_report_of_an_earlier_attempt_is_not_shown(tmp_path):
    source, folder = make_job(tmp_path / "source", "--minutes", "1"), tmp_path / "a"
    copy_files(source, folder, data_files(source))
    end(folder)
    report = {
        "verdict": {"class": "INPUT_BOUND", "headline": "It waits."},
        "end": {"state": "crashed", "exit_code": 1, "error": "", "step": None},
    }
    (folder / "report.json").write_text(json.dumps(report))
    assert Jobs([str(folder)]).listing()[0].end
    os.utime(folder / "report.json", (time.time() - 3600,) * 2)
    (found,) = Jobs([str(folder)]).listing()
    assert (found.end, found.saved) == ("", None)


def row(name, **more):
    return Row(name, name, more.pop("state", "ended"), more.pop("line", ""), **more)


ROWS_OF = [
    row(
        "bert-1",
        headline="a large llama",
        user="anna",
        hosts=("gpu01",),
        usd=3.0,
        latest=1.0,
        result="Waiting for data",
        state="completed",
    ),
    row("Bert-2", user="ben", hosts=("gpu01", "gpu02"), usd=9.0, latest=3.0, state="running"),
    row("llama", user="anna", machine_hours=2.0, latest=2.0, result="Balanced", state="failed"),
]


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({}, ["Bert-2", "llama", "bert-1"]),
        ({"q": "BERT"}, ["Bert-2", "bert-1"]),
        ({"q": "bert anna"}, ["bert-1"]),
        ({"q": "gpu02"}, ["Bert-2"]),
        ({"q": "waiting"}, ["bert-1"]),
        ({"q": "llama"}, ["llama"]),
        ({"user": "anna"}, ["llama", "bert-1"]),
        ({"host": "gpu01", "sort": "name"}, ["bert-1", "Bert-2"]),
        ({"state": "failed"}, ["llama"]),
        ({"result": "Balanced", "user": "ben"}, []),
        ({"sort": "cost"}, ["Bert-2", "bert-1", "llama"]),
        ({"sort": "user"}, ["bert-1", "llama", "Bert-2"]),
        ({"sort": "oldest"}, ["bert-1", "llama", "Bert-2"]),
        ({"sort": "no such", "page": "9" * 5000, "other": "x"}, ["Bert-2", "llama", "bert-1"]),
    ],
)
def test_an_address_chooses_and_orders_jobs(asked, names):
    assert [one.name for one in Query.parse(asked).select(ROWS_OF)] == names


def folder_of(tmp_path, count):
    for number in range(count):
        (tmp_path / f"job-{number:04d}" / "system").mkdir(parents=True)
    return tmp_path


def browser_of(folder):
    app = create_app(Jobs([str(folder)], follow=Polled))
    return TestClient(app, base_url="http://127.0.0.1:8899")


def test_what_chooses_nothing_in_an_address_is_named(tmp_path):
    """A class of verdict chose nothing, and other names and orders changed nothing, both without a word."""
    browser = browser_of(folder_of(tmp_path, 2))
    for address, unknown in (("verdict=X&a%3Cb=1", "verdict, a&lt;b"), ("sort=bogus&state=waiting", "sort=bogus")):
        for page in (browser.get(f"/?{address}").text, browser.get(f"/list?{address}").text):
            assert f"not known here: {unknown}. Jobs are chosen by q, state, result, user, host" in page
            assert "ordered by sort=newest, oldest, cost" in page
    assert "not known here" not in browser.get("/?q=&state=&sort=&page=2").text


def test_a_result_may_be_the_class_of_a_verdict():
    rows = [
        Row("a", "a", "ended", "ended", result=Class.INPUT_BOUND.label),
        Row("b", "b", "ended", "ended", result="x"),
    ]
    for asked in ("INPUT_BOUND", Class.INPUT_BOUND.label):
        query = Query.parse({"result": asked})
        assert [row.name for row in query.select(rows)] == ["a"]
        assert [chosen for _, _, chosen, _ in query.choices(rows) if chosen] == [Class.INPUT_BOUND.label]


def names_in(page):
    return [unescape(name) for name in re.findall(r'<h2><a href="jobs/[^"]*">([^<]*)</a>', page)]


def test_hundreds_of_jobs_are_pages_that_stay_small_and_fast(tmp_path):
    browser = browser_of(folder_of(tmp_path, 520))
    browser.get("/list")
    begun = time.monotonic()
    page = browser.get("/").text
    assert time.monotonic() - begun < 2.0  # 0.05 s alone
    assert len(page) < 130_000
    assert "520 jobs, 1 to 100 of them here." in page
    seen, address = [], "./"
    while address:
        page = browser.get(address.removeprefix(".")).text
        seen += names_in(page)
        found = re.search(r'<a href="([^"]*)" rel="next"', page)
        address = unescape(found[1]) if found else ""
    assert len(seen) == len(set(seen)) == 520
    assert browser.get("/?page=77").text.count("<h2><a ") == 520 % ROWS


def test_a_choice_is_in_the_address_and_in_the_form(tmp_path):
    browser = browser_of(folder_of(tmp_path, 250))
    query = urlencode({"q": "job-00", "sort": "name", "state": "ended", "user": NASTY})
    page = browser.get(f"/?{query}").text
    assert 'value="job-00"' in page
    assert '<option value="name" selected>' in page
    assert "<img" not in page
    assert 'No job is like this. <a href="./">Show all jobs</a>' in page
    asked = browser.get("/?q=job&sort=name").text
    assert names_in(asked)[:2] == ["job-0000", "job-0001"]
    assert "./?q=job&amp;sort=name&amp;page=2" in asked
    assert names_in(browser.get("/list?q=job&sort=name&page=3").text)[-1] == "job-0249"


def test_the_list_shows_who_ran_a_job_where_and_what_it_cost(tmp_path, monkeypatch):
    browser = browser_of(folder_of(tmp_path, 3))
    (first, *_) = site_jobs = Jobs([str(tmp_path)]).listing()
    rows = [
        priced(report_json(one.name, identity={"user": "anna"}, hosts=("gpu07",)), source=one.where)
        for one in site_jobs
    ]
    facts = facts_of(Fleet(jobs=tuple(rows)), pages_of(site_jobs))
    assert facts[first.id].hosts == ("gpu07",)
    monkeypatch.setattr(FleetPage, "facts", lambda _: facts)
    page = browser.get("/").text
    assert f"<span>anna</span><span>gpu07</span><span>{facts[first.id].cost}</span>" in page
    assert facts[first.id].cost.startswith("$")
    assert '<option value="gpu07">gpu07 (3)</option>' in page
    assert "3 jobs: $" in page


def test_a_job_without_a_price_costs_hours_of_machines():
    job = priced(report_json(instance_type="unknown"))
    assert Facts.of(job).cost == "1.0 h"
    assert Facts.of(priced()).cost == ""


def test_the_prices_of_serve_are_those_of_its_list_and_its_pages(tmp_path):
    for name in "ab":
        job = make_job(tmp_path / "jobs" / name, "--minutes", "2")
        for path in data_files(job):
            if "incremental" in str(path):
                first = json.loads(path.read_text().splitlines()[0])
                who = {"user": "anna", "host": "gpu01", "instance_type": "dgx"}
                named = [
                    {**first, "Type": "identity", "Name": key, "Dimension": text, "Value": 1.0}
                    for key, text in who.items()
                ]
                path.write_text(path.read_text() + "".join(f"{json.dumps(one)}\n" for one in named))
    jobs = Jobs([str(tmp_path / "jobs")], {"dgx": 36_000.0})
    browser = TestClient(create_app(jobs, surveys=True), base_url="http://127.0.0.1:8899")
    try:
        first = browser.get("/").text
        assert "Users, machines and costs follow once all jobs have been read." in first
        page = until(lambda: text if "anna" in (text := browser.get("/").text) else "", 200)
        assert re.search(r"<span>anna</span><span>gpu01</span><span>\$1,[0-9]{3}", page)
        assert "follow once all jobs have been read" not in page
        path = f"/jobs/{jobs.listing()[0].id}/report.json"
        cost = until(lambda: browser.get(path).json().get("cost"), 60)
        assert cost["per_hour"] == 36_000
    finally:
        jobs.close()


def test_one_viewer_lists_again_and_the_others_do_not_wait(tmp_path):
    now = [0.0]
    jobs = Jobs([str(folder_of(tmp_path, 3))], clock=lambda: now[0])
    assert len(jobs.listing()) == 3
    now[0] += 60
    with jobs._listing:  # another request lists
        assert len(jobs.listing()) == 3


def test_listing_takes_a_tenth_of_the_time_at_most(tmp_path, monkeypatch):
    now, times = [0.0], []
    jobs = Jobs([str(tmp_path)], clock=lambda: now[0])

    def listed():
        times.append(now[0])
        now[0] += 2.0

    monkeypatch.setattr(Jobs, "_list", lambda _: listed())
    while now[0] < 60:
        jobs.listing()
        now[0] += 1.0
    assert times == pytest.approx([0.0, 22.0, 44.0], abs=2.0)


def test_facts_of_strangers_are_text(tmp_path):
    job = priced(report_json(NASTY, identity={"user": NASTY}, hosts=(NASTY,)))
    facts = Facts.of(job)
    shown = row_of(Found(NASTY, "/a", state="ended"), None, facts)
    assert "\n" not in shown.user
    assert msgspec.json.decode(msgspec.json.encode(facts), type=Facts) == facts
    assert isinstance(job.nodes[0], Node)


def begin(folder, name, user, job, host, number=1):
    """Write the first lines of a job that began just now."""
    who = {"user": user, "job": job, "host": host}
    record = {
        "name": "sm_profiler/process",
        "ph": "M",
        "pid": 0,
        "args": {"node": "algo-1", "host": "vm", "identity": who},
    }
    path = folder / name / "framework" / "pevents" / f"7-algo-1_pythontimeline_7_0_{number}.json.tmp"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'[\n{{"name": "process_name"}},\n{json.dumps(record)}  ,\n{{"name": "cut')


def test_a_job_that_began_just_now_is_found_by_user_machine_and_name(tmp_path, monkeypatch):
    """It was left out until all jobs had been read again, ten minutes later at most."""
    begin(tmp_path, "slurm-104", "bob", "resnet", "gpu01")
    begin(tmp_path, "slurm-105", "anna", "bert", "gpu02")
    monitored = tmp_path / "slurm-106" / "system" / "incremental" / "2026112711" / "1795779000.algo-1.json"
    monitored.parent.mkdir(parents=True)
    who = {"user": "carol", "job": "idle", "host": "gpu03"}
    rows = (
        {"Type": "identity", "Name": key, "Dimension": text, "Value": 1.0, "NodeId": "algo-1"}
        for key, text in who.items()
    )
    monitored.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    (tmp_path / "slurm-107" / "system").mkdir(parents=True)
    jobs = Jobs([str(tmp_path)], follow=Polled)
    browser = TestClient(create_app(jobs, surveys=True), base_url="http://127.0.0.1:8899")
    page = {job.id: Facts(is_judged=True) for job in jobs.listing() if job.name == "slurm-105"}
    monkeypatch.setattr(FleetPage, "facts", lambda _: page)
    monkeypatch.setattr(FleetPage, "make", lambda _: None)
    bob = ["slurm-104 (resnet)"]
    assert names_in(browser.get("/list?user=bob").text) == names_in(browser.get("/list?host=gpu01").text) == bob
    assert names_in(browser.get("/list?q=resnet").text) == bob
    assert names_in(browser.get("/list?user=carol&host=gpu03").text) == ["slurm-106 (idle)"]
    assert "3 jobs are not judged yet" in browser.get("/list").text
    assert "2 jobs are not judged yet" in browser.get("/list?user=bob").text  # slurm-107 may be his
    assert "1 job is not judged yet" in browser.get("/list?user=anna").text
    first = next(job for job in jobs.listing() if job.name == "slurm-104")
    assert "<h1>slurm-104 (resnet)</h1>" in browser.get(f"/jobs/{first.id}").text


def test_owners_of_many_jobs_do_not_hold_up_the_list(tmp_path):
    for number in range(5):
        begin(tmp_path, f"job-{number}", "bob", "resnet", "gpu01")
    jobs, now = [*Jobs([str(tmp_path)]).listing()], iter(range(100))
    owners = Owners(clock=lambda: float(next(now)))
    for number in range(1, 6):
        owners.read(jobs)
        assert [owners.of(job).user for job in jobs].count("bob") == number


def test_a_long_sentence_is_cut_at_its_end_at_a_word(tmp_path):
    """Its middle was left out, which joined the end of the job with a part of the verdict."""
    folder = tmp_path / "a"
    (folder / "system").mkdir(parents=True)
    words = " ".join(f"word{number}" for number in range(90))
    headline = f"err == 0. {words}"
    (folder / "report.json").write_text(json.dumps({"verdict": {"class": "INPUT_BOUND", "headline": headline}}))
    (shown,) = re.findall("<p>(err[^<]*)</p>", browser_of(folder).get("/list").text)
    assert shown.endswith("…")
    assert len(shown) <= 240
    assert headline.startswith(f"{shown[:-1]} ")
