"""The cost of jobs without a verdict is neither useful nor wasted; `--fail-on` shows what it was checked for."""

import json
from argparse import ArgumentTypeError
from html import unescape

import attrs
import pytest

from sm_profiler.cli.fleet import conditions_of
from sm_profiler.cli.main import main
from sm_profiler.errors import SourceError
from sm_profiler.fleet.analysis import assemble
from sm_profiler.fleet.building import build_fleet
from sm_profiler.fleet.first import first_lines
from sm_profiler.fleet.model import FleetJob, Loss
from sm_profiler.fleet.page import render_html
from sm_profiler.fleet.rows import read_report, row_of
from sm_profiler.fleet.wording import summary
from tests.support.fleets import HOUR, START_S, description, finding, priced, report_json

PRICES = {"ml.g5.xlarge": 2.0}


def judged(name, lost=0.5 * HOUR, **options):
    verdict = finding("INPUT_BOUND", lost) if lost else finding()
    return priced(report_json(name, verdict), description(name), prices=PRICES, **options)


def unjudged(name, hours=10):
    return priced(None, description(name, billable=hours * 3600, training=hours * 3600), prices=PRICES)


def inconclusive(name):
    return priced(report_json(name, finding("INCONCLUSIVE")), description(name), prices=PRICES)


def test_waste_is_a_share_of_what_was_judged():
    fleet = assemble([judged("a"), judged("b", 0), unjudged("c")])
    assert fleet.totals.waste == pytest.approx(0.25)
    assert (fleet.totals.bill_usd, fleet.totals.judged_usd, fleet.totals.judged) == (24.0, 4.0, 2)
    assert fleet.totals.coverage == pytest.approx(4 / 24)
    assert fleet.causes[0].share == pytest.approx(0.25)


def test_waste_has_the_unit_that_is_shown():
    cheap = {"ml.g5.xlarge": 0.01}
    unknown = {"InstanceType": "ml.unknown.xlarge", "InstanceCount": 1}
    failed = priced(None, description("b", status="Failed", ResourceConfig=unknown), prices=cheap)
    fleet = assemble(
        [priced(report_json("a", finding("INPUT_BOUND", 0.5 * HOUR)), description("a"), prices=cheap), failed]
    )
    assert fleet.totals.bill_usd < 1
    assert fleet.totals.waste == pytest.approx(fleet.totals.lost_instance_hours / fleet.totals.judged_instance_hours)
    assert f"({100 * fleet.totals.waste:.0f} %)" in summary(fleet)
    (condition,) = conditions_of("waste>70%")
    assert condition.broken_by(fleet.totals)


def test_an_inconclusive_job_is_not_judged_and_a_failed_one_is():
    failed = priced(None, description("b", status="Failed", FailureReason="exit code 1"), prices=PRICES)
    fleet = assemble([judged("a"), failed, inconclusive("c")])
    assert fleet.totals.judged == 2
    assert fleet.totals.coverage == pytest.approx(2 / 3)
    assert fleet.totals.waste == pytest.approx(0.75)


def test_an_early_report_whose_gain_has_no_seconds_counts_by_its_share():
    report = report_json("a", finding("INPUT_BOUND", 0.0, share=0.25))
    report["verdict"]["gain"].pop("seconds")
    report["verdict"]["gain"]["speedup"] = {"low": 1.2, "value": 1.3, "high": 1.4}
    job = priced(report, description("a"), prices=PRICES)
    assert (job.lost_share, job.gain_s) == (0.25, None)


def test_growing_memory_costs_no_time():
    job = priced(report_json("a", finding("MEMORY_GROWTH", share=1.0)), description("a"), prices=PRICES)
    assert (job.lost_s, job.lost_usd, job.losses) == (0.0, 0.0, ())


def test_a_hang_costs_its_share_of_the_job():
    job = priced(report_json("a", finding("HANG", share=0.25, of="job")), description("a"), prices=PRICES)
    assert job.lost_share == 0.25


def test_a_job_of_unknown_length_counts_as_an_average_one():
    fleet = assemble([judged("a"), FleetJob("b", error="damaged"), FleetJob("c"), judged("d")])
    assert fleet.totals.coverage == pytest.approx(0.5)
    assert assemble([FleetJob("b", error="damaged")]).totals.coverage == 0.0
    assert assemble([]).totals.coverage is None


def test_hours_cover_jobs_whose_price_is_unknown():
    unknown = row_of(None, described("ml.new.large", 30), FleetJob("u"))
    fleet = assemble([judged("a"), judged("b"), unknown])
    assert fleet.totals.coverage == pytest.approx(2 / 32)


def described(kind, hours):
    resources = {"InstanceType": kind, "InstanceCount": 1}
    return description("u", billable=3600 * hours, training=3600 * hours, ResourceConfig=resources)


def test_the_page_and_the_terminal_show_what_was_judged():
    fleet = assemble([judged("a"), judged("b"), unjudged("c")], prices="your price table")
    page = unescape(render_html(fleet))
    assert "$2.00 of $4.00 was wasted (50 %). Judged: 17 % of $24.00, 2 of 3 jobs." in page
    assert "Not judged" in page
    assert "83 %, 1 job" in page
    assert "1 was not judged" in page
    assert "3 jobs cost $24.00, $4.00 of which was judged; $2.00 of that (50 %) was wasted." in summary(fleet)
    nothing = assemble([unjudged("a"), unjudged("b")])
    assert "None of it was judged." in summary(nothing)


def test_a_small_part_that_was_not_judged_is_no_whole():
    shown = summary(assemble([judged("a"), judged("b"), unjudged("c", hours=0.001)]))
    assert "Judged: nearly all of $4.00, 2 of 3 jobs." in shown


def test_what_jobs_have_in_common_has_the_unit_of_the_page():
    """It was "$0.15 lost" on a page that counts in minutes."""
    cheap = {"ml.g5.xlarge": 0.01}
    jobs = [priced(report_json(name, finding("INPUT_BOUND", 1800)), description(name), prices=cheap) for name in "abcd"]
    (shared,) = assemble(jobs, group_by=()).common
    assert "2.0 h wasted" in shared.sentence


def test_the_numbers_of_the_headline_fit_each_other():
    """It read “6 of 9 min, judged 51 %”: the share was one of dollars, or counted jobs whose time is unknown."""
    cheap = FleetJob("cheap", judged="report", verdict="X", billable_s=360, bill_usd=0.001, lost_usd=0.0, price=0.01)
    dear = FleetJob("dear", billable_s=180, bill_usd=0.9, price=18.0)
    for others in ([dear], [FleetJob("dear", billable_s=180), FleetJob("damaged", error="damaged")]):
        fleet = assemble([cheap, *others])
        jobs = f"1 of {1 + len(others)} jobs."
        assert "took 9 min of machines, 6 min of which was judged" in summary(fleet)
        assert f"Judged: 67 % of 9 min of machine time, {jobs}" in summary(fleet)
        assert f"Judged: 67 % of 9 min of machine time, {jobs}" in unescape(render_html(fleet))


def test_a_limit_of_the_coverage_explains_why_its_share_is_not_that_of_the_summary():
    """CI failed with 33 %, and the summary had 67 %."""
    cheap = FleetJob("cheap", judged="report", verdict="X", billable_s=360, bill_usd=0.001, lost_usd=0.0, price=0.01)
    others = FleetJob("dear", billable_s=180), FleetJob("damaged", error="damaged")
    totals = assemble([cheap, *others]).totals
    (limit,) = conditions_of("coverage<50%")
    assert limit.broken_by(totals) == "44.4 %"
    assert limit.unknown_for(totals) == (
        "coverage<50%: 44 % counts jobs whose time or price is unknown as average ones. "
        "Judged: 67 % of 9 min of machine time, 1 of 3 jobs."
    )
    assert not limit.unknown_for(assemble([judged("a"), unjudged("b")]).totals)


def test_the_unit_that_is_shown_decides_the_order():
    """Cents are shown as time, so jobs are sorted by time."""
    long = FleetJob("long", judged="report", verdict="X", billable_s=100, lost_s=25, losses=(Loss("X", 25, 0.001),), bill_usd=0.01, lost_usd=0.001, price=0.1)  # fmt: skip
    dear = FleetJob("dear", judged="report", verdict="X", billable_s=100, lost_s=12, losses=(Loss("X", 12, 0.05),), bill_usd=0.2, lost_usd=0.05, price=9.0)  # fmt: skip
    assert [job.name for job in assemble([dear, long]).jobs] == ["long", "dear"]


def test_one_list_has_one_unit_and_advice_appears_once():
    unpriced = row_of(read_report(json.dumps(report_json("u", finding("HOST_BOUND", 240), instance_type="own")).encode()), described("own", 1), FleetJob("u", judged="report"))  # fmt: skip
    shown = summary(assemble([judged("a", 3000), judged("b", 2000), judged("c", 1000), unpriced]))
    by_cause, _, top = shown.partition("Wasted by cause")[2].partition("Jobs that waste most")
    assert "$" not in by_cause
    assert "4 min" in by_cause
    assert "$0" not in top
    assert top.count("Repair INPUT_BOUND.") == 1


def test_jobs_that_waste_most_come_first_with_any_cause():
    """They were grouped by cause: a job that lost little was listed above one that lost much."""
    other = priced(report_json("other", finding("HOST_BOUND", 2000)), description("other"), prices=PRICES)
    top = summary(assemble([judged("a", 3000), judged("b", 1000), other])).partition("Jobs that waste most")[2]
    order = [line.partition(": ")[0].split()[-1] for line in top.splitlines()[1:] if ": " in line]
    assert order == ["a", "other", "b"]
    assert top.count("Repair INPUT_BOUND.") == 1


def test_the_first_thing_to_do_is_in_the_terminal_as_on_the_page():
    other = priced(report_json("other", finding("HOST_BOUND", 600)), description("other"), prices=PRICES)
    fleet = assemble([judged("a", 3000), judged("b", 2900), other])
    page, lines = unescape(render_html(fleet)), summary(fleet, first=first_lines(fleet)).splitlines()
    at = lines.index("Do this first: it saves up to $3.28")
    assert lines[at + 1 : at + 3] == [
        "  Repair INPUT_BOUND.",
        "  Waiting for data: 2 jobs lose $3.28 this way, most of all a",
    ]
    assert lines[at] in page
    assert lines[at + 2].strip().removesuffix(" a") in page
    assert first_lines(assemble([judged("a", 0)])) == []


def test_the_first_thing_to_do_saves_what_its_own_jobs_lose():
    """One job's advice was that for all jobs with its cause, although most of them had other advice."""
    loader = "Prepare batches in {} workers. Load {}."
    advised = [(name, lost, loader.format(name, name)) for name, lost in (("1", 1800), ("2", 900), ("3", 300))]
    advised += [(name, 720, "Read from closer storage.") for name in ("4", "5", "6")]
    fleet = assemble(
        priced(report_json(name, finding("INPUT_BOUND", lost, next_step=step)), description(name), prices=PRICES)
        for name, lost, step in advised
    )
    (cause,) = fleet.causes
    assert (cause.jobs, cause.next_step) == (6, loader.format("1", "1"))
    assert (cause.repair.jobs, cause.repair.usd) == (3, pytest.approx(5 / 3))
    (shared,) = fleet.common
    assert (shared.jobs, shared.repair) == (6, cause.repair)
    own = attrs.evolve(fleet, common=())
    assert first_lines(own) == [
        "Do this first: it saves up to $1.67",
        f"  {loader.format('1', '1')}",
        "  Waiting for data: 6 jobs lose $2.87 this way. This repairs 3 of these 6 jobs, $1.67, most of all 1",
    ]
    assert first_lines(fleet)[0] == first_lines(own)[0]
    assert "$2.87 wasted. This repairs 3 of these 6 jobs, $1.67." in unescape(render_html(fleet))


def test_advice_that_was_above_is_referred_to():
    jobs = [judged("a", 3000), judged("b", 1000)]
    other = priced(report_json("other", finding("HOST_BOUND", 2000)), description("other"), prices=PRICES)
    top = summary(assemble([*jobs, other])).partition("Jobs that waste most")[2].splitlines()
    (last,) = (at for at, line in enumerate(top) if " b: " in line)
    assert top[last + 1].strip() == "As above."


def test_the_reason_of_a_failure_is_cut_at_its_end():
    """Its middle was left out, with what had failed."""
    reason = f"After 200 training steps, rank 1 ran out of memory: RuntimeError: [enforce fail at {'alloc.cpp ' * 30}] code 12"
    job = priced(report_json("a"), description("a", status="Failed", FailureReason=reason), prices=PRICES)
    fleet = assemble([job])
    for shown in (summary(fleet), render_html(fleet)):
        assert "RuntimeError: [enforce fail at alloc.cpp" in shown
        assert "code 12" not in shown.partition("Failed: After")[2].splitlines()[0]


def test_advice_below_the_jobs_that_waste_most_is_short():
    """Below each job there was a long paragraph, with the numbers of that job."""
    jobs = [
        priced(
            report_json(name, finding("HOST_BOUND", lost, next_step=f"Give each step more work. {'It is slow. ' * 20}Now {name}.")),
            description(name), prices=PRICES,
        )
        for name, lost in (("a", 3000), ("b", 2000))
    ]  # fmt: skip
    top = summary(assemble(jobs)).partition("Jobs that waste most")[2]
    assert top.count("Give each step more work.") == 1
    assert max(map(len, top.splitlines())) < 180


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("waste>40%", 1),
        ("waste>60%", 0),
        ("waste>60%,coverage<80%", 1),
        ("coverage<9%", 0),
        ("cost>20", 1),
        ("cost > $30", 0),
    ],
)
def test_conditions(tmp_path, monkeypatch, capsys, text, code):
    for name, hours in (("a", 1), ("c", 10)):
        folder = tmp_path / "jobs" / name
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(json.dumps(description(name, billable=3600 * hours, training=3600 * hours)))
    (tmp_path / "jobs/a/report.json").write_text(json.dumps(report_json("a", finding("INPUT_BOUND", 1800))))
    (tmp_path / "prices.json").write_text(json.dumps(PRICES))
    monkeypatch.chdir(tmp_path)
    assert main(["fleet", "jobs", "--prices", "prices.json", "--fail-on", text]) == code
    errors = capsys.readouterr().err
    assert ("--fail-on waste" in errors) == ("waste" in text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("waste", "expected waste>20%, cost>500 (dollars) or coverage<80%"),
        ("waste>101%", "waste is at most 100 %"),
        ("waste<20%", "waste has an upper limit, waste>N"),
        ("coverage>20%", "coverage has a lower limit, coverage<N"),
        ("cost>10%", "the cost is in dollars"),
        ("waste>20", "waste is in percent: waste>20%"),
        ("waste>20%,,cost>1", "'' is not a condition"),
    ],
)
def test_wrong_conditions_name_what_is_wrong(text, hint):
    with pytest.raises(ArgumentTypeError) as error:
        conditions_of(text)
    assert hint in str(error.value)


def test_a_limit_of_waste_is_reported_if_nothing_was_judged():
    totals = assemble([unjudged("a")]).totals
    waste, coverage = conditions_of("waste>20%,coverage<80%")
    assert not waste.broken_by(totals)
    assert "no job was judged" in waste.unknown_for(totals)
    assert coverage.broken_by(totals) == "0 %"


@pytest.mark.parametrize(
    "change",
    [
        {"duration_s": 1e308},
        {"duration_s": 5 * 86400.0},
        {"loop": [START_S, 1e308]},
        {"nodes": [f"algo-{number}" for number in range(100_001)]},
    ],
    ids=["absurd", "longer than its own times", "loop", "nodes"],
)
def test_times_that_no_job_has_are_refused(change):
    report = report_json("a", finding("INPUT_BOUND", 1800))
    report["job"].update(change)
    with pytest.raises(SourceError, match="not plausible"):
        read_report(json.dumps(report).encode())


def test_an_absurd_report_is_counted_and_decides_nothing(tmp_path):
    for name in "abcdef":
        folder = tmp_path / name
        folder.mkdir()
        report = report_json(name, finding("INPUT_BOUND", 1800))
        if name == "c":
            report = json.loads(json.dumps(report), parse_float=lambda _: 1e308)
        (folder / "report.json").write_text(json.dumps(report))
    fleet = build_fleet([str(tmp_path)])
    assert fleet.totals.instance_hours == pytest.approx(5)
    assert fleet.totals.unreadable == 1
    assert "not plausible" in next(job.error for job in fleet.jobs if job.error)


def test_a_job_that_has_most_of_the_time_by_its_profile_is_named(tmp_path):
    for name, hours in zip("abcdef", (1, 1, 1, 1, 1, 900), strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(report_json(name, duration=hours * HOUR)))
    assert any("all machine time is that of f," in note for note in build_fleet([str(tmp_path)]).notes)


@pytest.mark.parametrize(("text", "codes"), [("waste>90%", (1, 1)), ("coverage<0%", (1, 0)), ("cost>1000", (1, 0))])
def test_a_condition_without_anything_to_check_is_not_kept(tmp_path, monkeypatch, capsys, text, codes):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "prices.json").write_text(json.dumps(PRICES))
    monkeypatch.chdir(tmp_path)
    command = ["fleet", "jobs", "--prices", "prices.json", "--fail-on", text]
    assert main(command) == codes[0]
    assert not (tmp_path / "fleet-report").exists()  # a report of nothing
    assert "there are no jobs to check" in capsys.readouterr().err
    (tmp_path / "jobs/a").mkdir()
    (tmp_path / "jobs/a/job.json").write_text(json.dumps(description("a", billable=3600, training=3600)))
    assert main(command) == codes[1]


def test_a_limit_of_the_cost_without_any_price_is_not_kept(tmp_path, monkeypatch):
    (tmp_path / "jobs/a").mkdir(parents=True)
    (tmp_path / "jobs/a/job.json").write_text(json.dumps(description("a", billable=3600, training=3600)))
    monkeypatch.chdir(tmp_path)
    kind = json.loads((tmp_path / "jobs/a/job.json").read_text())["ResourceConfig"]["InstanceType"]
    (tmp_path / "prices.json").write_text(json.dumps({kind: None}))
    assert main(["fleet", "jobs", "--prices", "prices.json", "--fail-on", "cost>1000"]) == 1


@pytest.mark.parametrize("kind", ["dgx", None])
def test_a_price_of_gpus_for_a_job_without_any_is_named(tmp_path, kind):
    folder = tmp_path / "jobs/a"
    folder.mkdir(parents=True)
    report = report_json("a", finding("INPUT_BOUND", 600), instance_type=kind, gpus=[])
    (folder / "report.json").write_text(json.dumps(report))
    fleet = build_fleet([str(tmp_path / "jobs")], prices={"*": {"gpu_hour": 2.0}})
    assert fleet.notes == ("Without a bill, because their price is that of a GPU, and no GPU was recorded: 1 job.",)
    assert build_fleet([str(tmp_path / "jobs")], prices={"*": 2.0}).notes == ()


def test_sentences_call_a_rank_what_its_page_calls_it():
    slow = finding(
        "STRAGGLER", 60.0, headline="Rank algo-1-1 delays the others.", next_step="Look at process algo-1-1."
    )
    stored = report_json(verdict=slow, also=[slow])
    stored["job"]["ranks"] = [
        stored["job"]["ranks"][0] | {"name": f"algo-1-{rank}", "label": f"rank {rank}"} for rank in (0, 1)
    ]
    row = row_of(read_report(json.dumps(stored).encode()), {}, FleetJob("job"))
    assert (row.headline, row.next_step) == ("Rank 1 delays the others.", "Look at rank 1.")
    assert {loss.headline for loss in row.losses} == {"Rank 1 delays the others."}


def test_headline_and_limit_have_the_same_coverage_if_a_bill_is_unknown():
    """It was "90 % of $1.23" beside a limit that found 0.1 %: a job in the scheduler's list has hours and no bill."""
    listed = FleetJob("slurm-7", listed_only=True, status="Failed", billable_s=38 * 3600.0)
    fleet = assemble([judged("a"), judged("b"), listed])
    (limit,) = conditions_of("coverage<80%")
    assert limit.broken_by(fleet.totals) == "5 %"
    assert "Judged: 5 % of 40.0 h of machine time, 2 of 3 jobs." in summary(fleet)
    assert "Judged: 5 % of 40.0 h of machine time, 2 of 3 jobs." in unescape(render_html(fleet))
    assert not limit.unknown_for(fleet.totals)


def test_a_part_of_few_minutes_is_not_the_whole():
    """It read "1 min of 1 min of machine time was wasted (81 %)"."""
    job = FleetJob("a", judged="report", verdict="X", billable_s=84, lost_s=68.0)
    assert "1.1 min of 1.4 min of machine time was wasted (81 %)" in unescape(render_html(assemble([job])))


def test_headline_and_limit_have_the_same_coverage_if_all_costs_cents():
    """The page had 75 % of 8 min, and the limit 20 %, of cents."""
    cheap = FleetJob("a", judged="report", verdict="X", billable_s=360, bill_usd=0.01, lost_usd=0.0, price=0.1)
    dear = FleetJob("b", billable_s=120, bill_usd=0.04, price=1.2)
    fleet = assemble([cheap, dear])
    above, below = conditions_of("coverage<80%,coverage<70%")
    assert "Judged: 75 % of 8 min of machine time, 1 of 2 jobs." in summary(fleet)
    assert above.broken_by(fleet.totals) == "75 %"
    assert not below.broken_by(fleet.totals)
    assert not above.unknown_for(fleet.totals)
    assert not below.unknown_for(fleet.totals)


def test_a_limit_of_the_coverage_that_is_kept_is_not_reported():
    """CI printed the explanation of the share as if the limit were broken."""
    cheap = FleetJob("cheap", judged="report", verdict="X", billable_s=360, bill_usd=0.001, lost_usd=0.0, price=0.01)
    totals = assemble([cheap, FleetJob("dear", billable_s=180), FleetJob("damaged", error="damaged")]).totals
    broken, kept = conditions_of("coverage<50%,coverage<40%")
    assert broken.unknown_for(totals)
    assert not kept.broken_by(totals)
    assert not kept.unknown_for(totals)
