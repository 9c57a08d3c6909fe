"""COMMUNICATION_BOUND by DistributedDataParallel's own times: gradients that are exchanged while nothing is computed."""

import pytest

from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.formats import event_names
from sm_profiler.report import Class
from tests.support.reports import START_S, sampled, training, verdict_of

STEP_S, BACKWARD_S, STEPS = 0.0502, 0.039, 200


def exchanging(*, communication, overlap=0.002, passes=STEPS, ranks=2):
    """Return steps of ranks of which the log of DDP is known, in seconds for each pass."""
    rows, alone = [], max(communication - overlap, 0.0)
    computed = BACKWARD_S * STEPS / passes - alone
    for rank in range(ranks):
        node = f"algo-1-{rank}"
        rows += training(STEPS, wait=0, forward=0.01, backward=BACKWARD_S, node=node)
        args = {
            "passes": passes, "at_us": int((START_S + 1 + STEPS * STEP_S) * 1e6), "backward_us": computed * 1e6,
            "communication_us": communication * 1e6, "overlap_us": overlap * 1e6, "parameter_bytes": 10**8, "ranks": ranks,
        }  # fmt: skip
        rows.append((event_names.SYNCHRONIZATION, "DistributedDataParallel", 1 + STEPS * STEP_S, 0.0, node, -1, args))
    return rows


def test_an_exchange_in_each_of_several_backward_passes():
    main = verdict_of(exchanging(communication=0.006, passes=4 * STEPS)).main
    assert (main.kind, main.confidence) == (Class.COMMUNICATION_BOUND, "high")
    assert "in each of about 4 backward passes for an update" in main.headline
    assert "model.no_sync()" in main.next_step
    assert main.share_of_time == pytest.approx(4 * 0.004 / STEP_S, abs=0.01)
    assert main.gain.share_of_loop.low <= 0.75 * 4 * 0.004 / STEP_S <= main.gain.share_of_loop.high


def test_an_exchange_that_nothing_hides():
    main = verdict_of(exchanging(communication=0.022)).main
    assert (main.kind, main.confidence) == (Class.COMMUNICATION_BOUND, "low")
    assert "while nothing is computed" in main.headline
    assert "no_sync" not in main.headline


JOINING = ("start", False, 3.0, 5, "train.py", "main", "torch.distributed.distributed_c10d.init_process_group")
MEETING = ("backward", False, 2.0, 29)


@pytest.mark.parametrize(
    ("stacks", "lines"), [((JOINING,), []), ((JOINING, MEETING), [29])], ids=["alone", "with the loop"]
)
def test_the_line_at_which_a_job_joins_its_group_is_none_of_the_loop(stacks, lines):
    main = verdict_of([*exchanging(communication=0.022), sampled(*stacks)]).main
    assert main.kind is Class.COMMUNICATION_BOUND
    assert [line.line for line in main.where] == lines


@pytest.mark.parametrize(
    "rows",
    [
        exchanging(communication=0.012, overlap=0.011),
        exchanging(communication=0.006),
        exchanging(communication=0.002, passes=4 * STEPS),
        exchanging(communication=0.03, ranks=1),
    ],
    ids=["hidden", "short", "all hidden", "alone"],
)
def test_what_computation_hides_is_no_finding(rows):
    assert verdict_of(rows).kind is Class.BALANCED


@pytest.mark.parametrize("times", [1, 20], ids=["as timed", "of slow passes"])
def test_the_exchange_is_a_part_of_the_backward_pass(times):
    """Few passes are timed, and those may be slower: 80 % of a loop was exchange, of which 76 % was the backward pass."""
    rows = exchanging(communication=0.022)
    for *_, args in (row for row in rows if row[0] == event_names.SYNCHRONIZATION):
        args |= {name: times * args[name] for name in ("backward_us", "communication_us", "overlap_us")}
    assert verdict_of(rows).main.share_of_time == pytest.approx(0.02 / STEP_S, abs=0.01)


def test_ranks_that_wait_for_cores_wait_for_each_other_in_the_exchange(monkeypatch):
    rows = exchanging(communication=0.022)
    assert verdict_of(rows).kind is Class.COMMUNICATION_BOUND
    monkeypatch.setattr(Case, "core_wait", 0.4)
    assert verdict_of(rows).kind is Class.BALANCED
