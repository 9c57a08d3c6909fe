"""Verdicts about trainings that stopped, from made-up records of the hook."""

import pytest
from report_helpers import training, verdict_of

from sm_profiler.formats.event_names import HANG
from sm_profiler.report.classes import Class

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
    assert main.headline == "The training stopped after step 199: algo-1-0 has been at train.py:30 in step for 60 s."
    assert (main.where[0].file, main.where[0].line, main.where[0].rank) == ("/job/train.py", 30, "algo-1-0")
    assert main.confidence == "high"


@pytest.mark.parametrize(
    "more",
    [
        [stop(None, state="resumed", seconds=80.0)],
        [stop(None, state="ended", seconds=80.0)],
    ],
)
def test_a_training_that_went_on_or_ended_has_no_hang(more):
    assert judged(stop(SLEEPS), *more).kind is not Class.HANG


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


def test_ranks_in_different_collectives_are_both_named():
    main = judged(stop(COLLECTIVE), stop(BACKWARD, node="algo-1-1"), ranks=2)
    assert "algo-1-0 at train.py:40, algo-1-1 at train.py:41" in main.headline


@pytest.mark.parametrize(
    "threads", [None, 5, [], [5], [{"frames": 5}], [{"frames": [5, ["a"], ["file", "line", "f"], ["file", 3, None]]}]]
)
def test_hostile_records_do_not_raise(threads):
    judged(stop(None, threads=threads, cpu="much", longest=float("nan")))
