"""The fleet's page: no requests, hostile data stays text, accessible, usable with 10,000 jobs and without its script."""

import json
import re
from html import unescape

import attrs
import pytest
from axe_playwright_python.sync_playwright import Axe
from fleet_pages import fleet_of, made_up_fleet, made_up_job

from sm_profiler.fleet.analysis import assemble
from sm_profiler.fleet.model import Failure, Fleet, Totals
from sm_profiler.fleet.page import link, render_html
from sm_profiler.fleet.wording import UNKNOWN, hours, monday, money
from tests.support.browser import page_of

NASTY = "</script><img src=x onerror=alert(1)>\u2028\"'`{{7*7}}\x00\x1b[31m<!--"

browser = pytest.mark.browser


def table_data(html):
    found = re.search(r'<script type="application/json" id="jobs-data">(.*?)</script>', html, re.DOTALL)
    return json.loads(found[1])


def visible(html):
    """Return the page's text without style and script."""
    return " ".join(unescape(re.sub(r"<(style|script)\b.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL)).split())


def test_first_screen_states_spending_waste_and_the_first_step():
    shown = visible(render_html(made_up_fleet(30)))
    assert re.search(r"\$\d+ of \$\d+ was wasted \(\d+ %\)\.", shown)
    assert "Where the money went" in shown
    assert "No waste found" in shown
    assert "Not judged" not in shown
    assert "Do this first: it saves up to $" in shown
    assert "num_workers=2" in shown


def test_every_finding_has_a_section():
    shown = visible(render_html(made_up_fleet(30)))
    for text in (
        "Where most is wasted", "9 of 9 jobs of user ben wait for data.", "Week by week", "By user", "Slow machines", "i-0123456789abcdef0", "19 of 20 jobs",
        "Slower than before", "180 ms", "code version: abc123 to def456", "Failed, stopped or interrupted", "exit code 1", "Loading the image",
        "Prices: your price table.", "12 jobs without a profile were left out.", "30 had a report already",
    ):  # fmt: skip
        assert text in shown, text


def test_hours_replace_unknown_prices():
    html = render_html(made_up_fleet(30, price=None))
    shown = visible(html)
    assert "of machine time was wasted" in shown
    assert "Where the machine time went" in shown
    assert "$" not in shown.partition("What several jobs")[0]
    assert [column["kind"] for column in table_data(html)["columns"] if column["key"] in ("lost", "spent")] == [
        "hours"
    ] * 2


def test_time_replaces_cents():
    shown = visible(render_html(made_up_fleet(3, price=0.001)))
    assert "of machine time was wasted" in shown


def test_jobs_without_a_price_are_counted():
    jobs = [made_up_job(number) for number in range(10)] + [made_up_job(99, price=None)]
    shown = visible(render_html(fleet_of(jobs)))
    assert "The price of 1 job is not known" in shown


def test_a_week_without_a_price_has_its_hours():
    """Its column showed $0."""
    jobs = [made_up_job(number, week="2026-W40") for number in range(10)]
    chart = render_html(assemble([*jobs, made_up_job(4, price=None, week="2026-W41")])).partition("Week by week")[2]
    (hours_of,) = re.findall(r"<title>week of 5 Oct: ([^<]*)</title><text[^>]*>([^<]*)</text>", chart)
    assert hours_of == ("5.0 h spent, 2.5 h wasted, 0 h not judged; no price is known", "5.0 h")
    assert re.search(r"<title>week of 28 Sep: \$[^<]* spent, \$[^<]* wasted, \$0 not judged</title>", chart)


def test_fleets_without_waste_jobs_or_verdicts_have_a_page():
    assert "No jobs were found." in render_html(Fleet())
    healthy = fleet_of([made_up_job(0), made_up_job(3)], common=(), hosts=(), causes=())
    assert "Nothing was wasted" in render_html(healthy)
    unread = [made_up_job(0, judged="", verdict="", label="", error="no steps were recorded")]
    html = render_html(fleet_of(unread, common=(), hosts=(), causes=()))
    assert "None of the jobs could be judged." in html
    assert "no steps were recorded" in visible(html)


LONG = (
    "Prepare batches in worker processes: DataLoader(…, num_workers=8, persistent_workers=True), with pin_memory=True if there "
    "is a GPU; 'sm-profiler try-loader SCRIPT' measures how many pay off. About 8 workers are needed to load a batch in 3.05 ms of "
    "a step. More workers than the 1 core are fine here, although PyTorch warns of them: loading mostly waits for storage or the "
    "network and leaves them idle. Fewer, larger reads and closer data help, too."
)


def test_advice_is_cut_between_sentences():
    """The middle was left out: “About 8 workers are…05 ms of a step”."""
    job = made_up_job(1)
    job = attrs.evolve(job, losses=tuple(attrs.evolve(loss, next_step=LONG) for loss in job.losses))
    fleet = fleet_of([job])
    fleet = attrs.evolve(
        fleet,
        common=(),
        hosts=(),
        causes=tuple(attrs.evolve(cause, next_step=LONG) for cause in fleet.causes),
        top=tuple(attrs.evolve(top, next_step=LONG) for top in fleet.top),
    )
    html = render_html(fleet)
    assert "About 8 workers are needed to load a batch in 3.05 ms of a step." in visible(html)
    assert "are…" not in html
    assert table_data(html)["advice"][0].endswith((".", "…"))


def test_what_is_unknown_of_a_job_is_a_dash():
    why = "It has no profile: the hook was off: SM_PROFILER_AUTO is not on in the job's environment."
    nothing = {"losses": (), "lost_s": 0.0, "lost_usd": 0.0, "lost_share": 0.0}
    unjudged = made_up_job(1, judged="", verdict="", label="", headline=why, next_step="Set it.", **nothing)
    inconclusive = made_up_job(2, verdict="INCONCLUSIVE", label="", headline="No step.", next_step="", **nothing)
    failed = made_up_job(6, bill_usd=None, lost_usd=None, billable_s=None)
    failure = Failure(3, failed.name, "Failed", "exit code 1", 0, None, 0.0)
    fleet = fleet_of(
        [unjudged, inconclusive, made_up_job(0), failed], failures=(failure,), common=(), hosts=(), causes=()
    )
    html = render_html(fleet)
    data = table_data(html)
    columns = {column["key"]: column["values"] for column in data["columns"] if "values" in column}
    assert columns["lost"][:3] == columns["share"][:3] == [None, None, 0]
    assert data["advice"][0] == f"{why} Set it."
    assert data["advice"][1] == "No step."
    assert f"exit code 1 {UNKNOWN}" in visible(html)
    row = re.search(rf"<tr><th[^>]*>(?:<a[^>]*>)?{unjudged.name}.*?</tr>", html, flags=re.DOTALL)
    assert row[0].count(UNKNOWN) == 2


def test_numbers_of_the_page():
    assert [money(value) for value in (0, 0.001, 0.4, 99.9, 99.996, 12_345.6)] == [
        "$0",
        "<$0.01",
        "$0.40",
        "$99.90",
        "$100",
        "$12,346",
    ]
    assert [hours(value) for value in (0, 0.0001, 0.01, 0.2, 0.999, 3.44, 99.97, 1234)] == [
        "0 h",
        "<1 s",
        "36 s",
        "12 min",
        "1.0 h",
        "3.4 h",
        "100 h",
        "1,234 h",
    ]
    assert monday("2026-W47") == "16 Nov"
    assert monday("whenever") == "whenever"


def test_links_lead_to_reports_that_a_browser_can_open():
    job = made_up_job(1)
    assert (
        link(attrs.evolve(job, report="/data/fleet/../reports/a b"), "/data/fleet")
        == "../reports/a%20b/profiler-report.html"
    )
    assert (
        link(attrs.evolve(job, report="https://reports.example/a"), "/x")
        == "https://reports.example/a/profiler-report.html"
    )
    assert link(attrs.evolve(job, report="s3://bucket/a"), "/x") == ""
    assert link(attrs.evolve(job, report="/data/a"), "s3://bucket/fleet") == ""
    assert link(attrs.evolve(job, report=""), "/x") == ""
    assert link(attrs.evolve(job, report="javascript:alert(1)"), "").startswith("javascript%3A")


def test_a_repair_that_is_small_beside_the_whole_is_not_the_first_step():
    fleet = made_up_fleet(300)
    assert "200 jobs lose" in visible(render_html(fleet))
    large = attrs.evolve(fleet.hosts[0], usd=fleet.totals.lost_usd)
    shown = visible(render_html(attrs.evolve(fleet, hosts=(large,))))
    assert "A slow machine delays its jobs." in shown


def test_table_repeats_no_text_and_no_address():
    html = render_html(made_up_fleet(300), "/reports")
    data = table_data(html)
    by_key = {column["key"]: column for column in data["columns"]}
    assert by_key["cause"]["texts"] == ["Waiting for data", "Failed", "Healthy"]
    assert len(by_key["job"]["values"]) == data["total"] == 300
    named = [made_up_job(number, report=f"/reports/{made_up_job(number).name}") for number in range(300)]
    assert table_data(render_html(fleet_of(named), "/reports"))["links"]["texts"] == ["\0/profiler-report.html"]


def test_page_contains_no_addresses_to_load():
    html = render_html(made_up_fleet(10))
    for word in ("http://", "https://", "//cdn", "@import", "url("):
        assert word not in html.split("<body>")[0].replace("http-equiv", "")
    assert "default-src 'none'" in unescape(html)


@browser
@pytest.mark.parametrize(("count", "scheme", "width"), [(3, "dark", 1100), (130, "light", 360)])
def test_page_is_accessible_fits_and_sends_no_request(tmp_path, count, scheme, width):
    viewport = {"width": width, "height": 800}
    with page_of(render_html(made_up_fleet(count)), tmp_path, color_scheme=scheme, viewport=viewport) as (page, seen):
        assert seen == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.evaluate("document.querySelectorAll('details').forEach((one, place) => one.open = place < 3)")
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response
    assert [(one["id"], one["help"], one["nodes"][0]["html"][:120]) for one in found["violations"]] == []


def cells(page, place):
    return page.locator(f"#jobs-table tbody tr > :nth-child({place})").all_inner_texts()


@browser
def test_table_sorts_filters_and_searches(tmp_path):
    fleet = made_up_fleet(250)
    with page_of(render_html(fleet), tmp_path) as (page, _):
        assert cells(page, 1) == [job.name for job in fleet.jobs[:100]]
        head, status = page.locator("#jobs-table thead th"), page.locator("#jobs-status")
        assert head.nth(3).get_attribute("aria-sort") == "descending"
        head.nth(3).locator("button").click()
        assert head.nth(3).get_attribute("aria-sort") == "ascending"
        assert set(cells(page, 4)[:80]) == {"$0"}
        head.nth(0).locator("button").click()
        assert cells(page, 1) == sorted(job.name for job in fleet.jobs)[:100]
        page.get_by_role("button", name="Next").click()
        assert cells(page, 1) == sorted(job.name for job in fleet.jobs)[100:200]
        page.locator("select[data-key='by user']").select_option(label="ben (83)")
        assert status.inner_text().startswith("83 of 250 jobs: $")
        page.locator("select[data-key='cause']").select_option(label="Failed (35)")
        page.locator("#jobs-search").fill("000")
        wanted = sorted(
            job.name
            for job in fleet.jobs
            if job.groups["user"] == "ben" and job.status == "Failed" and "000" in job.name
        )
        assert wanted
        assert cells(page, 1) == wanted
        page.locator("#jobs-search").fill("no such job")
        assert status.inner_text() == "0 of 250 jobs"
        assert page.locator("#jobs-pager").is_hidden()


@browser
def test_page_works_without_its_script(tmp_path):
    fleet = made_up_fleet(130)
    html = render_html(fleet)
    with page_of(html, tmp_path) as (page, _):
        page.locator("#jobs-table details").first.evaluate("one => one.open = true")
        with_script = [cells(page, place) for place in (1, 2, 4, 5, 6, 7)]
        assert "num_workers=2" in cells(page, 3)[0]
    with page_of(html, tmp_path, java_script_enabled=False) as (page, _):
        assert [cells(page, place) for place in (1, 2, 4, 5, 6, 7)] == with_script
        assert "30 more jobs are in this page" in page.locator("#jobs-rest").inner_text()
        assert page.locator("#jobs-filters").is_hidden()


@browser
def test_hostile_names_stay_text(tmp_path):
    odd = {
        "user": NASTY,
        "label": NASTY,
        "next_step": NASTY * 20,
        "headline": NASTY,
        "instance_type": NASTY,
        "status": NASTY,
        "failure": NASTY,
        "error": NASTY,
    }
    jobs = [
        made_up_job(number, name=f"{NASTY}{number}", report=f"/x/{NASTY}", groups={NASTY: NASTY}, **odd)
        for number in range(20)
    ]
    jobs += [made_up_job(number, name="n" * 50_000, started=1e300, week=NASTY, lost_share=None) for number in range(2)]
    base = fleet_of(jobs)
    nasty = attrs.evolve(
        base, sources=(NASTY,) * 20, notes=(NASTY,), tags={NASTY: NASTY}, prices=NASTY, generated=NASTY,
        common=(attrs.evolve(base.common[0], sentence=NASTY, next_step=NASTY),), hosts=(attrs.evolve(base.hosts[0], host=NASTY, sentence=NASTY),),
        regressions=(attrs.evolve(base.regressions[0], changed={NASTY: (NASTY, NASTY)}),), causes=(attrs.evolve(base.causes[0], cause=NASTY),),
        groups=tuple(attrs.evolve(group, key=NASTY, value=NASTY) for group in base.groups),
    )  # fmt: skip
    html = render_html(nasty)
    assert "<img src=x" not in html
    assert "\x00" not in html
    assert "\x1b" not in html
    with page_of(html, tmp_path, viewport={"width": 360, "height": 800}) as (page, seen):
        assert seen == []
        assert page.evaluate("document.images.length") == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.locator("#jobs-search").fill("<img")
        assert len(cells(page, 1)) == 20


@browser
@pytest.mark.long
def test_ten_thousand_jobs_are_one_small_page(tmp_path):
    fleet = made_up_fleet(10_000)
    html = render_html(fleet)
    assert len(html.encode()) < 2_000_000
    with page_of(html, tmp_path) as (page, seen):
        assert len(cells(page, 1)) == 100
        page.locator("#jobs-search").fill("09999")
        assert cells(page, 1) == [job.name for job in fleet.jobs if "09999" in job.name]
        assert seen == []


def test_sums_without_jobs():
    assert "not known" in render_html(Fleet(totals=Totals(jobs=2, judged=2)))
