"""Causes in tables: ranks that wait for each other, work that a column counts, long steps, ranks that end early."""

import json
import random
import re

import pytest

from sm_profiler.cli import main
from sm_profiler.diagnosis import diagnose, read_table
from sm_profiler.diagnosis.ledger import Ledger
from sm_profiler.diagnosis.table.causes import CAUSES
from sm_profiler.diagnosis.table.whatif import Steps
from sm_profiler.errors import SourceError
from sm_profiler.report.recordings import report_table

SEED = 5


def write(path, rows):
    head = list(rows[0])
    path.write_text("\n".join([",".join(head), *(",".join(str(row[key]) for key in head) for row in rows)]) + "\n")
    return path


def judged(path, rows):
    return diagnose(read_table(write(path / "t.csv", rows)).ledger)


def whole_steps(seconds, *, ranks=4, steps=300, **columns):
    """Return rows of whole steps; `seconds` and the columns are functions of rank and step."""
    return [
        {"step": step, "rank": rank, "seconds": seconds(rank, step)} | {key: of(rank, step) for key, of in columns.items()}
        for step in range(steps)
        for rank in range(ranks)
    ]  # fmt: skip


def operations(forward, *, ranks=4, steps=300, every=0, rare=("evaluation", 3.0), on=None):
    """Return rows of a step with a clock: forward, backward, all-reduce, and a rare operation, on all ranks or on one."""
    draw, rows, now = random.Random(SEED), [], 0.0
    for step in range(steps):
        spent = [forward(rank, step) for rank in range(ranks)]
        back = [0.06 * draw.gauss(1, 0.02) for _ in range(ranks)]
        met = now + max(a + b for a, b in zip(spent, back, strict=True)) + 0.005
        for rank in range(ranks):
            ends = (now, now + spent[rank], now + spent[rank] + back[rank], met)
            for at, name in enumerate(("forward-compute", "backward-compute", "grads-all-reduce")):
                rows.append({"step": step, "rank": rank, "operation": name, "start": ends[at], "end": ends[at + 1]})
        now = met
        if every and step % every == every - 1:
            alone = {"step": step, "operation": rare[0], "start": now, "end": now + rare[1]}
            rows += [alone | {"rank": rank} for rank in (range(ranks) if on is None else (on,))]
            now += rare[1]
    return rows


def late(factor, part=1.0, *, usual=0.1, ranks=4, only=None):
    """Return the time of each rank and step, of which a random rank takes longer in a part of the steps."""
    draw, chosen = random.Random(SEED), {}

    def seconds(rank, step):
        if step not in chosen:
            chosen[step] = (only if only is not None else draw.randrange(ranks)) if draw.random() < part else -1
        return usual * draw.gauss(1, 0.02) * (factor if chosen[step] == rank else 1)

    return seconds


def holds(gain, truth):
    return gain.speedup.low * 0.97 <= truth <= gain.speedup.high * 1.03


@pytest.mark.parametrize("with_clock", [False, True])
def test_a_late_rank_that_changes_from_step_to_step(with_clock, tmp_path):
    rows = operations(late(2, 0.5)) if with_clock else whole_steps(late(2, 0.5))
    (finding,) = judged(tmp_path, rows).findings
    assert (finding.kind, finding.ranks) == ("MOVING_STRAGGLER", ())
    assert finding.headline.startswith("The late rank changes from step to step, and all others wait for it")
    assert ("mostly forward" in finding.headline) == with_clock
    # evenly spread, the lateness costs a quarter of itself
    assert holds(finding.gain, (0.165 + 0.05) / (0.165 + 0.0125) if with_clock else 0.15 / 0.1125)


def test_a_pause_of_a_random_rank_in_each_forward_pass(tmp_path):
    first = judged(tmp_path, operations(late(3, usual=0.03, ranks=8), ranks=8)).findings[0]
    assert (first.kind, first.confidence) == ("MOVING_STRAGGLER", "high")
    assert holds(first.gain, (0.15 + 0.005) / (0.092 + 0.005))


def test_a_rank_that_waits_for_data_in_turn_is_advised_to_load_ahead(tmp_path):
    wait = late(30, 0.5, usual=0.005)
    rows = [
        row | {"operation": name, "seconds": spent}
        for row in whole_steps(lambda *_: 0.1)
        for name, spent in (("data loading", wait(row["rank"], row["step"])), ("forward", 0.1))
    ]
    first = judged(tmp_path, rows).findings[0]
    assert first.kind == "MOVING_STRAGGLER"
    assert first.headline.endswith("what takes longer is mostly data wait.")
    assert first.next_step.startswith("Load ahead")


def test_a_rank_that_is_late_now_and_then_is_named(tmp_path):
    (finding,) = judged(tmp_path, whole_steps(late(2, 0.4, only=2))).findings
    assert (finding.kind, finding.ranks) == ("STRAGGLER", ("2",))
    assert finding.headline.startswith("Rank 2 takes longer than usual in 4")


def test_ranks_that_wait_for_each_other_are_never_healthy(tmp_path):
    rows = operations(late(2, 0.5))
    ledger = read_table(write(tmp_path / "t.csv", rows)).ledger
    verdict = diagnose(ledger, ())  # as if no cause fitted
    assert verdict.main.is_open
    assert "which they wait for each other; what makes them late is unknown" in verdict.main.headline
    even = operations(lambda *_: 0.1)
    assert not judged(tmp_path, even).main.is_open


def test_equal_work_is_that_of_a_stage(tmp_path):
    rows = [row | {"stage": row["rank"] // 2} for row in whole_steps(lambda rank, _: 0.1 + 0.1 * (rank // 2))]
    steps = Steps.of(read_table(write(tmp_path / "t.csv", rows)).ledger)
    assert steps.level().length == pytest.approx(steps.length)


@pytest.mark.parametrize("spread", [(500, 2000), (500, 500, 500, 2000)])
@pytest.mark.parametrize("with_clock", [False, True])
def test_work_that_a_column_counts_and_that_differs_in_each_step(spread, with_clock, tmp_path):
    draw = random.Random(SEED)
    tokens = {
        (rank, step): draw.randint(*spread) if len(spread) == 2 else draw.choice(spread)
        for step in range(300)
        for rank in range(4)
    }

    def seconds(rank, step):
        return tokens[rank, step] * 1e-4 * draw.gauss(1, 0.02)

    rows = operations(seconds) if with_clock else whole_steps(seconds)
    rows = [row | {"tokens": tokens[row["rank"], row["step"]]} for row in rows]
    verdict = judged(tmp_path, rows)
    (finding,) = verdict.findings
    assert finding.kind == "SEQUENCE_IMBALANCE"
    assert finding.headline.startswith("The ranks' work follows the column tokens, which is divided unevenly")
    assert finding.evidence[0].value > 0.99
    assert holds(finding.gain, Steps.of(read_table(tmp_path / "t.csv").ledger).even_speedup)


def test_a_rank_with_more_work_is_not_slow(tmp_path):
    draw = random.Random(SEED)
    tokens = {(rank, step): draw.randint(900, 1100) + 600 * (rank == 3) for step in range(300) for rank in range(4)}
    rows = whole_steps(
        lambda rank, step: tokens[rank, step] * 1e-4 * draw.gauss(1, 0.02), tokens=lambda *at: tokens[at]
    )
    (finding,) = judged(tmp_path, rows).findings
    assert (finding.kind, finding.ranks) == ("SEQUENCE_IMBALANCE", ("3",))
    assert "rank 3 has 1.6 times as much as the others" in finding.headline
    assert finding.next_step.startswith("Divide tokens evenly")
    assert finding.gain.share_of_loop.value == pytest.approx(
        1 - 1150 / 1600, abs=0.02
    )  # the others take over some of it


def test_a_slow_rank_is_found_in_spite_of_uneven_work(tmp_path):
    draw = random.Random(SEED)
    tokens = {(rank, step): draw.randint(500, 2000) for step in range(300) for rank in range(4)}
    rows = whole_steps(
        lambda rank, step: tokens[rank, step] * 1e-4 * draw.gauss(1, 0.02) * (1.5 if rank == 2 else 1),
        tokens=lambda *at: tokens[at],
    )
    findings = judged(tmp_path, rows).findings
    assert {finding.kind: finding.ranks for finding in findings} == {"STRAGGLER": ("2",), "SEQUENCE_IMBALANCE": ()}


@pytest.mark.parametrize(
    ("name", "value"),
    [("tokens", lambda rank, _: 1000 + rank), ("gpu_temp", lambda rank, step: 60 + 20 * (rank == 1) + step % 3)],
)
def test_what_is_no_work_does_not_explain_a_slow_rank(name, value, tmp_path):
    rows = whole_steps(late(1.5, only=1), ranks=2, **{name: value})
    (finding,) = judged(tmp_path, rows).findings
    assert (finding.kind, finding.ranks) == ("STRAGGLER", ("1",))


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_no_late_rank(seed, tmp_path):
    draw = random.Random(seed)
    rows = whole_steps(lambda *_: draw.gauss(0.1, 0.002), ranks=8, tokens=lambda *_: draw.randint(900, 1100))
    assert judged(tmp_path, rows).findings == ()


@pytest.mark.parametrize(
    ("rare", "kind", "headline"),
    [
        ("evaluation", "EVALUATION_BOUND", "Evaluation takes 3"),
        ("checkpoint", "CHECKPOINTING", "Saving takes 3"),
        ("rebalance", "PERIODIC_STALL", "Every 50 steps, a step takes 31.5 times as long as the others, most of it in rebalance."),
    ],
)  # fmt: skip
def test_long_steps_are_named_after_the_operation_that_takes_them(rare, kind, headline, tmp_path):
    first = judged(tmp_path, operations(late(1, usual=0.03), steps=400, every=50, rare=(rare, 3.0))).findings[0]
    assert first.kind == kind
    assert first.headline.startswith(headline[:24])
    assert headline.partition("others")[2] in first.headline
    assert "every 50 steps" in first.headline + first.next_step
    assert "saving, evaluating" not in first.next_step


def test_irregular_evaluations_are_named(tmp_path):
    rows = [
        {"step": step, "rank": rank, "operation": name, "seconds": spent}
        for step in range(400)
        for rank in range(2)
        for name, spent in (("forward", 0.03), ("backward", 0.06), ("evaluation", 3.0))
        if name != "evaluation" or step in (13, 60, 77, 150, 190, 233, 300, 371)
    ]
    (finding,) = judged(tmp_path, rows).findings
    assert (finding.kind, finding.headline) == ("EVALUATION_BOUND", "Evaluation takes 40 % of the time, in 8 steps.")


def test_ranks_that_wait_for_a_rank_that_saves_alone(tmp_path):
    rows = operations(late(1, usual=0.03), steps=400, every=50, rare=("checkpoint", 3.0), on=0)
    first = judged(tmp_path, rows).findings[0]
    assert first.kind == "CHECKPOINTING"
    assert first.gain.share_of_loop.value > 0.35


def test_evaluations_of_an_mlperf_log(tmp_path):
    now, lines = 0.0, []

    def event(key, value=None):
        lines.append(":::MLLOG " + json.dumps({"time_ms": int(now), "key": key, "value": value}))

    event("run_start")
    for _ in range(12):
        for _ in range(48):
            now += 600
            event("tracked_stats", {"train_step_time": 0.6})
        event("eval_start")
        now += 20_000
        event("eval_stop")
    (tmp_path / "result_0.txt").write_text("\n".join(lines))
    first = diagnose(read_table(tmp_path / "result_0.txt").ledger).findings[0]
    assert (first.kind, first.headline) == ("EVALUATION_BOUND", "Evaluation takes 39 % of the time, every 48 steps.")


def test_a_rank_that_ends_early_is_stated(tmp_path, capsys):
    rows = [row for row in whole_steps(late(1)) if row["rank"] != 1 or row["step"] <= 100]
    path = write(tmp_path / "t.csv", rows)
    report = report_table(path)
    assert (report.verdict.kind.value, report.verdict.main.ranks) == ("UNEQUAL_STEPS", ("1",))
    assert report.verdict.main.headline == "Rank 1 has no step after 100, while rank 0 goes on to step 299."
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Only the 101 steps that all ranks have were judged, of 300." in shown
    slow = [row | {"seconds": row["seconds"] * (2 if row["rank"] == 0 else 1)} for row in rows]
    verdict = report_table(write(path, slow)).verdict
    assert [finding.kind.value for finding in (verdict.main, *verdict.also)] == ["STRAGGLER", "UNEQUAL_STEPS"]


def test_a_rank_whose_last_steps_are_unwritten_has_not_ended_early(tmp_path):
    rows = [row for row in whole_steps(late(1)) if row["step"] < 300 - 3 * row["rank"]]
    assert report_table(write(tmp_path / "t.csv", rows)).verdict.kind.value == "BALANCED"


def test_a_restarted_training_counts_once(tmp_path):
    rows = [row | {"seconds": spent} for spent in (0.2, 0.1) for row in whole_steps(late(1), ranks=2, steps=200)]
    table = read_table(write(tmp_path / "t.csv", rows))
    assert (table.lost, table.why) == (400, "a step is repeated")
    assert table.ledger.totals.duration == pytest.approx(40)
    without = [{key: row[key] for key in ("step", "seconds")} for row in rows]
    with pytest.raises(SourceError, match=r"rank, epoch, or operation.*keep the rows of the last attempt"):
        read_table(write(tmp_path / "t.csv", without))


@pytest.mark.parametrize(
    ("column", "scale"),
    [("ms", 1e3), ("duration_ms", 1e3), ("step_time (ms)", 1e3), ("elapsed_us", 1e6), ("time.ns", 1e9), ("Milliseconds", 1e3)],
)  # fmt: skip
def test_a_unit_at_the_end_of_a_columns_name(column, scale, tmp_path):
    rows = [{"iteration": step, column: 0.1 * scale} for step in range(20)]
    ledger = read_table(write(tmp_path / "t.csv", rows)).ledger
    assert ledger.totals.duration == pytest.approx(2)
    assert read_table(tmp_path / "t.csv", {"seconds": column}).ledger.totals.duration == pytest.approx(2)


def test_starts_and_ends_in_milliseconds(tmp_path):
    rows = [{"step": step, "start_ms": 1.7e12 + step * 100, "end_ms": 1.7e12 + step * 100 + 100} for step in range(20)]
    assert read_table(write(tmp_path / "t.csv", rows)).ledger.totals.duration == pytest.approx(2, rel=1e-3)
    rows = [{"step": row["step"], "start": row["start_ms"], "end": row["end_ms"]} for row in rows]
    assert read_table(write(tmp_path / "t.csv", rows)).ledger.totals.duration == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize(
    ("head", "hint"),
    [
        ("step,x", "seconds=NAME"),
        ("n,seconds", "step=NAME"),
        ("step,items", "seconds="),
        ("n,x", "step=NAME,seconds=NAME"),
    ],
)
def test_the_hint_names_the_column_that_is_missing(head, hint, tmp_path):
    (tmp_path / "t.csv").write_text(f"{head}\n1,2\n")
    with pytest.raises(SourceError, match=rf"\(--columns {hint}"):
        read_table(tmp_path / "t.csv")


def test_what_else_takes_time_is_named(tmp_path):
    rows = [
        {"step": step, "rank": rank, "operation": name, "seconds": 0.1}
        for step in range(60)
        for rank in range(2)
        for name in ("forward", "reading labels")
    ]
    verdict = judged(tmp_path, rows)
    assert verdict.main.headline.endswith("only 50 % of the time is computation; most of the rest is reading labels.")
    path = tmp_path / "t.csv"
    assert "Add columns with the work of each rank" in report_table(path).verdict.main.next_step


# --- tables as anybody writes them; the truth is the time of the same steps without what was planted ---------------------


def times(ranks, steps, *, usual=0.3, noise=0.02):
    draw = random.Random(SEED)
    return {(rank, step): usual * draw.gauss(1, noise) for step in range(steps) for rank in range(ranks)}


def of_job(spent, steps=None):
    """Return the seconds of a job whose steps end with their slowest rank."""
    longest = {}
    for (_, step), seconds in spent.items():
        if steps is None or step in steps:
            longest[step] = max(longest.get(step, 0.0), seconds)
    return sum(longest.values())


def rows_of(spent, rank="rank", step="step", seconds="seconds", scale=1.0):
    return [{rank: f"host-{one[0]}", step: one[1] + 700, seconds: scale * value} for one, value in spent.items()]


@pytest.mark.parametrize(
    ("ranks", "slow"),
    [(2, {1: 1.3}), (8, {5: 1.35}), (32, {rank: 1.2 + 0.01 * rank for rank in range(3, 14)}), (16, {0: 1.1, 9: 1.5})],
)
def test_slow_ranks_of_any_number(ranks, slow, tmp_path):
    healthy = times(ranks, 120)
    planted = {at: value * slow.get(at[0], 1) for at, value in healthy.items()}
    rows = rows_of(planted, "worker", "iteration", "step_time_ms", 1e3)
    (finding,) = judged(tmp_path, rows).findings
    assert (finding.kind, set(finding.ranks)) == ("STRAGGLER", {f"host-{rank}" for rank in slow})
    assert holds(finding.gain, of_job(planted) / of_job(healthy))
    if len(slow) > 8:
        assert finding.headline.startswith(
            "Ranks host-3, host-4, host-5, host-6, host-7, host-8, host-9, host-10 and 3 more take"
        )


def test_a_rank_that_waits_for_data_for_varying_times(tmp_path):
    draw, rows, planted = random.Random(SEED), [], {}
    healthy = times(4, 150)
    for (rank, step), seconds in healthy.items():
        wait = draw.expovariate(1 / (0.15 if rank == 3 else 0.002))
        planted[rank, step] = seconds + wait
        for name, spent in (("data loading", wait), ("forward", seconds)):
            rows.append({"rank": rank, "step": step, "operation": name, "seconds": spent})
    first = judged(tmp_path, rows).findings[0]
    assert (first.kind, first.ranks) == ("STRAGGLER", ("3",))
    assert holds(first.gain, of_job(planted) / of_job(healthy))


@pytest.mark.parametrize("stretch", [range(220, 400), range(100, 160), range(40, 400)])
def test_a_rank_that_becomes_slow(stretch, tmp_path):
    healthy = times(6, 400, usual=120)
    planted = {at: value * (1.5 if at[0] == 2 and at[1] in stretch else 1) for at, value in healthy.items()}
    (finding,) = judged(tmp_path, rows_of(planted)).findings
    assert (finding.kind, finding.ranks) == ("FAIL_SLOW", ("host-2",))
    assert abs(finding.steps[0] - 700 - stretch[0]) < 5
    assert holds(finding.gain, of_job(planted, stretch) / of_job(healthy, stretch))


@pytest.mark.parametrize("since", [30, 150, 220])
def test_a_job_that_is_slower_since_a_step(since, tmp_path):
    healthy = times(1, 300)
    planted = {at: value * (1.3 if at[1] >= since else 1) for at, value in healthy.items()}
    (finding,) = judged(tmp_path, rows_of(planted)).findings
    assert (finding.kind, finding.steps) == ("FAIL_SLOW", (700 + since, 999))
    assert holds(finding.gain, 1.3)


def test_a_job_that_becomes_slower_and_slower(tmp_path):
    planted = {at: value * (1 + 0.8 * at[1] / 600) for at, value in times(1, 600).items()}
    (finding,) = judged(tmp_path, rows_of(planted)).findings
    assert finding.kind == "FAIL_SLOW"
    assert finding.headline.startswith("The steps take longer and longer: the last ones take 1.")
    assert finding.steps is None
    assert holds(finding.gain, 1.4)  # the mean step compared with the first ones


@pytest.mark.parametrize(
    ("when", "kind"), [(range(110, 200), "FAIL_SLOW"), (range(0, 200, 3), "STRAGGLER"), (range(200), "STRAGGLER")]
)
def test_passes_of_one_rank_that_are_slow_together_are_no_sequences(when, kind, tmp_path):
    rows = [
        {
            "rank": rank,
            "step": step,
            "operation": name,
            "seconds": part * value * (1.6 if rank == 1 and step in when else 1),
        }
        for (rank, step), value in times(4, 200).items()
        for name, part in (("forward", 1 / 3), ("backward", 2 / 3))
    ]
    (finding,) = judged(tmp_path, rows).findings
    assert (finding.kind, finding.ranks) == (kind, ("1",))


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("first", [(95.0,), (60.0, 20.0, 3.0)])
def test_the_first_steps_are_no_cause(ranks, first, tmp_path):
    planted = {at: value + (first[at[1]] if at[1] < len(first) else 0.0) for at, value in times(ranks, 100).items()}
    report = report_table(write(tmp_path / "t.csv", rows_of(planted)))
    assert report.verdict.kind.value == "BALANCED"
    start = next(one for one in report.verdict.main.evidence if one.metric.startswith("the first steps"))
    assert start.value == pytest.approx(sum(first) + 0.3 * len(first), rel=0.01)


def test_rows_that_are_missing_here_and_there(tmp_path):
    draw = random.Random(SEED)
    healthy = times(128, 150)
    planted = {at: value * (1.4 if at[0] == 77 else 1) for at, value in healthy.items()}
    kept = {at: value for at, value in planted.items() if draw.random() > 0.03}
    table = read_table(write(tmp_path / "t.csv", rows_of(kept)))
    (finding,) = diagnose(table.ledger).findings
    assert (finding.kind, finding.ranks) == ("STRAGGLER", ("host-77",))
    assert holds(finding.gain, of_job(planted) / of_job(healthy))
    assert 0.9 * (len(planted) - len(kept)) < table.filled <= len(planted) - len(kept)
    report = report_table(tmp_path / "t.csv")
    assert f"{table.filled:,} steps of single ranks are missing, and taken as usual." in report.damage_alarm


@pytest.mark.parametrize("ranks", [1, 8, 64])
@pytest.mark.parametrize("kind", ["even", "heavy tails", "drift"])
def test_a_healthy_job_has_no_finding(ranks, kind, tmp_path):
    draw, drift = random.Random(SEED), dict.fromkeys(range(ranks), 0.0)
    healthy = times(ranks, 400)
    for rank, step in healthy:
        if kind == "heavy tails" and draw.random() < 0.02 / ranks:
            healthy[rank, step] *= 1 + (draw.paretovariate(2.5) - 1) / 2
        if kind == "drift":
            drift[rank] = 0.9 * drift[rank] + draw.gauss(0, 0.01)
            healthy[rank, step] *= 1 + drift[rank]
    assert judged(tmp_path, rows_of(healthy)).findings == ()


def test_clocks_that_vary_are_no_uneven_sequences(tmp_path):
    rows = [
        {"rank": rank, "step": step, "operation": name, "seconds": part * value}
        for (rank, step), value in times(64, 100, noise=0.025).items()
        for name, part in (("forward", 1 / 3), ("backward", 2 / 3))
    ]
    verdict = judged(tmp_path, rows)
    assert (verdict.findings, verdict.main.is_open) == ((), False)


@pytest.mark.parametrize("every", [50, 100])
def test_saves_at_regular_intervals_cost_what_they_cost(every, tmp_path):
    planted = {at: value + (9.0 if at[1] % every == every - 1 else 0.0) for at, value in times(2, 400).items()}
    (finding,) = judged(tmp_path, rows_of(planted)).findings
    assert finding.kind == "PERIODIC_STALL"
    assert holds(finding.gain, of_job(planted) / of_job(times(2, 400)))
    assert finding.gain.share_of_loop.low > 0.85 * finding.gain.share_of_loop.value  # that they come is no chance


def test_evaluations_among_training_steps(tmp_path):
    rows = [
        {"step": step, "phase": name, "time_s": 30.0 if name == "eval" else value}
        for (_, step), value in times(1, 300).items()
        for name in ("train", "eval")
        if name == "train" or step % 100 == 99
    ]
    first = judged(tmp_path, rows).findings[0]
    assert (first.kind, first.headline) == ("EVALUATION_BOUND", "Evaluation takes 50 % of the time, every 100 steps.")


@pytest.mark.parametrize("per_stage", [1, 2])
def test_stages_of_which_only_the_computation_is_known(per_stage, tmp_path):
    parts, rows = (1.0, 1.0, 1.0, 1.4), []
    for (rank, step), value in times(4 * per_stage, 150).items():
        stage = rank // per_stage
        rows.append({"step": step, "rank": rank, "pp_rank": stage, "compute_ms": 1e3 * value * parts[stage]})
    (finding,) = judged(tmp_path, rows).findings
    assert (finding.kind, finding.stage) == ("STAGE_IMBALANCE", "3")
    assert holds(finding.gain, 1.4 / 1.1)


def pipeline(factors, noise, now=0.0):
    """Return the passes of six microbatches through stages, as (stage, name, start, end): all forward, then all backward."""
    found, free = [], [now] * len(factors)
    for name, part, order in (("forward", 0.1, range(len(factors))), ("backward", 0.2, reversed(range(len(factors))))):
        order, done = list(order), {}
        for batch in range(6):
            for stage in order:
                start = max(free[stage], done.get((stage + (-1 if name == "forward" else 1), batch), now))
                done[stage, batch] = free[stage] = start + part * factors[stage] * noise()
                found.append((stage, f"{name}-compute", start, free[stage]))
    return found


def test_a_stage_of_a_pipeline_whose_sends_are_not_recorded(tmp_path):
    draw, rows, now = random.Random(SEED), [], 0.0
    for step in range(40):
        passes = pipeline((1, 1, 1.5, 1), lambda: draw.gauss(1, 0.005), now)
        rows += [
            {"rank": stage, "stage": stage, "step": step, "operation": name, "start": start, "end": end}
            for stage, name, start, end in passes
        ]
        now = max(end for *_, end in passes)
    (finding,) = judged(tmp_path, rows).findings
    assert (finding.kind, finding.stage) == ("STAGE_IMBALANCE", "2")
    even = max(end for *_, end in pipeline([1.125] * 4, lambda: 1.0))
    assert holds(finding.gain, now / 40 / even)


def test_sends_without_stages_are_judged(tmp_path):
    rows = [
        {"rank": rank, "step": step, "operation": name, "start": step + start, "end": step + end}
        for step in range(40)
        for rank, sent in ((0, "forward-send"), (1, "forward-recv"))
        for name, start, end in (("forward-compute", 0.0, 0.95), (sent, 0.95, 0.97))
    ]
    assert judged(tmp_path, rows).findings == ()


@pytest.mark.parametrize("with_rank", [False, True])
def test_steps_that_are_counted_anew_in_each_epoch(with_rank, tmp_path):
    rows = [
        {"epoch": step // 100, "step": step % 100, "rank": rank, "seconds": value * (1.3 if rank == 1 else 1)}
        for (rank, step), value in times(2, 400).items()
    ]
    if not with_rank:
        rows = [{key: row[key] for key in ("epoch", "step", "seconds")} for row in rows if row["rank"] == 0]
    table = read_table(write(tmp_path / "t.csv", rows))
    assert (table.lost, len(table.ledger.common_steps)) == (0, 400)
    assert [finding.kind for finding in diagnose(table.ledger).findings] == ["STRAGGLER"] * with_rank


# --- clocks, copies, pauses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write_time", [lambda at: f"2025-03-01T00:{int(at // 60):02}:{at % 60:09.6f}Z", "{:.6f}".format]
)
def test_pauses_between_steps_count(write_time, tmp_path):
    rows, now = [], 0.0
    for (_, step), seconds in times(1, 400, usual=0.2).items():
        rows.append({"step": step, "start": write_time(now), "end": write_time(now + seconds)})
        now += seconds + (1.5 if step % 25 == 24 else 0.0)
    (finding,) = judged(tmp_path, rows).findings
    assert (finding.kind, finding.headline[:15]) == ("PERIODIC_STALL", "Every 25 steps,")
    assert holds(finding.gain, now / (now - 16 * 1.5))


@pytest.mark.parametrize("moment", ["2025-03-01 00:00:01,5", "2025-03-01T01:00:01.500+01:00", "2025-03-01T00:00:01.5Z"])
def test_dates_and_times_of_a_table(moment, tmp_path):
    rows = [{"step": step, "start": "2025-03-01T00:00:00", "end": f'"{moment}"'} for step in range(20)]
    assert read_table(write(tmp_path / "t.csv", rows)).ledger.totals.duration == pytest.approx(30)
    with pytest.raises(SourceError, match="no usable row"):
        read_table(write(tmp_path / "t.csv", [row | {"end": "2025-13-01 00:00:00"} for row in rows]))


@pytest.mark.parametrize("ahead", [0.02, 40.0])
def test_a_slow_rank_is_found_although_clocks_differ(ahead, tmp_path):
    healthy = operations(lambda *_: 0.1)
    rows = operations(lambda rank, _: 0.15 if rank == 2 else 0.1)
    for row in rows:
        if row["rank"] == 1:
            row |= {"start": row["start"] + ahead, "end": row["end"] + ahead}
    (finding,) = judged(tmp_path, rows).findings
    assert (finding.kind, finding.ranks) == ("STRAGGLER", ("2",))
    assert holds(finding.gain, rows[-1]["end"] / healthy[-1]["end"])


def test_communication_that_overlaps_the_passes_waits_for_the_late_rank(tmp_path):
    rows = operations(lambda rank, _: 0.15 if rank == 2 else 0.1)
    for row in rows:
        if row["operation"] == "grads-all-reduce":
            row["start"] -= 0.04  # gradients are exchanged while the backward pass goes on
    (finding,) = judged(tmp_path, rows).findings
    assert (finding.kind, finding.ranks) == ("STRAGGLER", ("2",))
    assert holds(finding.gain, 0.215 / 0.165)


def test_copies_of_rows_count_once(tmp_path):
    rows = [row for row in whole_steps(late(1.5, only=1)) for _ in range(2)]
    table = read_table(write(tmp_path / "t.csv", rows))
    assert table.lost == len(rows) / 2
    assert diagnose(table.ledger).main.ranks == ("1",)


# --- work that changes from step to step -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "slow"),
    [
        (lambda step: 512 * (1 + step // 100), ()),
        (lambda step: 2048 if step % 9 == 4 else 512, ()),
        (lambda step: 2048 if step % 9 == 4 else 512, range(120, 300)),
    ],
)
def test_steps_with_more_work_are_not_slow(length, slow, tmp_path):
    draw = random.Random(SEED)
    rows = whole_steps(
        lambda _, step: length(step) * 1e-4 * draw.gauss(1, 0.02) * (1.6 if step in slow else 1),
        seq_len=lambda _, step: length(step),
    )
    findings = judged(tmp_path, rows).findings
    assert [finding.kind for finding in findings] == ["FAIL_SLOW"] * (len(slow) > 0)


def test_a_counter_of_all_steps_so_far_is_no_work_of_a_step(tmp_path):
    draw = random.Random(SEED)
    rows = whole_steps(
        lambda _, step: 0.1 * draw.gauss(1, 0.02) * (1 + step / 300), tokens_seen=lambda _, step: 4096 * (step + 1)
    )
    (finding,) = judged(tmp_path, rows).findings
    assert (finding.kind, finding.ranks) == ("FAIL_SLOW", ())


def test_time_that_grows_with_the_square_of_the_work(tmp_path):
    draw = random.Random(SEED)
    tokens = {(rank, step): draw.randint(500, 2500) for step in range(300) for rank in range(8)}
    spent = {at: (2e-5 * work + 4e-8 * work**2) * draw.gauss(1, 0.02) for at, work in tokens.items()}
    rows = whole_steps(lambda *at: spent[at], ranks=8, tokens=lambda *at: tokens[at])
    (finding,) = judged(tmp_path, rows).findings
    assert finding.kind == "SEQUENCE_IMBALANCE"
    assert holds(finding.gain, of_job(spent) / (sum(spent.values()) / 8))


# --- several stretches, and ranks in them ------------------------------------------------------------------------------


def test_two_ranks_that_are_slow_at_different_times(tmp_path):
    slow = {2: range(100, 220), 5: range(380, 600)}
    planted = {at: value * (1.5 if at[1] in slow.get(at[0], ()) else 1) for at, value in times(8, 600).items()}
    findings = judged(tmp_path, rows_of(planted)).findings
    assert {(finding.kind, *finding.ranks) for finding in findings} == {
        ("FAIL_SLOW", "host-2"),
        ("FAIL_SLOW", "host-5"),
    }
    assert {finding.steps for finding in findings} == {(800, 919), (1080, 1299)}


def test_a_network_that_becomes_slow(tmp_path):
    rows, now = [], 0.0
    for step in range(300):
        for name, spent in (("forward", 0.1), ("backward", 0.2), ("all-reduce", 0.05 if step < 120 else 0.25)):
            rows += [
                {"rank": rank, "step": step, "operation": name, "start": now, "end": now + spent} for rank in range(4)
            ]
            now += spent
    first = judged(tmp_path, rows).findings[0]
    assert (first.kind, first.ranks, first.steps) == ("FAIL_SLOW", (), (120, 299))
    assert first.headline.endswith("; what takes longer is mostly communication.")
    assert holds(first.gain, 0.55 / 0.35)


def test_a_rank_that_alone_makes_steps_long_is_named(tmp_path):
    planted = {at: value + (9.0 if at[0] == 3 and at[1] % 50 == 9 else 0.0) for at, value in times(8, 400).items()}
    first = judged(tmp_path, rows_of(planted)).findings[0]
    assert (first.kind, first.ranks) == ("PERIODIC_STALL", ("host-3",))
    assert first.headline.endswith("times as long as the others, of rank host-3 alone.")


def test_long_steps_that_may_be_chance_are_stated(tmp_path):
    planted = {at: value + (9.0 if at[1] in (20, 21, 22) else 0.0) for at, value in times(1, 48).items()}
    verdict = judged(tmp_path, rows_of(planted))
    assert verdict.findings == ()
    assert verdict.main.headline.startswith("3 steps take much longer than the others, ")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("data_time", "INPUT_BOUND"), ("DataLoader", "INPUT_BOUND"), ("SaveState", "CHECKPOINTING"), ("log_metrics", "LOGGING"),
     ("data_parallel_sync", "COMMUNICATION_BOUND"), ("eval_loop", "EVALUATION_BOUND")],
)  # fmt: skip
def test_operations_are_known_by_their_words(name, kind, tmp_path):
    rows = [
        {"step": step, "operation": part, "seconds": 0.1}
        for step in range(60)
        for part in ("forward", "backward", name)
    ]
    assert [finding.kind for finding in judged(tmp_path, rows).findings] == [kind]


def test_sentences_have_shares_as_those_of_a_profile_do(tmp_path):
    """They had “48%”, and all others “48 %”."""
    parts = (("data loading", 0.5), ("forward", 0.5))
    rows = [{"step": step, "operation": name, "seconds": spent} for step in range(40) for name, spent in parts]
    assert judged(tmp_path, rows).main.headline == "Waiting for data takes 50 % of the time."
    texts = [text for cause in CAUSES for text in (cause.headline, cause.advice)]
    assert not [text for text in texts if re.search(r"\d%|:\.\d%", text)]


def of_parts(slow, *, steps=200, ranks=4):
    """Return steps with a column for each part, of ranks that meet in the backward pass, the last of which loads longer."""
    draw = random.Random(SEED)
    rows = []
    for step in range(steps):
        for rank in range(ranks):
            late = rank == ranks - 1
            data, waits = 0.01 + slow * late, slow * (not late)
            forward, backward = (one * draw.gauss(1, 0.01) for one in (0.05, 0.1))
            parts = {"data_time": data, "forward_time": forward, "backward_time": backward + waits}
            rows.append({"rank": rank, "step": step, "step_time": sum(parts.values())} | parts)
    return rows


@pytest.mark.parametrize("as_operations", [False, True])
def test_ranks_wait_in_the_backward_pass_for_the_one_that_loads_longer(tmp_path, as_operations):
    """Their steps are equally long, so the job was healthy, with 89 % of the time in computation."""
    rows = of_parts(0.05)
    if as_operations:
        parts = ("data_time", "forward_time", "backward_time")
        rows = [
            {"rank": row["rank"], "step": row["step"], "operation": name, "seconds": row[name]}
            for row in rows
            for name in parts
        ]
    main = judged(tmp_path, rows).main
    assert (main.kind.value, main.ranks) == ("STRAGGLER", ("3",))
    assert "mostly data wait" in main.headline
    assert main.next_step.startswith("Look first at data wait")
    assert main.gain.speedup.low < 0.21 / 0.16 < main.gain.speedup.high


def test_ranks_that_do_the_same_meet_nowhere(tmp_path):
    assert judged(tmp_path, of_parts(0.0)).main.kind.value == "BALANCED"


@pytest.mark.parametrize("part", [0.4, 1.0])
def test_what_takes_a_late_rank_longer_has_the_same_words(part, tmp_path):
    """It is late always, or now and then."""
    draw, slow = random.Random(SEED), random.Random(SEED)
    rows = []
    for step in range(200):
        more = 0.08 if slow.random() < part else 0.0
        for rank in range(4):
            seconds = {"augment": 0.02 + more * (rank == 1), "forward": 0.1 * draw.gauss(1, 0.02)}
            rows += [{"step": step, "rank": rank, "operation": key, "seconds": spent} for key, spent in seconds.items()]
    finding = judged(tmp_path, rows).main
    assert (finding.kind, finding.ranks) == ("STRAGGLER", ("1",))
    assert finding.headline.endswith("; what takes longer is mostly augment.")
    assert finding.next_step.startswith("Look first at augment, which takes longer there. ")


def test_steps_that_are_replayed_need_no_table_of_each_activity(tmp_path, monkeypatch):
    ledger = read_table(write(tmp_path / "t.csv", operations(late(1.5, only=1)))).ledger
    built, table = [], Ledger.table
    monkeypatch.setattr(Ledger, "table", lambda self, activity="": built.append(activity) or table(self, activity))
    Steps.of(ledger)
    assert not any(built)
