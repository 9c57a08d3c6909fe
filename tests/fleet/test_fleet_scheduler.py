"""Jobs that only the scheduler has in its list: they left no profile, and count as not judged."""

import json

import pytest

from sm_profiler.cli.main import main
from sm_profiler.errors import ConfigError
from sm_profiler.fleet.building import build_fleet
from sm_profiler.fleet.page import render_html
from sm_profiler.fleet.scheduler import COMMAND, read_listed
from sm_profiler.fleet.wording import result, summary
from tests.support.fleets import START_S, finding, report_json

PLACE = {"where": "", "step": 9}

LIST = """JobIDRaw|JobName|User|Account|State|Start|Elapsed|NNodes
1001|bert|anna|nlp|COMPLETED|2026-09-21T14:00:00|01:00:00|1
1002|bert|anna|nlp|COMPLETED|2026-09-21T14:00:00|01:00:00|1
1003|vit|ben|vision|OUT_OF_MEMORY|2026-09-21T15:00:00|1-00:30:00|2
1004|vit|ben|vision|CANCELLED by 1001|Unknown|00:00:00|1
1003.batch|batch|||OUT_OF_MEMORY|2026-09-21T15:00:00|1-00:30:00|2
"""


@pytest.fixture
def profiles(tmp_path):
    for name, who in (("slurm-1001", {}), ("bert-run", {"job_id": "1002"})):
        folder = tmp_path / "profiles" / name
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(json.dumps(report_json(name, start=START_S, identity=who)))
    return tmp_path / "profiles"


def test_jobs_that_never_ran_and_steps_are_left_out():
    found = read_listed(LIST)
    assert [job.name for job in found] == ["slurm-1001", "slurm-1002", "slurm-1003"]
    last = found[-1]
    assert (last.user, last.account, last.job_name, last.status) == ("ben", "vision", "vit", "Failed")
    assert last.instance_hours == pytest.approx(49)
    assert result(last) == "No profile"
    assert [job.billable_s for job in read_listed("JobIDRaw,Elapsed\n7,02:30\n")] == [150]


@pytest.mark.parametrize(
    ("allocated", "gpus"),
    [
        ("billing=8,cpu=64,gres/gpu:h100=12,gres/gpu:a100=4,gres/gpu=16,mem=1T,node=2", 16),
        ("cpu=64,gres/gpu:h100=12,gres/gpu:a100=4,node=2", 16),
        ("cpu=64,mem=1T,node=2", 0),
        ("", 0),
    ],
)
def test_the_gpus_of_a_job_without_a_profile_have_their_price(allocated, gpus, tmp_path):
    listed = read_listed(f"JobIDRaw|Elapsed|NNodes|AllocTRES\n7|02:00:00|2|{allocated}\n")
    assert (listed[0].gpus, listed[0].gpu_hours) == (gpus, 2.0 * gpus or None)
    (job,) = build_fleet([str(tmp_path)], listed=listed, prices={"*": {"gpu_hour": 2.0}}, progress=False).jobs
    assert job.bill_usd == (64.0 if gpus else None)


@pytest.mark.parametrize(("recorded", "nodes", "gpus"), [(0, 2, 16), (0, 1, 8), (1, 2, 1)])
def test_a_profile_without_gpus_has_those_of_the_list(recorded, nodes, gpus, tmp_path):
    """It had no bill, and its GPUs no hours, although the list has how many it was allocated."""
    report = report_json("slurm-7", hosts=("a", "b")[:nodes], start=START_S, instance_type="own")
    report["job"]["gpus"] = report["job"]["gpus"][:recorded]
    (folder := tmp_path / "slurm-7").mkdir()
    (folder / "report.json").write_text(json.dumps(report))
    listed = read_listed("JobIDRaw|Elapsed|NNodes|AllocTRES\n7|02:00:00|2|gres/gpu=16\n")
    fleet = build_fleet([str(tmp_path)], listed=listed, prices={"*": {"gpu_hour": 2.0}}, progress=False)
    (job,) = (job for job in fleet.jobs if not job.listed_only)
    assert (job.gpus, job.gpu_hours, job.bill_usd) == (gpus, gpus, 2.0 * gpus)


def test_jobs_without_a_price_are_not_free(tmp_path):
    """A user with most of the machine time was shown with $0, and 1 job's price as that of all."""
    for number, failed in ((1001, False), (1002, True)):
        report = report_json(f"slurm-{number}", start=START_S + number, identity={"user": "anna"}, instance_type="own")
        report["end"] = {"state": "crashed" if failed else "completed", "exit_code": 1, "error": "x", **PLACE}
        (folder := tmp_path / f"slurm-{number}").mkdir()
        (folder / "report.json").write_text(json.dumps(report))
    without = "".join(f"{number}|ben|{state}|10:00:00\n" for number, state in ((7, "FAILED"), (8, "COMPLETED")))
    listed = read_listed(f"JobIDRaw|User|State|Elapsed\n{without}9|anna|FAILED|10:00:00\n")
    fleet = build_fleet([str(tmp_path)], listed=listed, prices={"own": 9.0}, progress=False)
    lines = {line.split()[0]: line for line in summary(fleet, ["user"]).splitlines() if line}
    assert "20.0 h" in lines["ben"]
    assert "$" not in lines["ben"]
    assert lines["ben"].endswith("not judged, 2 jobs")  # and not 0 h of waste
    assert "$18.00" in lines["anna"]
    assert lines["anna"].endswith("3 jobs, 1 without a price")
    page = render_html(fleet)
    assert "20.0 h" in page
    assert "Wasted on failed jobs <small>1 job</small></dt><dd><b>$9.00</b>" in page
    assert "Not judged" not in page.partition("</svg>")[0]  # nothing of what has a price


@pytest.mark.parametrize("others", [False, True])
def test_what_judged_jobs_without_a_price_lose_is_not_free(others, tmp_path):
    """Of a job without a profile the price was known: the hours that the others lost were $0."""
    kinds = {"slurm-1001": ("unknown", "anna")} | ({"slurm-1003": ("own", "ben")} if others else {})
    for number, (name, (kind, user)) in enumerate(kinds.items()):
        lost = finding("INPUT_BOUND", 1800.0)
        report = report_json(name, lost, start=START_S + number, identity={"user": user}, instance_type=kind)
        (folder := tmp_path / name).mkdir()
        (folder / "report.json").write_text(json.dumps(report))
    listed = read_listed("JobIDRaw|User|Elapsed|AllocTRES\n1002|anna|01:00:00|gres/gpu=4\n")
    prices = {"own": 9.0, "*": {"gpu_hour": 2.0}, "unknown": None}
    fleet = build_fleet([str(tmp_path)], listed=listed, prices=prices, progress=False)
    assert fleet.totals.in_dollars == others
    assert fleet.totals.waste == pytest.approx(0.5)
    text, page = summary(fleet, ["user"]), render_html(fleet)
    assert "$0" not in text
    assert "$0" not in page.partition("<script")[0]
    (anna,) = (line for line in text.splitlines() if line.split()[:1] == ["anna"])
    assert "2.0 h, 30 min wasted" in anna
    (group,) = (group.sums for group in fleet.groups if (group.key, group.value) == ("user", "anna"))
    assert group.causes == {"INPUT_BOUND": pytest.approx(0.5)}


def test_the_help_has_the_whole_command(capsys):
    with pytest.raises(SystemExit):
        main(["fleet", "--help"])
    assert "".join(COMMAND.split()) in "".join(capsys.readouterr().out.split())


def test_jobs_without_a_profile_are_not_covered(profiles):
    fleet = build_fleet([str(profiles)], listed=read_listed(LIST), progress=False)
    totals = fleet.totals
    assert (totals.jobs, totals.judged) == (3, 2)
    assert totals.coverage == pytest.approx(2 / 51)
    (note,) = (note for note in fleet.notes if "scheduler's list" in note)
    assert note == (
        "Without a profile, of the 3 jobs in the scheduler's list: 1 with 49.0 h of machines, such as slurm-1003 (vit) of ben."
    )
    assert build_fleet([str(profiles)], progress=False).totals.coverage == 1.0


@pytest.mark.parametrize(
    ("elapsed", "nodes", "rest"),
    [("01:00:00", 1, 0.0), ("01:06:00", 1, 0.0), ("01:00:00", 16, 15.0), ("10:00:00", 1, 9.0)],
)
def test_what_a_profile_leaves_out_of_its_job_is_not_covered(elapsed, nodes, rest, tmp_path):
    """A profile of one node of sixteen covered the whole job, and passed `coverage<80%`."""
    report = report_json("slurm-7", finding("INPUT_BOUND", 1800.0), start=START_S, instance_type="own")
    (folder := tmp_path / "slurm-7").mkdir()
    (folder / "report.json").write_text(json.dumps(report))
    listed = read_listed(
        f"JobIDRaw|User|State|Elapsed|NNodes|AllocTRES\n7|anna|FAILED|{elapsed}|{nodes}|gres/gpu={nodes}\n"
    )
    fleet = build_fleet([str(tmp_path)], listed=listed, prices={"*": {"gpu_hour": 2.0}}, progress=False)
    assert fleet.totals.instance_hours == pytest.approx(1 + rest)
    assert fleet.totals.coverage == pytest.approx(1 / (1 + rest))
    assert fleet.totals.failed == 1
    (group,) = (group.sums for group in fleet.groups if group.key == "user")
    assert group.bill_usd == pytest.approx(2.0 * (1 + rest))
    notes = [note for note in fleet.notes if "whose rest" in note]
    wanted = (
        "Profiled on some of their nodes or for some of their time: 1 job, whose rest is "
        f"{rest:.1f} h of machines, such as slurm-7-unrecorded of anna."
    )
    assert notes == ([wanted] if rest else [])


def test_a_list_must_have_its_columns_and_for_a_choice_by_time_the_start(profiles):
    with pytest.raises(ConfigError, match=r"the column Elapsed\."):
        read_listed("JobID|State\n1|COMPLETED\n")
    with pytest.raises(ConfigError, match=r"the column JobIDRaw\."):
        read_listed("Elapsed|State\n02:30|COMPLETED\n")
    with pytest.raises(ConfigError, match="JobIDRaw and Elapsed"):
        read_listed("JobIDRaw,Elapsed|State\n1,02:30|COMPLETED\n")
    with pytest.raises(ConfigError, match="column Start"):
        build_fleet([str(profiles)], since=1.0, listed=read_listed("JobIDRaw|Elapsed\n7|02:30\n"), progress=False)


def test_a_row_that_cannot_be_read_is_counted(profiles):
    """It was left out without a word."""
    rows = "1001||0\n3005|garbage|u2\n3006|01:00:00|u2\n|01:00:00|u3\n3005.batch|garbage|\n"
    fleet = build_fleet([str(profiles)], listed=read_listed(f"JobIDRaw|Elapsed|User\n{rows}"), progress=False)
    errors = {job.name: job.error for job in fleet.jobs if job.error}
    assert errors == {
        "slurm-3005": "its row in the list of jobs cannot be read: its Elapsed is 'garbage'",
        "slurm-unknown": "its row in the list of jobs cannot be read: it has no number",
    }
    assert (fleet.totals.jobs, fleet.totals.judged, fleet.totals.unreadable) == (5, 2, 2)
    assert fleet.totals.coverage == pytest.approx(2 / 3 * 3 / 5)  # those of unknown length are average ones
    assert "2 could not be read: slurm-" in summary(fleet)
    assert "garbage" in render_html(fleet)


def test_the_list_has_the_owners_that_profiles_lack(profiles):
    """They were "unknown", and a choice by account lost them."""
    listed = read_listed(LIST.replace("anna|nlp", "carl|audio").replace("vit|ben|vision", "vit||"))
    for folder in (profiles / "own", profiles / "slurm-1003"):
        folder.mkdir()
        report = report_json(folder.name, start=START_S + 9, identity={"user": "anna", "job_id": "1001"})
        (folder / "report.json").write_text(json.dumps(report if folder.name == "own" else report_json("slurm-1003")))
    chosen = build_fleet([str(profiles)], listed=listed, tags={"account": "audio"}, progress=False).jobs
    assert {(job.name, job.user, job.job_name, job.job_id) for job in chosen} == {
        ("slurm-1001", "carl", "bert", "1001"),
        ("bert-run", "carl", "bert", "1002"),
        ("own", "anna", "bert", "1001"),  # what the profile has stays
    }
    (group,) = (
        one for one in build_fleet([str(profiles)], listed=listed).groups if (one.key, one.value) == ("user", "")
    )
    assert group.sums.jobs == 2  # and what the list has beyond the profile


def test_the_command_checks_the_list_and_states_so_without_one(profiles, tmp_path, capsys):
    listed = tmp_path / "sacct.txt"
    listed.write_text(LIST)
    command = ["fleet", str(profiles), "--out", str(tmp_path / "out"), "--fail-on", "coverage<99%"]
    assert main(command) == 0
    assert "folders show no others" in capsys.readouterr().err
    assert main([*command, "--jobs", str(listed)]) == 1
    assert "folders show no others" not in capsys.readouterr().err
    assert "No profile" in (tmp_path / "out" / "fleet.html").read_text()
    assert main([*command, "--jobs", str(tmp_path / "none")]) == 2


def test_a_job_that_slurm_ended_for_its_memory_has_that_as_its_end(tmp_path):
    """It was "Failed" with the advice to save checkpoints; what its memory holds is in its report."""
    grows = finding("MEMORY_GROWTH", headline="Its memory grows, most of all list keep.", next_step="Look for tensors.")
    for number, end in (("1001", "killed"), ("1002", "unknown"), ("1003", "out_of_memory")):
        folder = tmp_path / f"slurm-{number}"
        folder.mkdir()
        report = report_json(folder.name, grows if number != "1001" else None, start=START_S + int(number))
        report["end"] = {"state": end, "exit_code": None, "error": "", "where": "", "step": 9}
        (folder / "report.json").write_text(json.dumps(report))
    states = "".join(f"{number}|OUT_OF_MEMORY|01:00:00\n" for number in (1001, 1002, 1003, 1004))
    fleet = build_fleet([str(tmp_path)], listed=read_listed(f"JobIDRaw|State|Elapsed\n{states}"), progress=False)
    rows = {job.name: job for job in fleet.jobs}
    assert all(job.status == "Failed" and job.failure.startswith("Out of memory.") for job in fleet.jobs)
    assert "the job needs less of it" in rows["slurm-1001"].losses[0].next_step
    assert [rows[f"slurm-{number}"].losses[0].next_step for number in (1002, 1003)] == ["Look for tensors."] * 2
    assert "list keep" in rows["slurm-1002"].failure
    assert "list keep" in rows["slurm-1003"].failure
    assert fleet.totals.failed == 4


def judged_with(tmp_path, jobs):
    """Return the fleet of jobs: number → end by its profile, and state in the scheduler's list."""
    for number, (end, _) in jobs.items():
        report = report_json(f"slurm-{number}", finding("INPUT_BOUND", 600.0), start=START_S + int(number))
        report["end"] = {
            "state": end,
            "exit_code": None,
            "error": "ValueError: bad" if end == "crashed" else "",
            **PLACE,
        }
        (folder := tmp_path / f"slurm-{number}").mkdir()
        (folder / "report.json").write_text(json.dumps(report))
    states = "".join(f"{number}|{state}|01:00:00\n" for number, (_, state) in jobs.items())
    fleet = build_fleet([str(tmp_path)], listed=read_listed(f"JobIDRaw|State|Elapsed\n{states}"), progress=False)
    return fleet, {job.job_id or job.name.removeprefix("slurm-"): job for job in fleet.jobs}


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("FAILED", "Failed"), ("NODE_FAIL", "Failed"), ("BOOT_FAIL", "Failed"), ("TIMEOUT", "Stopped"),
        ("DEADLINE", "Stopped"), ("PREEMPTED", "Stopped"), ("CANCELLED by 1001", "Stopped"), ("COMPLETED", "Completed"),
        ("RUNNING", "InProgress"), ("PENDING", ""),
    ],
)  # fmt: skip
def test_a_job_whose_profile_has_no_end_has_that_of_the_scheduler(state, status, tmp_path):
    fleet, rows = judged_with(tmp_path, {"1001": ("unknown", state)})
    assert rows["1001"].status == status
    assert ("Slurm's state" in rows["1001"].failure) == (status in {"Failed", "Stopped"})
    assert rows["1001"].lost_s == (3600 if status == "Failed" else 600)
    assert not any("worse end" in note for note in fleet.notes)


@pytest.mark.parametrize(
    ("end", "state", "status"),
    [
        ("completed", "NODE_FAIL", "Failed"), ("completed", "TIMEOUT", "Stopped"), ("completed", "PREEMPTED", "Stopped"),
        ("completed", "FAILED", "Failed"), ("crashed", "COMPLETED", "Failed"), ("stopped", "COMPLETED", "Stopped"),
    ],
)  # fmt: skip
def test_of_two_ends_the_worse_one_counts_and_a_note_has_them(end, state, status, tmp_path):
    """A training that completed before a later part of its job failed was no waste."""
    fleet, rows = judged_with(tmp_path, {"1001": (end, state), "1002": ("completed", "COMPLETED")})
    (note,) = (note for note in fleet.notes if "worse end" in note)
    assert "1 job, such as slurm-1001" in note
    assert rows["1001"].status == status
    assert rows["1001"].lost_s == (3600 if end == "crashed" else 600)
    assert rows["1002"].status == "Completed"


@pytest.mark.parametrize(
    ("end", "state", "status", "failure"),
    [
        ("crashed", "FAILED", "Failed", "ValueError: bad"),
        ("crashed", "CANCELLED", "Failed", "ValueError: bad"),
        ("killed", "NODE_FAIL", "Failed", "The job was killed. Slurm's state: NODE_FAIL"),
        ("stopped", "TIMEOUT", "Stopped", "The job was stopped. Slurm's state: TIMEOUT"),
        ("completed", "RUNNING", "Completed", ""),  # the list is older than the end
    ],
)
def test_a_profile_and_the_scheduler_that_agree_have_both_reasons(end, state, status, failure, tmp_path):
    fleet, rows = judged_with(tmp_path, {"1001": (end, state)})
    assert (rows["1001"].status, rows["1001"].failure) == (status, failure)
    assert not any("worse end" in note for note in fleet.notes)


def test_trainings_of_one_job_keep_their_ends(tmp_path):
    """An allocation in which several trainings ran ends at its time limit; they did not."""
    for name, end in (("first", "completed"), ("second", "unknown")):
        report = report_json(name, start=START_S + len(name), identity={"job_id": "1001"})
        report["end"] = {"state": end, "exit_code": None, "error": "", **PLACE}
        (folder := tmp_path / name).mkdir()
        (folder / "report.json").write_text(json.dumps(report))
    listed = read_listed("JobIDRaw|State|Elapsed\n1001|TIMEOUT|01:00:00\n")
    fleet = build_fleet([str(tmp_path)], listed=listed, progress=False)
    assert {job.name: job.status for job in fleet.jobs} == {"first": "Completed", "second": "Stopped"}
