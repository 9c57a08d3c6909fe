"""Tables as other programs export them: trackers of experiments, trainers' logs, spreadsheets."""

import json
import random

import pytest

from sm_profiler.diagnosis import diagnose, is_table, read_table
from sm_profiler.errors import SourceError

EPOCH = 1.7e9
SLOW_AT = 120


def steps(count=300, slow=1.6, seed=3):
    """Return the seconds of steps that become slower."""
    draw = random.Random(seed)
    return [0.5 * draw.gauss(1, 0.02) * (slow if at >= SLOW_AT else 1) for at in range(count)]


def write(path, rows, sign=",", comma=False):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def cell(value):
        text = "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)
        return text.replace(".", ",") if comma else text

    lines = [sign.join(rows[0]), *(sign.join(cell(row[key]) for key in rows[0]) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def moments(seconds, start=EPOCH):
    found = []
    for spent in seconds:
        start += spent
        found.append(start)
    return found


def exported(shape, seconds):
    """Return the rows of an export of step times."""
    at = list(enumerate(zip(seconds, moments(seconds), strict=True)))
    return {
        "W&B": [{"_step": n, "_runtime": m - EPOCH, "_timestamp": m, "train/loss": 1.0, "train/step_time": s} for n, (s, m) in at],
        "W&B, chart": [{"Step": n, "run - step_time_ms": s * 1e3, "run - step_time_ms__MIN": s * 1e3} for n, (s, _) in at],
        "TensorBoard": [{"Wall time": m, "Step": n, "Value": 1.0} for n, (_, m) in at],
        "MLflow": [{"run_id": "a", "key": "loss", "value": 1.0, "timestamp": int(m * 1e3), "step": n} for n, (_, m) in at],
        "Megatron": [{"iteration": n, "elapsed time per iteration (ms)": s * 1e3, "lm loss": 1.0} for n, (s, _) in at],
        "NeMo": [{"global_step": n, "train_step_timing in s": s} for n, (s, _) in at],
        "Ray Tune": [{"training_iteration": n, "time_this_iter_s": s, "time_total_s": m - EPOCH, "timestamp": m} for n, (s, m) in at],
        "fairseq": [{"num_updates": str(n), "wall": f"{m - EPOCH:.3f}", "loss": "1"} for n, (_, m) in at],
        "since the start": [{"step": n, "elapsed_s": m - EPOCH} for n, (_, m) in at],
    }[shape]  # fmt: skip


SHAPES = ("W&B", "W&B, chart", "TensorBoard", "MLflow", "Megatron", "NeMo", "Ray Tune", "fairseq", "since the start")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_slowdown_in_an_export(shape, suffix, tmp_path):
    finding = diagnose(read_table(write(tmp_path / f"t{suffix}", exported(shape, steps()))).ledger).main
    assert finding.kind == "FAIL_SLOW", finding.headline
    assert abs(finding.steps[0] - SLOW_AT) <= 3
    assert finding.gain.speedup.low <= 1.6 * 1.02
    assert finding.gain.speedup.high >= 1.6 * 0.98


@pytest.mark.parametrize("shape", SHAPES)
def test_an_export_of_even_steps_has_no_finding(shape, tmp_path):
    assert diagnose(read_table(write(tmp_path / "t.csv", exported(shape, steps(slow=1)))).ledger).findings == ()


@pytest.mark.parametrize(("sign", "comma"), [(";", True), ("\t", False), ("\t", True), (";", False)])
def test_other_signs_between_columns_and_decimal_commas(sign, comma, tmp_path):
    rows = [{"step": at, "seconds": spent} for at, spent in enumerate(steps())]
    found = read_table(write(tmp_path / "t.csv", rows, sign, comma))
    assert (found.lost, found.ledger.totals.duration) == (0, pytest.approx(sum(steps()), rel=1e-4))


def wide(unit="", scale=1.0, **names):
    """Return rows with a column for each part of a step, of which evaluation is outside and rare."""
    draw, rows = random.Random(5), []
    for at in range(200):
        parts = {"data_time": 0.3, "forward_time": 0.2, "backward_time": 0.4, "optimizer_time": 0.05}
        parts = {key: spent * draw.gauss(1, 0.02) for key, spent in parts.items()}
        rare = {"eval_time": 1.0 if at % 20 == 19 else None}
        row = {**parts, **rare, "step_time": sum(parts.values()) * 1.02}
        timed = {key + unit: None if value is None else value * scale for key, value in row.items()}
        rows.append({"step": at, **timed, "loss": 1.0, "samples_per_second": 100.0})
    return rows


@pytest.mark.parametrize(("unit", "scale"), [("", 1.0), ("_ms", 1e3), (" (us)", 1e6)])
def test_a_column_for_each_part_of_a_step(unit, scale, tmp_path):
    ledger = read_table(write(tmp_path / "t.csv", wide(unit, scale))).ledger
    totals = ledger.totals
    assert totals.share("data wait") == pytest.approx(0.3 / (0.95 * 1.02 + 0.05), rel=0.02)
    assert totals.share("evaluation") == pytest.approx(0.05 / (0.95 * 1.02 + 0.05), rel=0.02)
    assert totals.share("step") == pytest.approx(0.019 / (0.95 * 1.02 + 0.05), rel=0.05)
    assert diagnose(ledger).kind == "INPUT_BOUND"


def test_what_is_recorded_is_sure_although_the_rest_of_a_step_is_unknown(tmp_path):
    rows = [{"step": at, "data_time": 0.5 * random.Random(at).gauss(1, 0.02), "step_time": 1.0} for at in range(100)]
    finding = diagnose(read_table(write(tmp_path / "t.csv", rows)).ledger).main
    assert (finding.kind, finding.confidence) == ("INPUT_BOUND", "high")


@pytest.mark.parametrize("again", [0, 5])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "times",
    [
        {"step_time": 1.0, "data_time": 0.5},
        {"step_time": 1.0, "data_time": 0.3, "forward_time": 0.2, "backward_time": 0.4},
        {"timestamp": None},
        {"elapsed_s": None},
    ],
)
def test_each_row_is_counted_once(times, ranks, again, tmp_path):
    """The parts of a step counted as rows, and the first moment of each rank as a repeated step."""
    rows = [
        {"step": at, "rank": rank, **{key: at + 1.0 if value is None else value for key, value in times.items()}}
        for at in range(100)
        for rank in range(ranks)
    ]
    table = read_table(write(tmp_path / "t.csv", [*rows, *rows[-again * ranks :][: again * ranks]]))
    assert (table.rows, table.lost) == (100 * ranks, again * ranks)


def test_parts_that_exceed_the_step_overlap_it(tmp_path):
    rows = [{"step": at, "data_time": 0.9, "step_time": 0.5} for at in range(100)]
    assert read_table(write(tmp_path / "t.csv", rows)).ledger.totals.activities == ("step",)


def test_moments_of_some_steps_only_are_no_long_steps(tmp_path):
    times = moments(steps(600, slow=1))
    rows = [{"Step": at, "Wall time": times[at]} for at in range(600) if at % 10 == 0 or at % 33 == 0]
    assert diagnose(read_table(write(tmp_path / "t.csv", rows)).ledger).findings == ()


def test_the_number_of_a_step_is_no_time_of_it(tmp_path):
    """`step` and `step_ms` were both "times of steps" of which one had to be chosen."""
    path = write(tmp_path / "t.csv", [{"step": at, "step_ms": 100.0, "data_ms": 40.0} for at in range(50)])
    assert read_table(path).ledger.totals.duration == pytest.approx(5.0)


def test_the_times_of_two_runs_are_not_mixed(tmp_path):
    rows = [{"Step": at, "a - step_time": 1.0, "b - step_time": 2.0} for at in range(50)]
    path = write(tmp_path / "t.csv", rows)
    with pytest.raises(SourceError, match="a - step_time, b - step_time are times of steps; choose one of them"):
        read_table(path)
    assert read_table(path, {"seconds": "b - step_time"}).ledger.totals.duration == pytest.approx(100)


@pytest.mark.parametrize("rows", [
    [{"step": 10, "loss": 1.0, "learning_rate": 1e-4, "epoch": 0.1}], [{"epoch": 0, "step": 1, "val_loss": 1.0}],
    [{"iteration": 1, "samples_per_sec": 100.0, "TFLOPS": 80.0}], [{"step": 1, "eval_samples_per_second": 9.0, "eval_steps_per_second": 1.0}],
])  # fmt: skip
def test_logs_without_times_are_refused(rows, tmp_path):
    with pytest.raises(SourceError, match="needs the columns step and seconds"):
        read_table(write(tmp_path / "t.csv", rows))


def of_ranks(names, slow, **columns):
    """Return rows of ranks of which one is 1.5 times as slow; columns are functions of a rank's name."""
    draw = random.Random(9)
    return [
        {"step": at, **{key: of(name) for key, of in columns.items()}, "step_time_ms": 120 * draw.gauss(1, 0.02) * (1.5 if name == slow else 1)}
        for at in range(100)
        for name in names
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"rank": "rank{}".format}, "2"),
        ({"device": "gpu-{}".format}, "gpu-2"),
        ({"hostname": "node-{}".format}, "node-2"),
        ({"node": lambda rank: rank // 2, "local_rank": lambda rank: rank % 2}, "1-0"),
    ],
)
def test_ranks_have_the_name_of_the_place_where_they_run(columns, named, tmp_path):
    finding = diagnose(read_table(write(tmp_path / "t.csv", of_ranks(range(4), 2, **columns))).ledger).main
    assert (finding.kind, finding.ranks) == ("STRAGGLER", (named,))
    assert finding.headline.startswith(f"Rank {named} takes 1.5")
    assert holds(finding, 1.5)


def holds(finding, truth):
    return finding.gain.speedup.low * 0.97 <= truth <= finding.gain.speedup.high * 1.03


def test_a_process_that_moves_to_another_machine_is_one_rank(tmp_path):
    rows = [{"step": at, "hostname": "a" if at < 60 else "b", "step_time": 0.5} for at in range(100)]
    assert [rank.name for rank in read_table(write(tmp_path / "t.csv", rows)).ledger.ranks] == ["0"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize("name", ["rank_{}", "job17-rank{}-times", "2024_{}"])
def test_a_folder_with_a_table_of_each_rank(name, suffix, tmp_path):
    for rank in range(11):
        rows = [{key: value for key, value in row.items() if key != "rank"} for row in of_ranks([rank], 10)]
        write(tmp_path / (name.format(rank) + suffix), rows)
    finding = diagnose(read_table(tmp_path).ledger).main
    assert (finding.kind, finding.ranks) == ("STRAGGLER", ("10",))
    assert holds(finding, 1.5)


def test_a_folder_is_a_table_if_it_holds_nothing_else(tmp_path):
    write(tmp_path / "rank_0.csv", of_ranks([0], 1))
    (tmp_path / ".DS_Store").write_text("")
    assert is_table(str(tmp_path))
    (tmp_path / "trace.json").write_text("{}")
    assert not is_table(str(tmp_path))


def test_a_folder_of_tables_that_name_their_ranks(tmp_path):
    for part in range(2):
        write(tmp_path / f"part-{part}.csv", of_ranks(range(part * 2, part * 2 + 2), 1, rank=str))
    assert [rank.name for rank in read_table(tmp_path).ledger.ranks] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("310 ms", 0.31), ("310ms", 0.31), ("1.5 s", 1.5), ("250 µs", 250e-6), ("0:00:01.5", 1.5), ("0 days 00:01:02.250", 62.25), ("1 day, 0:00:00", 86400)],
)  # fmt: skip
def test_times_with_their_unit(text, seconds, tmp_path):
    (tmp_path / "t.tsv").write_text("step\tduration\n" + "".join(f"{at}\t{text}\n" for at in range(20)))
    assert read_table(tmp_path / "t.tsv").ledger.totals.duration == pytest.approx(20 * seconds)


@pytest.mark.parametrize("text", ["310 apples", "0:99:01", "٣ s"])
def test_what_is_no_time(text, tmp_path):
    (tmp_path / "t.csv").write_text(f"step,duration\n1,{text}\n")
    with pytest.raises(SourceError, match=rf"no usable row: .*\(step '1', duration '{text}'\)"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("head", ["# by a tool\nstep,seconds", "# by a tool\n# step,seconds", "#step,seconds"])
def test_comments_before_a_table(head, tmp_path):
    (tmp_path / "t.csv").write_text(f"{head}\n" + "".join(f"{at},0.5\n" for at in range(20)))
    assert read_table(tmp_path / "t.csv").ledger.totals.duration == pytest.approx(10)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"step": 1, "step_time_ms": 200, "data_ms": 90, "fwd_ms": 40}, "step, step_time_ms (seconds, in ms), data_ms (data wait, in ms), fwd_ms (forward, in ms)"),
        ({"Step": 1, "Wall time": 1.7e9, "Value": 1.0}, "Step (step), Wall time (moment); as evidence only: Value"),
        ({"step": 1, "seconds": 1.0, "mode": "train", "data_time": 9.0}, "step, seconds; as evidence only: data_time; not used: mode"),
        ({"step": 1, "duration": 1.0, "device": "cuda"}, "step, duration (seconds); not used: device"),
        ({"steps": 1, "elapsed_time_ms_forward": 100, "elapsed_time_ms_backward": 200}, "steps (step), elapsed_time_ms_forward (forward, in ms), elapsed_time_ms_backward (backward, in ms)"),
        ({"step": 1, "time_metrics/end_to_end(s)": 1.0, "time_metrics/data_loading(s)": 0.5, "time_metrics/data_loading(%)": 50}, "step, time_metrics/end_to_end(s) (seconds), time_metrics/data_loading(s) (data wait); as evidence only: time_metrics/data_loading(%)"),
    ],
)  # fmt: skip
def test_a_report_states_what_columns_were_read_as(columns, told, tmp_path):
    moves = {"step", "Step", "steps", "Wall time"}
    rows = [{key: value + at if key in moves else value for key, value in columns.items()} for at in range(20)]
    verdict = diagnose(read_table(write(tmp_path / "t.csv", rows)).ledger)
    assert [one.value for one in verdict.main.evidence if one.metric == "columns"] == [told]


def test_a_table_without_a_rank_lists_what_was_not_used(tmp_path):
    rows = [{"step": at // 2, "who": "ab"[at % 2], "seconds": 1.0} for at in range(40)]
    with pytest.raises(
        SourceError, match=r"is missing: rank, epoch, or operation.*\(not used: who; --columns step=NAME,rank=NAME"
    ):
        read_table(write(tmp_path / "t.csv", rows))
    rows = [{"epoch": at // 20, "n": at, "seconds": 1.0} for at in range(40)]
    with pytest.raises(SourceError, match=r"\(epoch is taken as step; --columns step=NAME,"):
        read_table(write(tmp_path / "t.csv", rows))


@pytest.mark.parametrize(("column", "unit"), [("batch", "batch_time"), ("epoch", "time")])
def test_other_counts_of_steps(column, unit, tmp_path):
    rows = [{column: at, "loss": 1.0, unit: spent} for at, spent in enumerate(steps())]
    assert diagnose(read_table(write(tmp_path / "t.csv", rows)).ledger).kind == "FAIL_SLOW"


def test_parts_without_the_time_of_whole_steps_are_not_called_healthy(tmp_path):
    rows = [{"step": at, "forward_ms": 100 + at % 3, "backward_ms": 200 + at % 3} for at in range(100)]
    finding = diagnose(read_table(write(tmp_path / "t.csv", rows)).ledger).main
    assert "How long whole steps take is not in the table" in finding.headline
    assert "column with the time of whole steps" in finding.next_step
