"""Jobs that only the scheduler has in its list: they left no profile, and count as not judged."""

import json

import pytest

from sm_profiler.cli.main import main
from sm_profiler.errors import ConfigError
from sm_profiler.fleet.building import build_fleet
from sm_profiler.fleet.scheduler import read_listed
from sm_profiler.fleet.wording import result
from tests.support.fleets import START_S, finding, report_json

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


def test_a_list_must_have_its_columns_and_for_a_choice_by_time_the_start(profiles):
    with pytest.raises(ConfigError, match="JobIDRaw and Elapsed"):
        read_listed("JobID|State\n1|COMPLETED\n")
    with pytest.raises(ConfigError, match="JobIDRaw and Elapsed"):
        read_listed("JobIDRaw,Elapsed|State\n1,02:30|COMPLETED\n")
    with pytest.raises(ConfigError, match="column Start"):
        build_fleet([str(profiles)], since=1.0, listed=read_listed("JobIDRaw|Elapsed\n7|02:30\n"), progress=False)


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
