"""The page in a real browser: no requests, hostile data stays text, accessible, small."""

import json
import time
from html import unescape
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import attrs
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from msgspec.structs import replace

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import Location
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.render.page import json_for_script, render_html
from sm_profiler.render.terminal import terminal_summary
from sm_profiler.report import JobInfo, build_report, write_report
from sm_profiler.report.build import report_of
from sm_profiler.report.recordings import report_traces
from sm_profiler.source import open_source
from tests.support.browser import page_of
from tests.support.jobs import make_job
from tests.support.reports import START_S, gpu_samples, metrics_of, report_from, training
from tests.support.stored import assert_as_stored, words_of

DATA = Path(__file__).parents[1] / "data" / "report"
NASTY = "</script><img src=x onerror=alert(1)>\u2028\"'`{{7*7}}\x00\x1b[31m<!--"
BAD_URLS = ("http://", "https://", "//cdn", "@import", "url(")

browser = pytest.mark.browser


def test_a_loop_that_was_not_recorded_is_named_if_the_verdict_is_of_the_machine():
    report = report_from((), gpu_samples(90, 120))
    assert report.verdict.kind is Class.COMPUTE_BOUND
    for shown in (terminal_summary(report, width=100), unescape(render_html(report))):
        assert "Not judged: the training loop: no steps recorded" in shown
    assert "Not judged" not in terminal_summary(report_from(training(200), gpu_samples(90, 120)))


def whole_report(tmp_path, *options):
    make_job(tmp_path / "job", "--minutes", "3", "--gpus", "2", *options)
    return build_report(open_source(tmp_path / "job", cache=False))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return whole_report(tmp_path_factory.mktemp("page"), "--scenario", "dataloader-slow")


@browser
def test_page_sends_no_request_and_logs_no_error(report, tmp_path):
    html = render_html(report)
    with page_of(html, tmp_path) as (page, seen):
        assert page.title().endswith("sm-profiler")
        assert page.locator("#chart svg path").count() > 5
        assert seen == []


@browser
def test_the_line_of_step_times_ends_where_an_evaluation_begins(tmp_path):
    """A line across an evaluation looked like steps that became slower or faster all the while."""
    rows = (
        training(100) + training(50, mode="EVAL", backward=0, optimizer=0, at=2.02) + training(100, at=2.3, number=100)
    )
    with page_of(render_html(report_from(rows)), tmp_path) as (page, seen):
        line = page.locator("#chart svg[aria-label^='Step time'] path.line").get_attribute("d")
        assert line.count("M") == 2
        assert seen == []


@pytest.mark.first(1)
@browser
@pytest.mark.parametrize("seconds", [0.39, 0.41, 0.9])
def test_each_lane_has_a_scale(tmp_path, seconds):
    """With some heights, zero was the only mark."""
    rows = training(100, forward=seconds / 1.05 - 0.0072)
    with page_of(render_html(report_from(rows)), tmp_path) as (page, _):
        assert page.locator("#chart svg[aria-label^='Step time'] text").count() >= 2


@browser
def test_hostile_addresses_receive_no_request(tmp_path):
    """Names contain addresses of a listening server, which must receive no request."""
    received = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self):
            received.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Listener)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    lure = f'"><script src="{address}/s.js"></script><img src="{address}/i.png"><link rel=stylesheet href="{address}/c.css">'
    rules = {
        "CPUBottleneck": {
            "RuleTriggered": 1,
            "Violations": 3,
            "Details": {"phase": {lure: 100.0}},
            "Datapoints": 9,
            "RuleParameters": lure,
        }
    }
    html = render_html(report_from(training(200, node=lure), gpu_samples(90, 4, name=lure), rules, name=lure))
    try:
        with page_of(html, tmp_path) as (page, seen):
            page.wait_for_timeout(300)
            assert seen == []
    finally:
        server.shutdown()
        server.server_close()
    assert received == []


@pytest.mark.parametrize("section", ["glance", "ledger", "summary", "system", "framework", "rules", "quality"])
def test_sections_have_the_stored_words(report, section):
    assert_as_stored(words_of(render_html(report), section), f"page_{section}")


def test_page_contains_no_addresses_to_load(report):
    html = render_html(report)
    for word in BAD_URLS:
        assert word not in html.split("<body>")[0].replace("http-equiv", "")
    assert "default-src 'none'" in unescape(html)


@browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible(report, tmp_path, scheme):
    with page_of(render_html(report), tmp_path, color_scheme=scheme) as (page, _):
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response
    assert [(one["id"], one["help"], one["nodes"][0]["html"][:120]) for one in found["violations"]] == []


@pytest.mark.first(1)
@browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1100), ("dark", 360)])
def test_page_of_traces_is_accessible_and_fits(tmp_path, scheme, width):
    html = render_html(report_traces(DATA.parent / "gpu_traces" / "sampled2"))
    viewport = {"width": width, "height": 800}
    with page_of(html, tmp_path, color_scheme=scheme, viewport=viewport) as (page, seen):
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [(one["id"], one["help"], one["nodes"][0]["html"][:120]) for one in found["violations"]] == []
    assert seen == []


@browser
def test_long_lines_of_code_fit_a_phone(report, tmp_path):
    where = Location("folder/" * 9 + "train.py", 5, "function_" * 9, 0.9, source="loss = criterion(" + "x, " * 90 + ")")
    main = replace(report.verdict.main, where=(where,))
    html = render_html(attrs.evolve(report, verdict=attrs.evolve(report.verdict, main=main)))
    with page_of(html, tmp_path, viewport={"width": 360, "height": 800}) as (page, _):
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response
    assert [(one["id"], one["nodes"][0]["html"][:120]) for one in found["violations"]] == []


@pytest.mark.first(1)
@browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1100), ("dark", 1100), ("light", 360)])
def test_lines_of_code_are_accessible_and_fit(tmp_path, scheme, width):
    deep, name = f"package/{'module' * 12}/transforms.py", f"{'Transformation' * 5}.__call__"
    args = {
        "frames": [["train.py", 17, "main"], [deep, 83, name], ["data.py", 9, "collate"]],
        "lines": ["for x, y in loader:", f"total += {'math.sin(number) * ' * 8}1", "return pad(batch)"],
        "stacks": [["wait", 0, 4000, 60, "", [0, 1]], ["wait", 0, 2000, 30, "", [0, 2]], ["forward", 0, 900, 20, "torch.mm", [0]]],
    }  # fmt: skip
    rows = [*training(200, wait=0.02), ("sm_profiler/samples", "samples", 2.0, 0.0, "algo-1-0", -1, args)]
    viewport = {"width": width, "height": 800}
    with page_of(render_html(report_from(rows)), tmp_path, color_scheme=scheme, viewport=viewport) as (page, seen):
        assert page.locator("#verdict .where li").count() == 2
        assert page.locator("#code .flames").count() == 2
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        card = page.locator("#verdict").bounding_box()
        for line in page.locator("#verdict .where pre, #verdict .where code").all():
            box = line.bounding_box()
            assert box["x"] + box["width"] <= card["x"] + card["width"]
    assert [(one["id"], one["help"], one["nodes"][0]["html"][:120]) for one in found["violations"]] == []
    assert seen == []


@pytest.mark.first(1)
@browser
@pytest.mark.parametrize("width", [360, 800, 1400])
def test_page_does_not_scroll_sideways(report, tmp_path, width):
    with page_of(render_html(report), tmp_path, viewport={"width": width, "height": 800}) as (page, _):
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@browser
def test_timeline_zooms_toggles_and_shows_values(report, tmp_path):
    with page_of(render_html(report), tmp_path, viewport={"width": 1200, "height": 900}) as (page, seen):
        chart = page.locator("#chart")
        line = "() => document.querySelector('#chart path.line').getAttribute('d')"
        before = page.evaluate(line)
        chart.focus()
        page.keyboard.press("+")
        assert page.evaluate(line) != before
        page.keyboard.press("0")
        assert page.evaluate(line) == before
        chart.scroll_into_view_if_needed()
        box = chart.locator("svg").first.bounding_box()
        page.mouse.move(box["x"] + 300, box["y"] + 40)
        assert "ms" in page.locator(".tip").inner_text()
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 40)
        page.mouse.up()
        assert page.evaluate(line) != before
        paths = chart.locator("svg path.line").count()
        chart.locator(".toggle").first.click()
        assert chart.locator("svg path.line").count() == paths - 1
        assert chart.locator(".toggle").first.get_attribute("aria-pressed") == "false"
        assert seen == []


def hostile_rules():
    one = json.loads((DATA / "job-01" / "rules.json").read_text())
    one["OverallFrameworkMetrics"]["Details"]["CPU"] = {NASTY: 40.0, "x" * 100_000: 30.0, "\ud800": 30.0}
    one["StepOutlier"]["Details"]["step_details"] = {
        NASTY: {
            "step_stats": {"mean": float("nan"), "max": "?"},
            "probs": None,
            "phase": NASTY,
            "number_of_outliers": 3,
        }
    }
    one["BatchSize"]["Details"] = {
        NASTY: {NASTY: {"p25": None, "p50": "x", "p75": float("inf"), "upper": 1, "lower": -5}}
    }
    one["LoadBalancing"]["Details"] = {
        "algo-1": {"workloads": {f"gpu{number}": [number] * 49 for number in range(512)}}
    }
    one["Dataloader"]["Details"] = {
        "cores": NASTY,
        "dataloaders": None,
        "dataloading_time": {"probs": [1, 2], "binedges": [3]},
    }
    one["Mine"] = {"RuleTriggered": 2, "Violations": 2, "Details": [], "Datapoints": 1, "RuleParameters": NASTY}
    return one


@browser
def test_hostile_names_stay_text(tmp_path):
    names = [f"{NASTY}-{number}" for number in range(2)]
    rows = [row for name in names for row in training(200, node=name)]
    rows += [("Forward", "n" * 100_000, 1 + step / 100, 0.001, "algo-1-9", step) for step in range(2000)]
    samples = [row for number in range(512) for row in gpu_samples(50, 2, name=f"gpu{number}")]
    hostile = report_from(rows, samples, hostile_rules(), name=NASTY * 50)
    html = render_html(hostile)
    assert "<img src=x" not in html
    assert "\x00" not in html
    assert "\x1b" not in html
    assert len(html.encode()) < 2_000_000
    with page_of(html, tmp_path, viewport={"width": 360, "height": 800}) as (page, seen):
        assert seen == []
        assert page.evaluate("document.images.length") == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.locator("h2#verdict-title").inner_text()


def test_unusual_jobs_have_a_page():
    render_html(report_from())  # nothing at all
    render_html(report_from(training(1)))  # one step
    render_html(report_from((), [(1.0, 50.0, "algo-1", "cpu", "cpu0", "CPUUtilization")]))  # one data point
    odd = [
        (1.0, float("nan"), "algo-1", "cpu", "cpu0", "CPUUtilization"),
        (2.0, -19.61, "algo-1", "gpu", "gpu0", "GPUUtilization"),
    ]
    render_html(report_from(training(50, node="nodash"), odd))


def test_json_does_not_end_its_script_element():
    written = json_for_script({"name": NASTY, "number": 1.5})
    assert "<" not in written
    assert "\u2028" not in written
    assert json.loads(written)["name"] == NASTY


@pytest.mark.parametrize("job", sorted(path.name for path in DATA.glob("job-*")))
def test_real_rule_results_fill_every_section(job):
    rules = json.loads((DATA / job / "rules.json").read_text())
    html = render_html(report_from(rules=rules))
    for heading in (
        "Training job summary", "System usage statistics", "Framework metrics summary", "Rules summary", "Analyzing the training loop",
        "Step duration analysis", "GPU utilization analysis", "Dataloading analysis", "Batch size", "CPU bottlenecks", "I/O bottlenecks",
        "GPU memory", "Data quality",
    ):  # fmt: skip
        assert f">{heading}" in html
    for rule, found in rules.items():
        assert f">{rule}<" in html
        assert f">{found['Datapoints']:,}<" in html


def test_rules_are_ordered_by_times_triggered():
    rules = json.loads((DATA / "job-01" / "rules.json").read_text())
    html = render_html(report_from(rules=rules))
    table = html[html.index('id="rules"') :]
    order = sorted(rules, key=lambda rule: table.index(f">{rule}<"))
    fired = [rules[rule]["RuleTriggered"] for rule in order]
    assert fired == sorted(fired, reverse=True)


def test_page_of_a_day_long_job_is_small():
    seconds, rng = 86_400, np.random.default_rng(0)
    metrics = metrics_of(
        training(20_000, wait=0.05, forward=0.08, backward=3.9, optimizer=0.2, outside=0.05), window_s=3600
    )
    samples = [
        (tick, float(value), "algo-1", "cpu", "cpu0", "CPUUtilization")
        for tick, value in zip(range(1, seconds, 2), rng.uniform(0, 100, seconds // 2), strict=False)
    ]
    day = metrics_of((), samples, window_s=3600)
    metrics = attrs.evolve(metrics, system=day.system, start=START_S, end=START_S + seconds)
    html = render_html(report_of(metrics, decide(Case(metrics, {})), {}))
    assert len(html.encode()) < 1_000_000


def test_cost_is_a_dated_estimate():
    report = report_from(training(300, wait=0.02), gpu_samples(15, 6, memory=20), instance_type="ml.g5.2xlarge")
    cost = report_of(report.metrics, report.verdict, {}, job=JobInfo()).cost
    assert cost.per_hour > cost.lost_per_hour > 0
    assert "stimate" in cost.sentence
    assert "us-east-1" in cost.sentence
    share = cost.lost_per_hour / cost.per_hour
    between = {"ml.g5.2xlarge": 0.04502 / share}  # the sentence had $0.05, the page $0.04
    rounded = report_of(report.metrics, report.verdict, {}, job=JobInfo(prices=between)).cost
    assert f"${rounded.lost_per_hour:.2f} of" in rounded.sentence
    own = report_of(report.metrics, report.verdict, {}, job=JobInfo(prices={"ml.g5.2xlarge": 100.0})).cost
    assert own.per_hour == 100.0
    assert "your price table" in own.sentence
    other = report_of(report.metrics, report.verdict, {}, job=JobInfo(prices={"node": 1.0})).cost
    assert other.per_hour == cost.per_hour
    assert "us-east-1" in other.prices
    assert report_of(report.metrics, report.verdict, {}, job=JobInfo(prices={"ml.g5.2xlarge": None})).cost is None


def test_writes_the_page_quickly(report, tmp_path):
    begun = time.perf_counter()
    write_report(report, tmp_path)
    assert (tmp_path / "profiler-report.html").stat().st_size < 2_000_000
    assert time.perf_counter() - begun < 60  # only a hang would fail; benchmarks/report.py measures


def test_the_machines_of_several_nodes_and_whose_job_it_is_are_named():
    who = {"user": "alice", "account": "nlp", "job": "<sweep>"}
    rows = [row for rank in (0, 1) for row in training(100, node=f"algo-{rank + 1}-{rank}")]
    metadata = tuple(
        {"node": f"algo-{rank + 1}", "rank": rank, "pid": 7, "identity": who | {"host": f"gpu0{rank + 1}"}}
        for rank in (0, 1)
    )
    report = report_from(rows, metadata=metadata)
    page = render_html(report)
    assert "user alice · account nlp · job &lt;sweep&gt;" in page
    assert "algo-1 (gpu01), algo-2 (gpu02)" in page
    assert "nodes: algo-1 (gpu01), algo-2 (gpu02)" in terminal_summary(report, width=100)
    alone = report_from(training(100), metadata=metadata[:1])
    assert "gpu01" not in terminal_summary(alone, width=100)
