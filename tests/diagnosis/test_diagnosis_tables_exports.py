"""Tables as other programs export them: trackers of experiments, trainers' logs, spreadsheets."""

import json
import random

import pytest

from sm_profiler.diagnosis import diagnose, read_table
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
