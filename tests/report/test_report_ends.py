"""End of a job: from its run, its description, its processes' records and the age of its data."""

import json
from argparse import Namespace

import pytest

from sm_profiler.cli.report import exit_code
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.job import _until
from sm_profiler.exporters.destination import message_of
from sm_profiler.metrics.ends import EndFacts, RankEnd, StoredEnd, end_of, unrecorded_ranks
from sm_profiler.render.flame import part_of
from sm_profiler.render.page import render_html
from sm_profiler.report import build_report, terminal_summary
from sm_profiler.report.report_json import to_json
from sm_profiler.report.write import render_notebook
from sm_profiler.source import open_source
from sm_profiler.source.open_files import closes_in
from tests.support.jobs import make_job
from tests.support.reports import START_S, metrics_of, report_from, sampled, training

PEER = "RuntimeError: [pair.cc:553] Connection closed by peer"


def record(rank, end=None, at=None, step=None, error="", *, start=1.0, **more):  # one argument a field
    """Return the record of a process, times in seconds after the start."""
    found = {"node": "algo-1", "rank": rank, "pid": 100 + rank, "start_us": (START_S + start) * 1e6}
    found |= {"end": end} if end else {}
    found |= {"end_us": (START_S + at) * 1e6} if at is not None else {}
    found |= {"end_step": step} if step is not None else {}
    return found | ({"end_error": error} if error else {}) | more


NOT_ALLOCATED = (
    "MemoryError",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "OSError: [Errno 12] Cannot allocate memory",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.",
)


def of_run(state, code=None):
    return EndFacts(run=state, exit_code=code)


def test_a_crash_comes_first_and_the_speed_below():
    ended = record(0, "crashed", 5.0, 121, "ValueError: bad batch", end_code=1, end_place="train.py:10")
    report = report_from(training(121, wait=0.02), metadata=(ended,), facts=of_run("crashed", 1))
    first, second = terminal_summary(report, width=100).splitlines()[:2]
    assert first == "The script ended with exit code 1 after 121 training steps: ValueError: bad batch (train.py:10)"
    assert second.startswith("INPUT_BOUND")
    assert json.loads(to_json(report))["end"] == {
        "state": "crashed", "exit_code": 1, "error": "ValueError: bad batch", "where": "train.py:10", "step": 121,
    }  # fmt: skip
    assert json.loads(to_json(report))["job"]["ranks"][0]["end"]["state"] == "crashed"
    assert "ended with exit code 1" in render_html(report)
    assert "ended with exit code 1" in render_notebook(report)
    assert message_of(report).lines[0] == first
    assert message_of(report).detail["end"]["state"] == "crashed"


@pytest.mark.parametrize(
    ("facts", "ranks", "state", "sentence"),
    [
        (of_run("completed", 0), [RankEnd("algo-1-0", "killed", step=9)], "completed", ""),  # _exit(0) in C
        (of_run("completed", 0), [RankEnd("7-algo-1", "crashed", 3, step=9)], "completed", "The job completed, but a process of it failed: after 9 training steps, 7-algo-1 ended with exit code 3."),
        (of_run("crashed", 3), [RankEnd("algo-1-0", "exited", step=9)], "crashed", "The script ended with exit code 3 after 9 training steps."),
        (of_run("crashed", 139), [RankEnd("algo-1-0", "killed", step=9, counted=False)], "crashed", "The script was ended by SIGSEGV after at least 9 training steps: native code used memory that it must not."),
        (of_run("crashed", 134), [RankEnd("algo-1-0", "killed", step=9, counted=False)], "crashed", "The script was ended by SIGABRT after at least 9 training steps: native code gave up, as NCCL's watchdog does after its timeout."),
        (of_run("crashed", 135), [RankEnd("algo-1-0", "killed", step=9, counted=False)], "crashed", "The script was ended by SIGBUS after at least 9 training steps: memory could not be backed, as when /dev/shm is full."),
        (of_run("killed", 137), [RankEnd("algo-1-0", "killed", step=9, counted=False)], "killed", "The script was killed after at least 9 training steps."),
        (of_run("out_of_memory", 137), [], "out_of_memory", "The script ran out of memory: the kernel killed it."),
        *((of_run("crashed", 1), [RankEnd("algo-1-0", "crashed", error=error, step=9, place="train.py:5")], "out_of_memory", f"The script ran out of memory after 9 training steps: {error} (train.py:5)") for error in NOT_ALLOCATED),
        (of_run("crashed", 1), [RankEnd("algo-1-0", "crashed", error="KeyError: memory", step=9)], "crashed", "The script ended with exit code 1 after 9 training steps: KeyError: memory"),
        (of_run("stopped", 130), [RankEnd("algo-1-0", "stopped", error="KeyboardInterrupt", step=1)], "stopped", "The script was stopped after 1 training step by Ctrl-C."),
        (of_run("running"), [RankEnd("algo-1-0", step=9)], "running", "The job is still running: this is the verdict so far, after 9 training steps."),
        (of_run("unknown"), [RankEnd("algo-1-0", step=9)], "unknown", ""),  # `sm-profiler run` itself was killed
        (EndFacts(is_fresh=True), [RankEnd("algo-1-0", "killed", step=9)], "killed", "The job was ended by a signal after 9 training steps."),
        (EndFacts(finished=True), [RankEnd("algo-1-0", "crashed", error="E", step=9)], "crashed", "The job failed after 9 training steps: E"),
        (EndFacts(finished=True), [RankEnd("algo-1-0", step=9)], "completed", ""),
        (EndFacts(is_fresh=True), [RankEnd("algo-1-0", step=9)], "running", "The job is still running: this is the verdict so far, after 9 training steps."),
        (EndFacts(), [RankEnd("algo-1-0", step=9)], "unknown", ""),
    ],
)  # fmt: skip
def test_the_state_of_a_job(facts, ranks, state, sentence):
    ending = end_of(facts, ranks)
    assert (ending.state, ending.sentence) == (state, sentence)


def test_a_completed_job_does_not_make_the_end_of_a_child_another_one():
    """A child that was killed counted as completed, because the script went on."""
    ranks = [RankEnd("7-algo-1", "killed", step=9), RankEnd("8-algo-1", "exited"), RankEnd("9-algo-1", "crashed", 3)]
    ends = [one.state or "unknown" for one in end_of(of_run("completed", 0), ranks).ranks]
    assert ends == ["unknown", "completed", "crashed"]


@pytest.mark.parametrize(
    ("description", "state", "error", "code"),
    [
        ({"TrainingJobStatus": "Completed"}, "completed", "", None),
        ({"TrainingJobStatus": "Failed", "FailureReason": "AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nValueError: x"}, "crashed", "AlgorithmError: ExecuteUserScriptError: ExitCode 1 ValueError: x", 1),
        ({"TrainingJobStatus": "Failed", "FailureReason": "AlgorithmError: Exit Code: 137"}, "out_of_memory", "AlgorithmError: Exit Code: 137", 137),
        ({"TrainingJobStatus": "Stopped", "SecondaryStatus": "Stopped"}, "stopped", "", None),
        ({"TrainingJobStatus": "Stopped", "SecondaryStatus": "MaxRuntimeExceeded"}, "stopped", "MaxRuntimeExceeded", None),
        ({"TrainingJobStatus": "InProgress", "SecondaryStatus": "Training"}, "running", "", None),
        ({"TrainingJobStatus": "InProgress", "SecondaryStatus": "Interrupted"}, "interrupted", "", None),
    ],
)  # fmt: skip
def test_the_state_of_a_described_job(description, state, error, code):
    ending = end_of(EndFacts(finished=True, description=description), [RankEnd("algo-1-0", step=9)])
    assert (ending.state, ending.error, ending.exit_code) == (state, error, code)


@pytest.mark.parametrize("status", ["Stopped", "Failed"])
def test_the_open_file_of_a_job_that_was_cut_short_is_lost_aloud(status):
    """The container of a job that the service stops is gone, with what was in files that were still open."""
    job = {"TrainingJobStatus": status, "SecondaryStatus": status, "ProfilerConfig": {"S3OutputPath": "s3://b"}}
    cut = [RankEnd("algo-1-0", step=9)]
    lost = "Up to 60 s of data was in a file that was still open, and is lost."
    assert end_of(EndFacts(description=job), cut).sentence.endswith(lost)
    job["ProfilerConfig"]["ProfilingParameters"] = {"RotateFileCloseIntervalInSeconds": "180"}
    assert "Up to 3 min of data" in end_of(EndFacts(description=job), cut).sentence
    report = report_from(training(100), description=job)
    assert "3 min of data" in " ".join(terminal_summary(report, width=100).splitlines()[:2])
    assert "3 min of data" in render_html(report)
    known = [RankEnd("algo-1-0", "stopped", step=9)]  # it recorded its own end, or the agent completed its files
    for facts, ranks in (
        (EndFacts(description=job), known),
        (EndFacts(description={**job, "TrainingJobStatus": "InProgress"}), cut),
        (EndFacts(description={**job, "TrainingJobStatus": "Completed"}), cut),
        (of_run("killed", 137), cut),  # its files are on this machine
    ):
        assert "lost" not in end_of(facts, ranks).sentence


def test_interruptions_are_those_of_the_description():
    rows = [{"Status": "Training"}, {"Status": "Interrupted"}, {"Status": "Training"}]
    report = report_from(training(100), description={"SecondaryStatusTransitions": rows})
    assert report.metrics.interruptions[0] == 1
    assert json.loads(to_json(report))["job"]["interruptions"]["count"] == 1
    assert "interrupted once" in terminal_summary(report)


def two_ranks(*metadata, steps=(150, 151), seconds=(1.5, 4.0)):
    """Return the report of two ranks, of which rank 0 waits for long after its last step with rank 1."""
    rows = training(steps[0], node="algo-1-1") + training(150, node="algo-1-0")
    rows += training(steps[1] - 150, node="algo-1-0", outside=seconds[1], at=3.0, number=150)
    return report_from(rows, metadata=metadata, facts=of_run("crashed", 1))


@pytest.mark.parametrize(
    ("second", "headline"),
    [
        (record(1, "crashed", 2.5, 150, "ValueError: x"), "After 150 training steps, algo-1-1 failed: ValueError: x."),
        (record(1, "crashed", 2.5, 150, end_code=3), "After 150 training steps, algo-1-1 ended with exit code 3."),
        (record(1, "killed", 2.5), "After at least 150 training steps, algo-1-1 was ended by a signal."),
        (record(1, "out_of_memory", 2.5), "After at least 150 training steps, algo-1-1 was killed because memory ran out."),
    ],
)  # fmt: skip
def test_a_dead_rank_is_the_verdict(second, headline):
    report = two_ranks(record(0, "crashed", 3.1, 151, PEER), second)
    main = report.verdict.main
    assert json.loads(to_json(report))["end"]["step"] == 150  # of the rank that failed, as the headline has it
    assert (main.kind, main.confidence, main.headline, main.gain) == (Class.DEAD_RANK, "high", headline, None)
    assert [(one.metric, one.value) for one in main.evidence] == [
        ("training steps of the other rank that came furthest", 151)
    ]
    assert exit_code(report, Namespace(fail_on="issues")) == 1
    assert terminal_summary(report).startswith("DEAD_RANK")


def test_a_rank_that_was_killed_after_another_may_have_come_further():
    """The rank that died had 151 training steps, and the one that “came furthest” 80."""
    report = two_ranks(record(0, "killed", 9.0), record(1, "crashed", 2.5, 190, "ValueError: x"))
    main = report.verdict.main
    assert main.headline == "After 190 training steps, algo-1-1 failed: ValueError: x."
    (furthest,) = main.evidence
    assert furthest.metric == "recorded training steps of the other rank that came furthest"
    assert furthest.value == 151


@pytest.mark.parametrize("error", NOT_ALLOCATED)
def test_a_rank_whose_allocation_failed_ran_out_of_memory_in_the_verdict_as_well(error):
    """The end of the job was that; its verdict was that a rank had failed, with the advice to read the traceback."""
    report = two_ranks(record(0, "crashed", 3.1, 151, PEER), record(1, "crashed", 2.5, 150, error))
    main, stored = report.verdict.main, json.loads(to_json(report))
    assert stored["end"]["state"] == stored["job"]["ranks"][1]["end"]["state"] == "out_of_memory"
    assert main.headline.startswith(f"After 150 training steps, algo-1-1 ran out of memory: {error}")
    of_gpu = any(word in error for word in ("CUDA", "RESOURCE_EXHAUSTED", "ResourceExhausted"))
    assert ("Give the job more memory" in main.next_step) == (not of_gpu)


def test_of_ranks_that_run_out_of_memory_together_the_first_one_is_named():
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB"
    report = two_ranks(record(0, "crashed", 2.6, 150, error), record(1, "crashed", 2.5, 150, error))
    assert report.metrics.ending.dead.name == "algo-1-1"
    assert report.metrics.ending.error == error


def test_what_follows_a_death_is_no_measure_of_the_speed():
    report = two_ranks(record(0, "crashed", 9.0, 170, PEER), record(1, "killed", 2.5), steps=(150, 170))
    assert [one.kind for one in report.verdict.also if one.kind is Class.SYNC_BOUND] == []
    assert max(rank.end for rank in report.metrics.ranks) <= START_S + 2.5
    assert json.loads(to_json(report))["job"]["ranks"][0]["end"]["step"] == 170  # all of its steps are counted


def test_a_rank_that_ends_early_is_the_verdict():
    report = two_ranks(record(0, "crashed", 3.1, 151, PEER), record(1, "exited", 2.5, 150))
    main = report.verdict.main
    assert main.kind is Class.UNEQUAL_STEPS
    assert main.is_end
    assert main.headline.startswith(
        "After 150 training steps, algo-1-1 ended, and the others went on without it: algo-1-0 failed"
    )
    assert exit_code(report, Namespace(fail_on="issues")) == 1


def test_a_long_error_of_a_peer_is_cut_at_its_end():
    error = f"RuntimeError: [{'/folder' * 8}/pair.cc:553] Connection closed by peer [::1]:1. {'Typical. ' * 9}GLHF!"
    headline = two_ranks(record(0, "crashed", 3.1, 151, error), record(1, "exited", 2.5, 150)).verdict.main.headline
    assert "pair.cc:553] Connection closed by peer" in headline
    assert "GLHF" not in headline


def test_ranks_that_end_together_are_no_dead_rank():
    both = record(0, "killed", 2.5), record(1, "killed", 2.6)
    assert two_ranks(*both).metrics.ending.dead is None
    ended = record(0, "exited", 60.0, 150), record(1, "exited", 2.5, 150)  # rank 0 evaluates, and saves the model
    ending = metrics_of(training(150, node="algo-1-0"), metadata=ended, facts=of_run("completed", 0)).ending
    assert (ending.dead, ending.short) == (None, None)
    stopped = metrics_of(training(150, node="algo-1-0"), metadata=both, facts=of_run("stopped", 143)).ending
    assert stopped.dead is None


def test_ranks_that_leave_with_the_same_exit_code_are_no_dead_rank():
    both = record(0, "crashed", 2.5, 150, end_code=3), record(1, "crashed", 2.6, 150, end_code=3)
    ending = metrics_of(training(150, node="algo-1-0"), metadata=both).ending
    assert (ending.state, ending.exit_code, ending.dead) == ("crashed", 3, None)


@pytest.mark.parametrize("order", [1, -1])
def test_an_exit_code_that_became_known_later_counts(order):
    """Its file may come before or after that of the process itself, which has no code."""
    known = record(1, "exited", 2.5, 150), record(1, "crashed", 2.5, 150, end_code=3)
    main = two_ranks(record(0, "crashed", 3.1, 151, PEER), *known[::order]).verdict.main
    assert (main.kind, main.headline) == (Class.DEAD_RANK, "After 150 training steps, algo-1-1 ended with exit code 3.")
    assert "sys.exit(3)" in main.next_step


def test_the_latest_attempt_of_a_rank_counts():
    first = record(0, "crashed", 2.0, 10, "ValueError: x"), record(1, "killed", 2.0)
    again = record(0, "exited", 9.0, 150, start=3.0), record(1, "exited", 9.0, 150, start=3.0)
    ending = metrics_of(training(150, node="algo-1-0", at=3.0), metadata=(*first, *again)).ending
    assert (ending.state, ending.dead) == ("completed", None)


def test_a_failed_job_is_an_issue_however_fast_it_was():
    report = report_from(training(121, wait=0.0001), facts=of_run("crashed", 1), metadata=(record(0, "exited"),))
    assert exit_code(report, Namespace(fail_on="issues")) == 1


@pytest.mark.parametrize(
    ("reason", "exited"),
    [
        ("AlgorithmError: ExecuteUserScriptError: ExitCode 2", True),  # of argparse
        ("AlgorithmError: ExecuteUserScriptError: ExitCode -15", False),
        ("InternalServerError", False),
    ],
)
def test_a_training_job_whose_script_failed_before_its_first_step_was_not_too_short(reason, exited):
    job = {
        "TrainingJobStatus": "Failed", "FailureReason": reason, "Environment": {"SM_PROFILER_AUTO": "1"},
        "ProfilerConfig": {"S3OutputPath": "s3://b", "ProfilingParameters": {"LocalPath": "/opt/ml/output/profiler"}},
    }  # fmt: skip
    report = report_from((), SAMPLES, description=job)
    main, [(_, not_judged), *_] = report.verdict.main, report.verdict.not_judged
    assert ("The script failed before its first step." in main.headline) == exited
    assert ("in a file that was still open" in main.headline) == (not exited)
    for advice in (main.next_step, not_judged):
        assert ("Correct the error that ended it" in advice) == exited
        assert ("run longer" in advice) == (not exited)
    assert message_of(report).title.endswith(": Failed")


def test_steps_that_are_too_few_are_counted():
    main = report_from(training(20)).verdict.main
    assert main.kind is Class.INCONCLUSIVE
    assert (
        main.headline == "Too few training steps to judge: of 20 recorded steps, 19 can be judged, and 20 are needed."
    )
    assert (main.evidence[0].metric, main.evidence[0].value) == ("training steps that can be judged", 19)
    assert main.next_step.startswith("Run at least 100 steps")
    assert "--follow" not in main.next_step  # it has ended
    assert "--follow" in report_from(training(20), running=True).verdict.main.next_step
    failed = report_from(training(20), facts=of_run("crashed", 1), metadata=(record(0, "crashed", 5.0, 20),))
    assert failed.verdict.main.next_step.startswith("Repair the failure first")


def test_without_training_steps_there_is_no_verdict_on_the_loop():
    main = report_from(training(60, mode="EVAL", backward=0, optimizer=0)).verdict.main
    assert (main.kind, main.headline) == (Class.INCONCLUSIVE, "No training step was recorded, only evaluation.")


SAMPLES = [(1 + tick / 2, 10.0, "algo-1", "cpu", "cpu0", "CPUUtilization") for tick in range(20)]


def test_a_job_without_a_step_has_the_line_that_its_samples_show():
    row = sampled(("start", False, 8.0, 30))
    main = report_from([row], SAMPLES, facts=of_run("stopped", 143)).verdict.main
    assert (main.kind, main.where[0].line) == (Class.INCONCLUSIVE, 30)
    assert part_of(main, main.where[0]) == "100 % of the time before the first step, in 120 samples"


def test_a_run_without_training_steps():
    """Imports are not recorded, and start() and stop() around other code claimed that none was."""
    over = report_from((), SAMPLES, facts=of_run("completed", 0)).verdict
    assert over.main.headline.startswith("No training step was seen")
    assert over.main.next_step.startswith(
        "In a script without these frameworks, mark each step"
    )  # start() was not called
    assert "imported" not in f"{over.main.headline} {over.main.next_step} {over.not_judged}"
    assert "from sm_profiler.hook import get_hook" in over.main.next_step
    assert "SM_PROFILER_AUTO" not in f"{over.main.next_step} {over.not_judged}"
    stopped = report_from((), SAMPLES, facts=of_run("stopped", 143)).verdict.main
    assert stopped.headline == "It was stopped before a training step was seen."
    assert "start()" not in stopped.next_step
    so_far = report_from((), SAMPLES, facts=of_run("running")).verdict.main
    assert "so far" in so_far.headline
    assert "watch" in so_far.next_step


def test_a_job_that_failed_is_not_healthy():
    """A green page stated that nothing needs repair, below the error that had ended the job."""
    ended = record(0, "crashed", 5.0, 300, "ValueError: bad batch", end_code=1, end_place="train.py:10")
    main = report_from(training(300), metadata=(ended,), facts=of_run("crashed", 1)).verdict.main
    assert (main.kind.value, main.label) == ("BALANCED", "No bottleneck before it failed")
    assert main.next_step.startswith("Correct what ended the job")


def without_steps(state, **facts):
    metadata = record(0, state, 2.0, 0)
    metadata[0].update(facts) if isinstance(metadata, (list, tuple)) else metadata.update(facts)
    return report_from((), SAMPLES, metadata=(metadata,)).verdict.main


def test_a_job_that_was_stopped_in_its_imports_has_no_error_to_look_for():
    assert "for an error" in without_steps("exited").next_step
    assert "for an error" not in without_steps("completed").next_step
    stopped = without_steps("stopped", end_place="train.py:3")
    assert "for an error" not in stopped.next_step
    assert stopped.headline == "It was stopped before its first training step, at train.py:3."
    assert stopped.next_step.startswith("If it waited there, see what that line waits for; else let it run longer.")


def test_a_hook_that_was_switched_on_and_found_no_moment_to_start_is_named():
    main = without_steps("completed", collectors={"profiler": "never started: a framework ran"})
    assert main.headline == "The hook was switched on while the job ran, but found no moment to start."
    assert "Start the job with framework metrics on" in main.next_step


def test_a_run_whose_first_file_is_open():
    facts = EndFacts(run="running", first_file_s=23.2)
    main = report_from((), SAMPLES, facts=facts).verdict.main
    assert main.headline == "Nothing is recorded as a whole yet: the job is still running."
    assert main.next_step.startswith("The first file closes in 23 s. 'sm-profiler watch'")


def test_the_verdict_of_a_running_job_is_so_far():
    report = report_from(training(121, wait=0.02), facts=of_run("running"))
    assert terminal_summary(report).splitlines()[0].endswith("confidence, so far)")
    assert "so far" in render_html(report)
    assert "so far" in message_of(report).title


def test_a_healthy_loop_after_a_slow_start_is_named():
    main = report_from(training(2000, at=30.0, wait=0.0001), SAMPLES).verdict.main
    assert main.kind is Class.INITIALIZATION_BOUND
    assert main.headline.startswith(
        "The loop is healthy; the start is what is left: the first training step starts after"
    )
    assert main.confidence == "medium"  # of a run of a minute


def test_open_files_close_after_a_minute(tmp_path, monkeypatch):
    folder = tmp_path / "framework" / "pevents"
    folder.mkdir(parents=True)
    monkeypatch.setattr("sm_profiler.source.open_files.time.time", lambda: 1_700_000_037.0)
    assert closes_in(tmp_path) is None
    (folder / "1-algo-1_pythontimeline_7_0_1700000000000000000.json.tmp").touch()
    (folder / "1-algo-1_pythontimeline_7_0_x.json.tmp").touch()
    assert closes_in(tmp_path) == 23.0


def of_ranks(size, *ranks):
    return [{"rank": rank, "node": "algo-1", "pid": 100 + rank, "world_size": size, "start_us": 1} for rank in ranks]


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        (of_ranks(4, 0, 1, 2, 3), ()), (of_ranks(4, 0, 1, 3), (2,)), ([*of_ranks(4, 0), *of_ranks(2, 1)], ()), (of_ranks(None, 0), ()),
        ([{"rank": None, "world_size": None}], ()), (of_ranks(10**9, 0), ()), (of_ranks("4", 0), ()), ([], ()),
    ],
)  # fmt: skip
def test_ranks_without_a_record(metadata, found):
    assert unrecorded_ranks(metadata) == found


def test_a_rank_that_was_gone_before_its_first_record_is_named():
    lost = "RuntimeError: Connection closed by peer"
    peers = [RankEnd(f"algo-1-{rank}", "crashed", 1, lost, 0, at=10.0 + rank, is_rank=True) for rank in (0, 1, 3)]
    end = end_of(EndFacts(unrecorded=(2,)), peers)
    assert end.dead is None
    assert end.sentence.endswith(f"{lost}. Rank 2 recorded nothing: it may have ended before the others.")
    own = [RankEnd("algo-1-0", "crashed", 1, "ValueError: x", 0, at=5.0, is_rank=True), *peers[1:]]
    assert end_of(EndFacts(unrecorded=(2,)), own).dead is own[0]
    assert "recorded nothing" not in end_of(EndFacts(finished=True, unrecorded=(2,)), []).sentence
    several = end_of(EndFacts(unrecorded=(2, 4, 5, 6, 7)), peers).sentence
    assert several.endswith("Ranks 2, 4, 5, 6 and others recorded nothing: they may have ended before the others.")


def test_a_rank_that_fails_before_its_first_step_is_the_verdict():
    """The launcher ends the others before they have recorded anything."""
    failed = record(1, "crashed", 5.0, 0, "ValueError: no data", end_code=1, end_place="train.py:3", world_size=2)
    report = report_from(metadata=(failed,), facts=of_run("crashed", 1))
    main = report.verdict.main
    assert main.kind is Class.DEAD_RANK
    assert main.headline.startswith(
        "Before its first training step, algo-1-1 failed: ValueError: no data (train.py:3)."
    )
    found = json.loads(to_json(report))["end"]
    assert (found["state"], found["exit_code"], found["error"]) == ("crashed", 1, "ValueError: no data")
    assert [(row["metric"], row["value"]) for row in json.loads(to_json(report))["verdict"]["evidence"]] == [
        ("exit code of the rank", 1)
    ]
    assert "recorded nothing" not in report.metrics.ending.sentence
    unknown = record(1, "crashed", 5.0, 0, end_code=1, world_size=2)
    ending = report_from(metadata=(unknown,), facts=of_run("crashed", 1)).metrics.ending
    assert ending.dead is None
    assert "Rank 0 recorded nothing" in ending.sentence


STORED = StoredEnd("crashed", 3, "ValueError: x", "train.py:3", START_S + 5.0)


@pytest.mark.parametrize(
    ("facts", "ranks", "state", "code"),
    [
        (EndFacts(stored=STORED), [RankEnd("algo-1-0", step=9)], "crashed", 3),
        (EndFacts(stored=STORED, is_fresh=True), [RankEnd("algo-1-0", step=9)], "crashed", 3),
        (EndFacts(stored=STORED, finished=True), [RankEnd("algo-1-0", step=9)], "completed", None),
        (EndFacts(stored=STORED), [RankEnd("algo-1-0", "killed", step=9)], "killed", None),
        (EndFacts(run="completed", exit_code=0, stored=STORED), [RankEnd("algo-1-0", step=9)], "completed", 0),
    ],
)
def test_an_earlier_report_has_the_end_that_a_copy_of_the_profile_lacks(facts, ranks, state, code):
    ending = end_of(facts, ranks)
    assert (ending.state, ending.exit_code) == (state, code)
    if code == 3:
        assert ending.sentence == "The job ended with exit code 3 after 9 training steps: ValueError: x (train.py:3)"


def test_the_end_comes_from_the_report_beside_the_profile(tmp_path):
    """Of a profile that was copied without its hidden files, as to S3."""
    source = make_job(tmp_path / "job", "--minutes", "2")
    for marker in source.rglob("training_job_end.ts"):
        marker.unlink()
    report = build_report(open_source(source, cache=False))
    assert report.metrics.ending.state == "unknown"
    stored = json.loads(to_json(report))
    stored["end"] |= {"state": "crashed", "exit_code": 3}
    (source / "report.json").write_text(json.dumps(stored))
    assert build_report(open_source(source, cache=False)).metrics.ending.exit_code == 3
    stored["job"]["end"] -= 300.0
    (source / "report.json").write_text(json.dumps(stored))
    assert build_report(open_source(source, cache=False)).metrics.ending.state == "unknown"  # it went on
    (source / "report.json").write_text("{")
    assert build_report(open_source(source, cache=False)).metrics.ending.state == "unknown"


def test_the_end_is_that_of_the_last_attempt():
    """The requeued job completed, and the mark of a process that was stopped as it imported made it a stopped job."""
    stopped = record(7, "stopped", 5.0, 0) | {"rank": None, "start_us": None}
    second = record(0, "completed", 65.0, 100, process_us=(START_S + 50) * 1e6, start=60.0)
    for first in (stopped, stopped | {"process_us": (START_S + 1) * 1e6}, record(3, "killed", 5.0, 9)):
        for records in ((first, second), (second, first)):
            report = report_from(training(100, at=60.0), metadata=records, facts=EndFacts(finished=True))
            assert json.loads(to_json(report))["end"]["state"] == "completed"
            assert report.metrics.ending.sentence == ""
            assert message_of(report).detail["end"]["state"] == "completed"


@pytest.mark.parametrize(
    "second",
    [
        record(1, "stopped", 65.0, 3, process_us=(START_S + 50) * 1e6, node="algo-2"),  # its node began late
        record(1, "stopped", 65.0, 3, process_us=(START_S + 1) * 1e6),
        record(1, "stopped", 65.0, 3),  # of a version that did not record when a process began
    ],
)
def test_a_process_that_ends_before_others_is_of_the_same_attempt(second):
    first = record(0, "crashed", 5.0, 0, "ValueError: x", process_us=(START_S + 1) * 1e6)
    report = report_from(training(100, at=60.0), metadata=(first, second), facts=EndFacts())
    assert report.metrics.ending.error == "ValueError: x"


def test_a_process_that_goes_on_keeps_an_attempt_open():
    first = record(0, "crashed", 5.0, 0, "ValueError: x", process_us=(START_S + 1) * 1e6)
    going, third = (record(rank, process_us=(START_S + at) * 1e6) for rank, at in ((1, 1.0), (2, 50.0)))
    report = report_from(training(100, at=60.0), metadata=(first, going, third), facts=EndFacts())
    assert report.metrics.ending.error == "ValueError: x"


@pytest.mark.parametrize(("state", "said"), [("running", True), ("crashed", False), ("completed", False)])
def test_memory_will_be_full_only_in_a_job_that_goes_on(state, said):
    """The report of one that had run out of memory had it."""
    metrics = metrics_of(training(100), facts=of_run(state))
    assert ("memory is full in" in _until(Case(metrics, {}), 119.0)) is said
