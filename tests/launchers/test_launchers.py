"""Real trainings under each launcher: one profile for each process that trains, every step in it, nothing changed."""

import json
import signal

import pytest
from cases import CASES
from launcher_helpers import metrics_of, plain, printed, profiled, program, start, traceback_of, until_complete

pytestmark = pytest.mark.long


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace("`", ""))
def test_launcher(case, tmp_path, record_property):
    record_property("launcher", case.name)
    profile = tmp_path / "profile"
    runs = [
        start(tmp_path / name, case.command(str(tmp_path / name / "own")), folder, **case.environment)
        for name, folder in (("off", None), ("on", profile))
    ]
    (off_code, off_out, off_errors), (code, out, errors) = (run.wait() for run in runs)
    assert (off_code, code) == (0, 0), off_errors + errors
    without, ranks = printed(off_out + off_errors), printed(out + errors)
    assert tuple(sorted(ranks)) == tuple(sorted(without)) == case.ranks, out + errors
    for rank, line in ranks.items():
        assert line["digest"] == without[rank]["digest"]
        assert line["steps"] == without[rank]["steps"] > 0
    assert "sm-profiler" not in errors
    if case.same_errors:
        assert plain(errors) == plain(off_errors)
    until_complete(profile, kills=case.kills)
    found = profiled(profile)
    assert [(one.pid, one.steps) for one in found] == [
        (line["pid"], line["steps"]) for line in sorted(ranks.values(), key=lambda line: (line["rank"], line["pid"]))
    ]
    names = [f"{one.rank if case.named else one.pid}-algo-1" for one in found]
    assert [one.name for one in found] == names
    assert [one.rank for one in found] == (list(case.ranks) if case.named else [None])
    judged = metrics_of(profile)
    assert [len(rank.steps) for rank in judged.ranks] == [one.steps for one in found]
    record_property("processes", case.processes)
    record_property("seen", f"{len(found)} profile{'s' * (len(found) > 1)}, {found[0].steps} of {found[0].steps} steps")
    record_property("missing", case.missing)


def test_elastic_restart(tmp_path, record_property):
    """A rank is killed; torchrun stops the other one and starts both again."""
    record_property("launcher", "`torchrun --max-restarts`, a rank is killed")
    notes, profile, config = tmp_path / "notes", tmp_path / "profile", tmp_path / "config.json"
    config.write_text(json.dumps({"ProfilingParameters": {"LocalPath": str(profile)}}))
    elastic = ["torchrun", "--standalone", "--max-restarts", "1", "--nproc-per-node", "2", "elastic.py"]
    off_notes = tmp_path / "off-notes"
    for folder in (notes, off_notes):
        folder.mkdir()
    off = start(tmp_path / "off", [program(elastic[0]), *elastic[1:], str(off_notes)], None)
    run = [program("sm-profiler"), "run", "--no-monitor", "--config", str(config), "--", *elastic, str(notes)]
    on = start(tmp_path / "on", run, None)
    (off_code, off_out, off_errors), (code, out, errors) = off.wait(), on.wait()
    assert (off_code, code) == (0, 0), off_errors + errors
    without, ranks = printed(off_out), printed(out)
    assert sorted(ranks) == [0, 1]
    assert all(line["attempt"] == 1 and line["digest"] == without[rank]["digest"] for rank, line in ranks.items())
    until_complete(profile)
    written = {}
    for path in notes.iterdir():
        attempt, rank, pid = map(int, path.name.split("-"))
        written[rank, attempt, pid] = len(path.read_text().split())
    found = profiled(profile)
    assert {(one.rank, one.pid) for one in found} == {(rank, pid) for rank, _, pid in written}
    for (rank, attempt, pid), steps in written.items():
        seen = next(one.steps for one in found if one.pid == pid)
        # the step in which an attempt was killed has no end
        assert steps <= seen <= steps + 1 if attempt == 0 else seen == steps, (rank, attempt, seen, steps)
    judged = metrics_of(profile)
    assert [(rank.name, rank.attempts.count) for rank in judged.ranks] == [("algo-1-0", 2), ("algo-1-1", 2)]
    record_property("processes", "two ranks in each of two attempts")
    record_property("seen", "2 ranks with 2 attempts each; all steps of both attempts")
    record_property(
        "missing",
        "what a killed rank did in its last second",
    )


def test_failing_rank_keeps_the_launchers_exit_code_and_message(tmp_path, record_property):
    record_property("launcher", "`torchrun`, a rank fails")
    command = [program("torchrun"), "--standalone", "--nproc-per-node", "2", "failing.py"]
    runs = [start(tmp_path / name, command, folder) for name, folder in (("off", None), ("on", tmp_path / "profile"))]
    (off_code, _, off_errors), (code, _, errors) = (run.wait() for run in runs)
    assert code == off_code == 1
    assert traceback_of(errors) == traceback_of(off_errors)
    assert "sm-profiler" not in errors
    found = profiled(tmp_path / "profile")
    assert (1, 5) in [(one.rank, one.steps) for one in found]
    record_property("processes", "two ranks")
    record_property(
        "seen", "all steps of the rank that fails; exit code and traceback are unchanged (more: [failures](#in-detail))"
    )
    record_property("missing", "what torchrun stops by SIGTERM loses its last second")


def test_worker_killed_in_a_spawned_group(tmp_path, record_property):
    """`sm-profiler run` completes the file of a rank that was killed."""
    record_property("launcher", "`multiprocessing`, a rank is killed")
    profile, config = tmp_path / "profile", tmp_path / "config.json"
    config.write_text(json.dumps({"ProfilingParameters": {"LocalPath": str(profile)}}))
    run = [program("sm-profiler"), "run", "--no-monitor", "--config", str(config), "--", "python", "killed.py"]
    on = start(tmp_path / "on", run, None)
    code, out, errors = on.wait()
    assert code == 1, errors
    assert f"-{int(signal.SIGKILL)}" in out + errors or "SIGKILL" in out + errors
    found = profiled(profile)
    assert [one.steps for one in found] == [8]
    record_property("processes", "a main process, one rank")
    record_property("seen", "the steps up to the last second before it was killed")
    record_property("missing", "its last second")
