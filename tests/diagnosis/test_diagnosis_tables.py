"""Tables of times recorded by others: read, judged, reported; answers that others published."""

import gzip
import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

from sm_profiler.cli import main
from sm_profiler.diagnosis import CAUSES, Cause, Ledger, RankLedger, Repair, diagnose, is_table, limits, read_table
from sm_profiler.diagnosis.table.whatif import Steps
from sm_profiler.errors import SourceError

DATA = Path(__file__).parents[1] / "data/tables"


def verdict_of(name):
    return diagnose(read_table(DATA / name).ledger)


def even_speedup(name):
    return Steps.of(read_table(DATA / name).ledger).even_speedup


def test_a_slow_worker_of_a_pipeline_is_named_with_the_published_slowdown():
    verdict = verdict_of("slow_worker.parquet")
    first = verdict.findings[0]
    assert (first.kind, first.ranks, first.confidence) == ("STRAGGLER", ("0",), "high")
    assert 1 / (1 - first.gain.share_of_loop.value) == pytest.approx(1.973, rel=0.03)
    assert even_speedup("slow_worker.parquet") == pytest.approx(1.973, rel=0.03)
    assert len(verdict.findings) == 1  # without that rank, nothing else is worth repairing


def test_sequences_of_unequal_length_are_named_with_the_published_slowdown():
    verdict = verdict_of("sequences.parquet")
    assert [finding.kind for finding in verdict.findings] == ["SEQUENCE_IMBALANCE", "STAGE_IMBALANCE"]
    assert verdict.findings[1].stage == "1"
    assert even_speedup("sequences.parquet") == pytest.approx(1.537, rel=0.05)


def test_replayed_steps_are_as_long_as_the_recorded_ones():
    for name in ("slow_worker.parquet", "sequences.parquet"):
        operations = read_table(DATA / name).ledger.operations
        assert operations.step_seconds() == pytest.approx(operations.recorded, rel=0.03)


@pytest.mark.parametrize("share", [0.4, 0.6])
@pytest.mark.parametrize("varies", [0.0, 0.2])
def test_padding_need_not_vary(share, varies, tmp_path):
    draw, rows = random.Random(1), ["rank,step,operation,seconds,padding"]
    for step, rank in itertools.product(range(100), range(2)):
        part = share + draw.uniform(-varies, varies)
        rows += [
            f"{rank},{step},{name},{seconds * draw.gauss(1, 0.01)},{part}"
            for name, seconds in (("forward", 0.05), ("backward", 0.1))
        ]
    (tmp_path / "padded.csv").write_text("\n".join(rows))
    verdict = diagnose(read_table(tmp_path / "padded.csv").ledger)
    assert verdict.findings[0].kind == "PADDING_WASTE"
    assert "STRAGGLER" not in {finding.kind for finding in verdict.findings}  # no rank is slower than the others
    assert f"{share:.0%}"[:1] in verdict.findings[0].headline


@pytest.mark.parametrize("name", ["times.csv.gz", "times.JSONL.gz"])
def test_compressed_tables_are_read(name, tmp_path):
    rows = [{"rank": rank, "step": step, "seconds": 0.1} for step in range(40) for rank in range(2)]
    if "csv" in name:
        text = "\n".join(["rank,step,seconds", *(",".join(map(str, row.values())) for row in rows)])
    else:
        text = "\n".join(map(json.dumps, rows))
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()))
    assert is_table(str(path))
    assert read_table(path).rows == len(rows)


def test_rows_that_are_left_out_are_counted(tmp_path, capsys):
    rows = [
        "rank,step,seconds",
        *(f"{rank},{step},{'nan' if step % 3 == 1 else 0.1}" for rank in range(2) for step in range(90)),
    ]
    (tmp_path / "gaps.csv").write_text("\n".join(rows))
    assert main(["report", str(tmp_path / "gaps.csv"), "--out", str(tmp_path / "out")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "60 of 180 rows are left out: a time or step is missing, negative or not finite." in shown


def test_a_worker_that_is_slow_for_some_steps():
    first = verdict_of("mini_batches_1.csv").findings[0]
    assert (first.kind, first.ranks) == ("FAIL_SLOW", ("6",))
    assert 175 <= first.steps[0] <= 185
    assert first.headline.startswith("From step ")


def test_workers_that_become_slow_near_the_end():
    first = verdict_of("mini_batches_3.csv").findings[0]
    assert first.kind == "FAIL_SLOW"
    assert {"6", "7"} <= set(first.ranks)
    assert "0" not in first.ranks
    assert first.headline.startswith("Since step ")


def test_an_even_mlperf_run_has_no_finding_and_is_not_called_healthy():
    table = read_table(DATA / "mllog.txt.gz")
    verdict = diagnose(table.ledger)
    assert verdict.findings == ()
    assert verdict.main.is_open
    steps = next(one for one in verdict.main.evidence if one.metric == "steps that all ranks have")
    assert steps.value == 276
    assert table.ledger.before == pytest.approx(589, abs=1)
    assert 0.01 < table.ledger.totals.share("evaluation") < 0.03


def mllog(path, blocks, *, train=60.0, evaluate=60.0, marks=("block_start", "block_stop"), last=False):
    """Write a log without step times: blocks of training, each with an evaluation after it but perhaps the last."""
    now, found = 30.0, [("init_start", 0.0), ("run_start", 30.0)]
    for number in range(blocks):
        found += [(marks[0], now), (marks[1], now + train)] if marks else []
        now += train
        if not (last and number == blocks - 1):
            found += [("eval_start", now), ("eval_stop", now + evaluate)]
            now += evaluate
    rows = ({"time_ms": 1.7e12 + 1e3 * at, "key": key, "value": None} for key, at in [*found, ("run_stop", now)])
    path.write_text("".join(f":::MLLOG {json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("marks", [("block_start", "block_stop"), ("epoch_start", "epoch_stop"), None])
def test_evaluations_are_judged_in_a_log_without_step_times(tmp_path, marks):
    """It was refused: "the log has no step times"."""
    table = read_table(mllog(tmp_path / "result_0.txt", 20, marks=marks))
    (found,) = diagnose(table.ledger).findings
    assert found.kind == "EVALUATION_BOUND"
    assert table.ledger.totals.share("evaluation") == pytest.approx(0.5)
    assert table.ledger.before == pytest.approx(30.0)


def test_a_log_of_few_blocks_states_the_share_of_evaluation(tmp_path, capsys):
    log = mllog(tmp_path / "result_0.txt", 4, train=70.0, evaluate=30.0, last=True)
    assert read_table(log).ledger.totals.share("evaluation") == pytest.approx(90 / 370)
    assert main(["report", str(log), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "INCONCLUSIVE" in shown
    assert "evaluation 24 %" in shown


def test_a_log_with_neither_steps_nor_evaluations_is_refused(tmp_path):
    log = mllog(tmp_path / "result_0.txt", 1, last=True)
    with pytest.raises(SourceError, match=r"neither step times .* nor evaluations"):
        read_table(log)


def write_csv(path, rows, head="rank,step,seconds"):
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def even_rows(ranks=4, steps=60, *, seed=1, slow=()):
    noise = random.Random(seed)  # noise
    factors = dict(slow)
    return [(r, s, noise.gauss(1.0, 0.02) * factors.get(r, 1.0)) for s in range(steps) for r in range(ranks)]


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_finding(tmp_path, seed):
    assert diagnose(read_table(write_csv(tmp_path / "t.csv", even_rows(seed=seed))).ledger).findings == ()


@pytest.mark.parametrize("rank", [0, 3])
def test_a_slow_rank_is_found_in_any_unit(tmp_path, rank):
    rows = [(r, s, 470 * t) for r, s, t in even_rows(slow={rank: 1.5}.items())]
    first = diagnose(read_table(write_csv(tmp_path / "t.csv", rows)).ledger).findings[0]
    assert (first.kind, first.ranks) == ("STRAGGLER", (str(rank),))
    assert first.gain.share_of_loop.low <= 1 - 1 / 1.5 + 0.02 <= first.gain.share_of_loop.high + 0.05
    assert any("a step is taken to end with its slowest rank" in str(fact.value) for fact in first.evidence)


def test_csv_json_lines_and_parquet_give_the_same(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    rows = even_rows(slow={2: 1.4}.items())
    keys = ("rank", "step", "seconds")
    one = write_csv(tmp_path / "t.csv", rows)
    two = tmp_path / "t.jsonl"
    two.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    three = tmp_path / "t.parquet"
    pq.write_table(pa.table({key: [row[at] for row in rows] for at, key in enumerate(keys)}), three)
    found = [diagnose(read_table(path).ledger).findings[0] for path in (one, two, three)]
    assert found[0].gain == found[1].gain == found[2].gain


def test_operations_with_seconds_only_name_the_activity(tmp_path):
    noise = random.Random(3)  # noise
    rows = [
        (rank, step, operation, noise.gauss(seconds, 0.01))
        for step in range(30)
        for rank in range(2)
        for operation, seconds in (("data_loading", 0.4), ("forward", 0.3), ("backward", 0.5), ("optimizer", 0.1))
    ]
    path = write_csv(tmp_path / "t.csv", rows, "rank,step,operation,seconds")
    verdict = diagnose(read_table(path).ledger)
    assert verdict.findings[0].kind == "INPUT_BOUND"
    assert verdict.findings[0].gain.share_of_loop.low < 0.31 < verdict.findings[0].gain.share_of_loop.high + 0.02


def test_a_computing_job_is_healthy(tmp_path):
    rows = [
        (r, s, o, t)
        for s in range(30)
        for r in range(2)
        for o, t in (("forward", 0.3), ("backward", 0.6), ("optimizer", 0.1))
    ]
    verdict = diagnose(read_table(write_csv(tmp_path / "t.csv", rows, "rank,step,operation,seconds")).ledger)
    assert verdict.main.kind.is_healthy
    assert not verdict.main.is_open
    assert verdict.findings == ()


def test_further_columns_are_evidence(tmp_path):
    rows = [(r, s, t, 1000 * (2 if r == 1 else 1) + r) for r, s, t in even_rows(slow={1: 1.6}.items())]
    verdict = diagnose(read_table(write_csv(tmp_path / "t.csv", rows, "rank,step,seconds,tokens")).ledger)
    assert any("tokens" in fact.metric for fact in verdict.findings[0].evidence)


def test_other_names_of_columns_are_known_or_given(tmp_path):
    rows = even_rows(slow={1: 1.6}.items())
    known = write_csv(tmp_path / "a.csv", rows, "worker,iteration,duration")
    given_names = write_csv(tmp_path / "b.csv", rows, "machine,n,t")
    names = {"rank": "machine", "step": "n", "seconds": "t"}
    assert diagnose(read_table(known).ledger).findings[0].ranks == ("1",)
    assert diagnose(read_table(given_names, names).ledger).findings[0].ranks == ("1",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs the columns step and seconds"),
        ("rank,step\n0,1\n", "needs the columns step and seconds"),
        ("step,seconds\n1,2\n1,3\n", "a column is missing: rank"),
        ("rank,step,seconds\n0,1,2\n0,1,3\n", "a column is missing: operation"),
        ("rank,step,seconds\n0,x,nan\n", "no usable row: each of its 1 rows has a missing, negative or too large time"),
        ("rank,step,seconds\n", "no usable row: it has only a header"),
        ("\x00\x01", "needs the columns"),
    ],
)
def test_a_missing_column_is_requested_in_one_line(tmp_path, text, message, capsys):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(SourceError, match=message):
        read_table(path)
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_rows_that_cannot_be_used_are_counted(tmp_path):
    rows = [*even_rows(), (0, "", 1.0), (1, 5.5e300, 1.0), (2, 3, -1.0), (2, 3, "inf")]
    assert read_table(write_csv(tmp_path / "t.csv", rows)).lost == 4


def test_steps_done_again_after_an_interruption_count_once(tmp_path):
    rows = even_rows(slow={1: 1.5}.items())
    again = [(rank, step, 1.0) for step in range(55, 60) for rank in range(4)]
    table = read_table(write_csv(tmp_path / "t.csv", [*rows, *again]))
    assert table.lost == 20
    assert table.why == "a step is repeated"
    assert len(table.ledger.common_steps) == 60


def test_damaged_files_are_refused_in_one_line(tmp_path):
    for name, data in (
        ("a.parquet", b"PAR1" + bytes(100)), ("b.jsonl", b"[1]\n"), ("c.jsonl", b"{"), ("d.jsonl", b"[" * 100_000),
        ("e.csv", b"\x1f\x8b\x08broken"), ("f.csv", gzip.compress(b":::MLLOG {}\n")),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SourceError) as error:
            read_table(tmp_path / name)
        assert "\n" not in str(error.value)


def test_a_log_is_recognized_by_its_content(tmp_path):
    (tmp_path / "result_0.txt").write_text(':::MLLOG {"key": "init_start"}\n')
    (tmp_path / "notes.txt").write_text("hello\n")
    assert is_table(str(tmp_path / "result_0.txt"))
    assert is_table(str(DATA / "mllog.txt.gz"))
    assert not is_table(str(tmp_path / "notes.txt"))
    assert not is_table(str(tmp_path))


def test_the_report_of_a_table(tmp_path, capsys):
    assert main(["report", str(DATA / "slow_worker.parquet"), "--out", str(tmp_path), "--fail-on", "issues"]) == 1
    printed = capsys.readouterr().out
    assert "STRAGGLER" in printed
    assert "Rank 0 takes 2.36 times as long" in printed
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["verdict"]["ranks"] == ["0"]
    assert found["ledger"]["coverage"] > 0.8
    assert len(found["ledger"]["ranks"]) == 16
    page = (tmp_path / "profiler-report.html").read_text()
    assert "Where every second went" in page


# --- the engine -----------------------------------------------------------------------------------------------------


def ledger_of(lengths, **activities):
    steps = np.arange(len(next(iter(lengths.values()))))
    return Ledger(
        tuple(
            RankLedger.of(
                name, steps, np.asarray(values), {key: np.asarray(each[name]) for key, each in activities.items()}
            )
            for name, values in lengths.items()
        )
    )


def test_each_cause_is_repaired_before_the_next_is_sought():
    length = np.full(60, 1.0)
    ledger = ledger_of(
        {"0": length, "1": length},
        forward={"0": length * 0.5, "1": length * 0.5}, saving={"0": length * 0.3, "1": length * 0.3},
        evaluation={"0": length * 0.2, "1": length * 0.2},
    )  # fmt: skip
    verdict = diagnose(ledger)
    assert [finding.kind for finding in verdict.findings] == ["CHECKPOINTING", "EVALUATION_BOUND"]
    assert sum(finding.gain.seconds.value for finding in verdict.findings) <= 60
    # of what the first repair leaves
    assert verdict.findings[1].gain.speedup.value == pytest.approx(0.7 / 0.6, abs=0.02)


def test_a_cause_from_elsewhere_is_a_row():
    def slow_knitting(steps, ledger):
        return Repair(steps.repaired(steps.seconds * 0.5), None, {"share": ledger.totals.share("knitting")})

    length = np.full(60, 1.0)
    ledger = ledger_of({"0": length}, knitting={"0": length})
    row = Cause("KNITTING", slow_knitting, "Knitting takes {share:.0%} of the time.", "Knit less.")
    first = diagnose(ledger, [*CAUSES, row]).findings[0]
    assert (first.kind, first.headline) == ("KNITTING", "Knitting takes 100% of the time.")
    assert first.gain.share_of_loop.value == pytest.approx(0.5)


def test_repairs_never_make_a_step_longer_and_gains_stay_in_order():
    for name in ("slow_worker.parquet", "mini_batches_1.csv", "mini_batches_3.csv"):
        ledger = read_table(DATA / name).ledger
        steps = Steps.of(ledger)
        for cause in CAUSES:
            repair = cause.repair(steps, ledger)
            if repair is not None and cause.kind not in ("SEQUENCE_IMBALANCE", "STAGE_IMBALANCE"):
                assert (repair.after.length <= steps.length + 1e-9).all()
        for finding in diagnose(ledger).findings:
            assert (
                0
                <= finding.gain.share_of_loop.low
                <= finding.gain.share_of_loop.value
                <= finding.gain.share_of_loop.high
                < 1
            )


def test_too_few_steps_are_counted():
    verdict = diagnose(ledger_of({"0": np.ones(limits.MIN_STEPS - 1)}))
    assert verdict.main.headline == "Too few steps to judge: all ranks have 9 in common, 10 are needed."


def test_padding_that_the_passes_compute_on_is_found(tmp_path):
    lines = ["rank,step,operation,seconds,padding"]
    for rank, step in itertools.product(range(2), range(40)):
        part = 0.35 + 0.1 * (step % 3)
        lines += [
            f"{rank},{step},{name},{spent},{part}"
            for name, spent in (("forward", 0.1), ("backward", 0.2), ("optimizer", 0.03))
        ]
    table = tmp_path / "padded.csv"
    table.write_text("\n".join(lines))
    (finding,) = diagnose(read_table(str(table)).ledger).findings
    assert finding.kind == "PADDING_WASTE"
    assert finding.gain.share_of_loop.low <= 0.45 * 0.3 / 0.33 <= finding.gain.share_of_loop.high
    assert "45 % of the tokens" in finding.headline


def test_every_number_that_decides_has_a_reason_and_is_used():
    text = Path(limits.__file__).read_text()
    package = Path(limits.__file__).parent
    code = "".join(path.read_text() for path in package.rglob("*.py"))
    names = [name for name in vars(limits) if name.isupper()]
    assert len(names) <= 59
    for name in names:
        lines = [line for line in text.splitlines() if line.startswith(f"{name} =")]
        assert len(lines) == 1, name  # defined once
        assert len(lines[0].partition("#")[2]) > 20, name
        assert f"limits.{name}" in code, name
