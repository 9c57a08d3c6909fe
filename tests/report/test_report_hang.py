"""Verdicts about trainings that stopped, from made-up records of the hook."""

import json
from pathlib import Path
from types import SimpleNamespace

import attrs
import jsonschema
import msgspec
import numpy as np
import pytest

from sm_profiler.diagnosis.classes import Class
from sm_profiler.exporters import mcp as answers
from sm_profiler.formats.event_names import HANG
from sm_profiler.formatting import is_library
from sm_profiler.metrics.hang import hang_arguments
from sm_profiler.render.page import render_html
from sm_profiler.render.terminal import terminal_summary
from sm_profiler.report.report_json import to_json
from sm_profiler.report.write import describe_hangs
from sm_profiler.timeline import timeline_file
from tests.support.reports import START_S, events, report_from, training, verdict_of
from tests.support.stored import assert_as_stored, words_of

SCHEMA = Path(__file__).parents[2] / "docs" / "report.schema.json"

LIBRARY = "/usr/lib/python3.11/site-packages/"
SLEEPS = [["/job/train.py", 30, "step"], ["/job/train.py", 50, "main"]]
COLLECTIVE = [
    [f"{LIBRARY}torch/distributed/distributed_c10d.py", 900, "all_reduce"],
    ["/job/train.py", 40, "step"],
    ["/job/train.py", 50, "main"],
]
BACKWARD = [[f"{LIBRARY}torch/autograd/graph.py", 10, "_engine_run_backward"], ["/job/train.py", 41, "step"]]


def stop(frames, node="algo-1-0", state="hanging", seconds=60.0, **more):
    """Return the row of a hang."""
    args = {"state": state, "waited": seconds, "longest": 1.0, "cpu": 0.01, "same": True, **more}
    if frames is not None:
        args["threads"] = [{"name": "MainThread", "training": True, "frames": frames}]
    return (HANG, "hang", 20.0, seconds, node, 199, args)


def judged(*stops, ranks=1):
    rows = [row for rank in range(ranks) for row in training(200, node=f"algo-1-{rank}")]
    return verdict_of([*rows, *stops]).main


def test_names_line_function_and_time():
    main = judged(stop(SLEEPS))
    assert main.kind is Class.HANG
    assert (
        main.headline
        == "The training stopped after 200 training steps: algo-1-0 has been at train.py:30 in step for 60 s."
    )
    assert (main.where[0].file, main.where[0].line, main.where[0].rank) == ("/job/train.py", 30, "algo-1-0")
    assert main.confidence == "high"


def test_all_places_count_the_steps_that_were_complete():
    """The headline, the end of the job and report.json had three counts of a hang in the middle of a step."""
    report = report_from([*training(200), stop(SLEEPS, steps=199)])
    assert "after 199 training steps" in report.verdict.main.headline
    assert report.metrics.ending.step == 199
    found = json.loads(to_json(report))
    assert (found["end"]["step"], found["hang"]["step"], found["hang"]["where"][0]["completed_steps"]) == (
        199,
        198,
        199,
    )
    assert [row["value"] for row in found["verdict"]["evidence"] if "steps" in row["metric"]] == [199]
    two = [row for rank in (0, 1) for row in training(200, node=f"algo-1-{rank}")]
    stops = (stop(SLEEPS, steps=199), stop(COLLECTIVE, node="algo-1-1", steps=200))
    main = verdict_of([*two, *stops]).main
    assert "after 199 to 200 training steps" in main.headline


@pytest.mark.parametrize(
    "more",
    [
        [stop(None, state="resumed", seconds=80.0)],
        [stop(None, state="ended", seconds=80.0)],
    ],
)
def test_a_training_that_went_on_or_ended_has_no_hang(more):
    assert judged(stop(SLEEPS), *more).kind is not Class.HANG


def test_no_finding_of_the_time_before_is_shown_beside_a_hang():
    """Each states a share and a gain of a loop that is no more."""
    waits = report_from(training(200, wait=0.02))
    hung = report_from([*training(200, wait=0.02), stop(SLEEPS)])
    assert hung.verdict.kind is Class.HANG
    assert waits.verdict.kind in {one.kind for one in hung.verdict.also}  # in report.json, as before
    assert "Also:" not in terminal_summary(hung)
    assert 'id="also"' not in render_html(hung)


def test_an_exit_by_an_error_is_still_a_hang():
    assert judged(stop(SLEEPS), stop(None, state="ended", seconds=80.0, error="KeyboardInterrupt")).kind is Class.HANG


QUEUE = [
    ["/usr/lib/python3.11/threading.py", 331, "wait"],
    ["/usr/lib/python3.11/queue.py", 180, "get"],
    ["/job/train.py", 22, "fetch"],
    ["/job/train.py", 50, "main"],
]
LOCK = [QUEUE[0], *QUEUE[2:]]


def test_a_wait_for_batches_that_ends_with_the_process_is_a_hang():
    ended = stop(None, state="ended", seconds=80.0)
    main = judged(stop(QUEUE), ended)
    assert main.kind is Class.HANG
    assert "train.py:22 in fetch for 80 s, waiting for a queue" in main.headline
    assert judged(stop(LOCK), ended).kind is not Class.HANG  # a thread that saves after the loop
    assert judged(stop(QUEUE, cpu=0.9), ended).kind is not Class.HANG


def test_a_process_that_computes_in_changing_places_has_no_hang():
    assert judged(stop(SLEEPS, cpu=1.0, same=False)).kind is not Class.HANG
    assert judged(stop(SLEEPS, cpu=1.0, same=True)).kind is Class.HANG  # a spinning wait


def test_the_rank_that_is_not_in_the_collective_is_elsewhere():
    main = judged(stop(COLLECTIVE), stop(SLEEPS, node="algo-1-1"), stop(BACKWARD, node="algo-1-2"), ranks=3)
    assert "algo-1-1 has been at train.py:30" in main.headline
    assert main.headline.endswith("; 2 others wait for it.")
    assert main.where[0].rank == "algo-1-1"


def test_a_rank_that_ended_is_named():
    main = judged(stop(COLLECTIVE), ranks=2)
    assert "algo-1-1 ended, and algo-1-0 has waited for it" in main.headline
    assert main.where[0].line == 40


def test_a_rank_that_stopped_and_ended_is_not_elsewhere():
    """It was shown at the line at which it had waited before it ended, while the others waited on."""
    ended = stop(None, node="algo-1-1", state="ended", seconds=15.0, error="TimeoutError")
    main = judged(stop(COLLECTIVE), stop(SLEEPS, node="algo-1-1", seconds=12.0), ended, ranks=2)
    assert "algo-1-1 ended, and algo-1-0 has waited for it" in main.headline
    late = stop(None, node="algo-1-1", state="ended", seconds=55.0, error="TimeoutError")
    main = judged(stop(COLLECTIVE), stop(SLEEPS, node="algo-1-1", seconds=12.0), late, ranks=2)
    assert "algo-1-1 has been at train.py:30" in main.headline


def test_ranks_in_different_collectives_are_both_named():
    main = judged(stop(COLLECTIVE), stop(BACKWARD, node="algo-1-1"), ranks=2)
    assert "algo-1-0 at train.py:40, algo-1-1 at train.py:41" in main.headline


@pytest.mark.parametrize(
    "threads", [None, 5, [], [5], [{"frames": 5}], [{"frames": [5, ["a"], ["file", "line", "f"], ["file", 3, None]]}]]
)
def test_hostile_records_do_not_raise(threads):
    judged(stop(None, threads=threads, cpu="much", longest=float("nan")))


DEAD = {"name": "feeder", "error": "ValueError: damaged", "where": "feed.py:8", "ago": 60.2}


def test_a_thread_that_died_is_named_with_its_exception():
    main = judged(stop(QUEUE, dead=[DEAD]))
    assert main.headline.endswith(
        "In algo-1-0, thread feeder had ended with an exception: ValueError: damaged (feed.py:8)."
    )
    assert main.next_step.startswith("Fix that exception first")
    earlier = judged(stop(QUEUE, dead=[{**DEAD, "ago": 660.0}]))
    assert "had ended with an exception 10 min before that: ValueError" in earlier.headline
    assert "dead" in hang_arguments(json.dumps({"state": "hanging", "threads": [], "dead": [DEAD]}))


@pytest.mark.parametrize(
    "dead", [None, 5, [5], [{}], [{"error": 5}], [{"error": "x", "ago": float("nan"), "name": None}]]
)
def test_hostile_records_of_dead_threads_do_not_raise(dead):
    assert judged(stop(QUEUE, dead=dead)).kind is Class.HANG


IDLE = [["/usr/lib/python3.11/threading.py", 331, "wait"], ["/usr/lib/python3.11/threading.py", 600, "_bootstrap"]]
FEEDER = [["/job/feed.py", 7, "put"], IDLE[1]]
THREADS = [
    {"name": "MainThread", "training": True, "frames": QUEUE},
    {"name": "idle", "training": False, "frames": IDLE},
    {"name": "feeder", "training": False, "frames": FEEDER},
]
CHILDREN = [{"pid": 77, "name": "pt_data_worker", "state": "T", "waits_in": "do_signal_stop"}]


def stopped_report(**options):
    rows = [*training(200), stop(None, threads=THREADS, children=CHILDREN, dead=[DEAD], longest=0.0)]
    return report_from(rows, **options)


def test_report_page_and_terminal_have_the_stacks():
    report = stopped_report()
    found = json.loads(to_json(report))["hang"]
    jsonschema.validate(json.loads(to_json(report)), json.loads(SCHEMA.read_text()))
    assert (found["ranks"], found["kind"], found["step"]) == (["algo-1-0"], "process", 199)
    assert [stack["thread"] for stack in found["stacks"]] == ["MainThread", "feeder", "idle"]
    assert found["stacks"][1]["frames"][0] == {"file": "/job/feed.py", "line": 7, "function": "put"}
    assert found["where"][0]["line"] == 22
    assert found["children"][0]["state"] == "T"
    assert found["dead_threads"] == [
        {"rank": "algo-1-0", "thread": "feeder", "error": "ValueError: damaged", "where": "feed.py:8"}
    ]
    assert (
        answers.Tools(SimpleNamespace(report=lambda _: report)).evidence("job")["data"]["hang"]["stacks"]
        == found["stacks"]
    )
    assert_as_stored(words_of(render_html(report), "stacks"), "stacks")
    text = terminal_summary(report, width=100)
    assert "algo-1-0 MainThread: threading.py:331 wait < queue.py:180 get < train.py:22 fetch" in text
    assert "feed.py:7 put" in text
    assert "idle" not in text


def test_the_terminal_shows_the_line_of_a_wait_instead_of_the_loop_before_it():
    """The bar of the loop before the stop, and warnings about its shares, displaced the text of the line and the advice."""
    report = stopped_report()
    place = msgspec.structs.replace(report.verdict.main.where[0], source="item = batches.get()")
    main = msgspec.structs.replace(report.verdict.main, where=(place,))
    crowded = attrs.evolve(report, verdict=attrs.evolve(report.verdict, main=main, shared_wait=0.45))
    assert crowded.load_alarm
    text = terminal_summary(crowded, width=100)
    assert "item = batches.get()" in text
    assert "Loop:" not in text
    assert "Other programs" not in text
    assert crowded.load_alarm in render_html(crowded)


def test_a_training_that_goes_on_has_no_stacks():
    report = report_from(training(200))
    assert json.loads(to_json(report))["hang"] is None
    assert 'id="stacks"' not in render_html(report)


def test_a_hang_lasts_until_the_end_of_the_recording_and_has_no_gain():
    seconds = np.arange(0.0, 500.0) + START_S
    report = stopped_report(memory={"algo-1-0": (seconds, np.full(500, 1e9))})
    assert report.hang.seconds == 479.0  # from 20 s on; its latest record has 60 s
    assert "for 7.98 min" in report.verdict.main.headline
    assert report.verdict.main.gain is None
    text = terminal_summary(report, width=100)
    assert "usually" not in text  # nothing is known of how long it usually takes
    assert "of the lost time" not in text
    assert "Repairing" not in text


def test_a_queue_that_no_thread_can_fill_is_named():
    assert "No other Python thread is alive in algo-1-0" in judged(stop(QUEUE)).next_step
    assert "No other Python thread" not in stopped_report().verdict.main.next_step


def test_the_merged_timeline_has_the_stacks(tmp_path):
    rows = events([*training(200), stop(None, threads=THREADS, children=CHILDREN)])
    with timeline_file(tmp_path / "trace", START_S * 1e6, describe_hangs) as writer:
        writer.add_events(rows)
        writer.finish([], "job")
    written = (tmp_path / "trace").read_bytes()
    assert b"/job/feed.py:7 in put" in written
    assert b"pt_data_worker (77): state T, waits in do_signal_stop" in written
    (event,) = [one for one in json.loads(written)["traceEvents"] if one["name"] == "hang"]
    assert event["args"]["threads"].startswith("MainThread:\n  /usr/lib/python3.11/threading.py:331 in wait\n")
    assert (event["args"]["step"], event["args"]["state"]) == (199, "hanging")


def test_the_first_step_is_never_reached():
    sleeping = [["/job/train.py", 12, "prepare"], ["/job/train.py", 50, "main"]]
    rows = [(HANG, "hang", 20.0, 120.0, f"algo-1-{rank}", -1, {
        "state": "hanging", "waited": 120.0, "longest": 0.0, "cpu": 0.001, "same": True,
        "threads": [{"name": "MainThread", "training": True, "frames": sleeping if rank == 1 else COLLECTIVE}],
    }) for rank in range(3)]  # fmt: skip
    report = report_from(rows)
    main = report.verdict.main
    assert (main.kind, main.label) == (Class.HANG, "The training did not begin")
    assert main.headline == (
        "The training did not begin: algo-1-1 has been at train.py:12 in prepare for 2 min, before its first step; "
        "2 others wait for it."
    )
    found = json.loads(to_json(report))["hang"]
    assert (found["ranks"], found["kind"], found["before_first_step"]) == (["algo-1-1"], "rank_elsewhere", True)
    assert found["step"] is None


@pytest.mark.parametrize(("loop", "hangs"), [(False, True), (True, False)])
def test_a_job_that_ends_without_ever_stepping_has_its_stacks(loop, hangs):
    """In a job with steps, a process without any does other work."""
    waiting = {"state": "hanging", "waited": 120.0, "longest": 0.0, "cpu": 0.001, "same": True}
    thread = {"name": "MainThread", "training": True, "frames": [["/job/train.py", 12, "prepare"]]}
    rows = [
        (HANG, "hang", 20.0, 120.0, "algo-1-7", -1, {**waiting, "threads": [thread]}),
        (HANG, "hang", 20.0, 130.0, "algo-1-7", -1, {**waiting, "state": "ended", "waited": 130.0}),
    ]
    report = report_from([*rows, *(training(200) if loop else [])])
    assert (report.hang is not None) == hangs
    assert ("train.py:12 in prepare for 2.17 min, before its first step" in report.verdict.main.headline) == hangs


@pytest.mark.parametrize(
    "text", ["", "[]", '{"threads": 5, "children": [3], "state": [1]}', '{"threads": [{"frames": [[1, "a"]]}]}']
)
def test_hostile_arguments_do_not_reach_a_timeline(text):
    assert not hang_arguments(text)


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("/usr/lib/python3.11/threading.py", True), ("/opt/app/site-packages/x/a.py", True), ("torch/nn/module.py", True),
        ("<frozen runpy>", True), ("<attrs generated init a.B>", True), ("~", True), ("/job/train.py", False),
        ("/home/me/torch/train.py", False), ("<ipython-input-3-a1>", False), ("/tmp/ipykernel_7/1.py", False),
    ],
)  # fmt: skip
def test_code_of_libraries(file, library):
    assert is_library(file) is library


def test_the_sentence_names_the_machine_of_a_node():
    """Only the end of the page named the machine of `algo-2` on a cluster."""
    rows = [row for rank in (0, 1) for row in training(200, node=f"algo-{rank + 1}-{rank}")]
    stops = (stop(COLLECTIVE, node="algo-1-0"), stop(SLEEPS, node="algo-2-1"))
    metadata = [
        {"node": f"algo-{rank + 1}", "rank": rank, "pid": 7, "identity": {"host": host}}
        for rank, host in enumerate(("gpu01", "gpu02"))
    ]
    report = report_from([*rows, *stops], metadata=tuple(metadata))
    assert "algo-2-1 (gpu02) has been at train.py:30 in step" in report.verdict.main.headline
    assert (
        report.metrics.with_hosts("algo-1, algo-1-0, algo-12, /a/algo-2")
        == "algo-1 (gpu01), algo-1-0, algo-12, /a/algo-2"
    )
    metadata[1]["identity"] = {"host": "algo-2"}  # as on SageMaker
    report = report_from([*rows, *stops], metadata=tuple(metadata))
    assert "algo-2-1 has been at train.py:30 in step" in report.verdict.main.headline
