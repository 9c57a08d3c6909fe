"""Saving and logging as causes, from made-up records."""

import re

import attrs
import pytest

from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.formats import event_names
from sm_profiler.formatting import percent
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from sm_profiler.render.flame import part_of
from sm_profiler.report import Class
from tests.support.reports import metrics_of, report_from, training, verdict_of

LINE = {"file": "/code/train.py", "line": 31, "function": "main"}


def with_saves(steps, every, length, *, saved=1.0):
    """Return a loop that stalls every `every` steps; `saved` is the part of each stall that a save takes."""
    rows = training(steps, every=every, stall=length)
    ends = [row[2] + row[3] for row in rows if row[0].startswith("Step")]
    args = {"calls": 1, "path": "/checkpoints/last.pt", "bytes": 40_000_000, **LINE}
    return rows + [
        (event_names.SAVE, "torch.save", ends[step] + 0.0001, length * saved, "algo-1-0", step, args)
        for step in range(0, steps - 1, every)
    ]


@pytest.mark.parametrize(
    ("name", "advised"), [("json.dump", "Append one line a step"), ("torch.save", "write it in a thread")]
)
@pytest.mark.parametrize("grows", [False, True])
def test_a_cost_that_grows_with_the_training_is_called_that(name, advised, grows):
    """A growing file that each step wrote anew took “15.2 ms each time”, the mean of 2 and 30."""
    rows, now = [], 1.0
    for number in range(300):
        length = 0.002 + 0.0001 * number if grows else 0.015
        rows += training(1, at=now, number=number)
        end = now + 0.0102
        rows.append((event_names.SAVE, name, end, length, "algo-1-0", number, {"calls": 1, **LINE}))
        now = end + length
    main = verdict_of(rows).main
    assert main.kind is Class.CHECKPOINTING
    assert (f"Each {name} takes longer than the one before" in main.headline) is grows
    assert ("grows with the training" in main.next_step) is grows
    assert advised in main.next_step


def test_names_checkpoints_instead_of_a_periodic_stall():
    verdict = verdict_of(with_saves(400, 40, 0.2))
    assert verdict.kind is Class.CHECKPOINTING
    assert "torch.save every 40 steps, 200 ms each time for 40 MB" in verdict.main.headline
    assert verdict.main.share_of_time == pytest.approx(0.33, abs=0.02)
    assert verdict.main.confidence == "high"
    assert (verdict.main.where[0].file, verdict.main.where[0].line) == ("/code/train.py", 31)
    shown = {one.metric: one.value for one in verdict.main.evidence}
    assert shown["saved to"] == "/checkpoints/last.pt"
    assert shown["speed of saving"] == pytest.approx(200e6, rel=0.01)
    assert verdict.also == ()


def disturbed_save(kind, *, steps=400, every=10, length=0.0235, first=2.4):
    """Return a loop that saves every few steps, and whose first save is long because of the profiler; and the true share."""
    rows, saves, now = [], [], 1.0
    for step in range(steps):
        rows += training(1, at=now, number=step)
        now = rows[-1][2] + rows[-1][3]
        if step % every == every - 1:
            took = first if step == every - 1 else length
            saves.append((event_names.SAVE, "torch.save", now, took, "algo-1-0", step, {"calls": 1, **LINE}))
            now += took
    start, end = saves[0][2] + 0.1, saves[0][2] + 0.4
    own = (event_names.PROFILING, "own", start, end - start, "algo-1-0", -1, kind)
    loop = now - 1.0 - first
    return [*rows, *saves, own], (len(saves) - 1) * length / loop


@pytest.mark.parametrize("kind", [{"kind": "background"}, {"kind": "stall"}, {"kind": "window", "slower": 3.0}])
def test_a_save_that_the_profiler_disturbed_does_not_count(kind):
    rows, share = disturbed_save(kind)
    verdict = verdict_of(rows)
    findings = {one.kind: one for one in (verdict.main, *verdict.also)}
    found = findings[Class.CHECKPOINTING]
    assert found.share_of_time == pytest.approx(share, rel=0.05)
    assert "every 10 steps, 23.5 ms each time; this" in found.headline
    shown = {one.metric: one.value for one in found.evidence}
    assert shown["files saved"] == 39
    assert shown["duration of a save"] == pytest.approx(23.5)


def test_a_save_in_a_window_over_the_whole_loop_counts():
    rows = with_saves(400, 40, 0.2)
    end = max(row[2] for row in rows)
    rows.append((event_names.PROFILING, "window", 1.0, end - 1.0, "algo-1-0", -1, {"kind": "window", "slower": 3.0}))
    assert verdict_of(rows).kind is Class.CHECKPOINTING


def test_a_long_first_save_is_named_by_itself():
    rows, _ = disturbed_save({"kind": "none"})
    verdict = verdict_of(rows)
    findings = {one.kind: one for one in (verdict.main, *verdict.also)}
    assert "every 10 steps, 23.5 ms each time and 2.4 s the longest time" in findings[Class.CHECKPOINTING].headline


def numbers_of(headline):
    """Return the seconds that the calls of a sentence take by its own numbers, for steps of 400."""
    found = re.findall(r"every (\d+) steps, ([\d.]+) ms", headline)
    return sum(400 / int(every) * float(length) / 1e3 for every, length in found)


def test_calls_of_two_functions_are_not_counted_as_those_of_one():
    """Each torch.save with an fsync after it counted as two, so that the sentence multiplied to twice the time."""
    rows = with_saves(400, 20, 0.2, saved=0.6)
    saves = [row for row in rows if row[0] == event_names.SAVE]
    for _, _, start, length, *rest, _args in saves:
        rows.append((event_names.SAVE, "os.fsync", start + length, length / 2, *rest, {"calls": 1, **LINE, "line": 33}))
    found = verdict_of(rows).main
    assert found.headline.startswith(
        "Training stops for torch.save every 20 steps, 120 ms each time for 40 MB, and for os.fsync every 20 steps, "
        "60 ms each time; this costs"
    )
    assert numbers_of(found.headline) == pytest.approx(20 * 0.18, rel=0.01)
    shown = {one.metric: one.value for one in found.evidence}
    assert (shown["files saved"], shown["duration of a save"]) == (20, pytest.approx(120))


def test_sums_of_short_calls_are_counted_with_the_long_ones_of_their_function():
    rows = with_saves(400, 20, 0.2)
    rows.append((event_names.SAVE, "torch.save", 3.0, 0.08, "algo-1-0", -1, {"calls": 100, **LINE}))
    found = verdict_of(rows).main
    assert "torch.save 120 times, 34 ms each time" in found.headline


def test_samples_of_saving_are_named_apart_from_the_calls():
    rows = with_saves(400, 20, 0.2, saved=0.6)
    stack = Sampled("algo-1-0", "outside", True, (Place("train.py", 30, "main"),), "pathlib.Path.open", 1.2, 18)
    metrics = attrs.evolve(metrics_of(rows), samples=Samples((stack,), {("train.py", 30): "open(path, 'wb')"}))
    found = decide(Case(metrics, {})).main
    assert (
        "120 ms each time for 40 MB; this costs 30 % of the loop, and saving outside of these calls 21 %"
        in found.headline
    )
    assert found.share_of_time == pytest.approx(0.51, abs=0.02)


def test_recorded_and_sampled_saves_share_the_lost_time_by_their_seconds():
    """Recorded calls of torch.save were named in no line if samples of other lines showed more."""
    rows = with_saves(400, 20, 0.2, saved=0.3)
    stack = Sampled("algo-1-0", "outside", True, (Place("train.py", 30, "main"),), "PIL.Image.Image.save", 2.4, 36)
    metrics = attrs.evolve(metrics_of(rows), samples=Samples((stack,), {("train.py", 30): "grid.save(path)"}))
    found = decide(Case(metrics, {})).main
    shares = {line.line: line.share for line in found.where}
    assert shares == {30: pytest.approx(2 / 3, abs=0.02), LINE["line"]: pytest.approx(1 / 3, abs=0.02)}


def test_a_save_that_is_a_small_part_of_a_stall_does_not_hide_it():
    verdict = verdict_of(with_saves(400, 40, 0.2, saved=0.2))
    assert verdict.kind is Class.PERIODIC_STALL
    assert Class.CHECKPOINTING in {finding.kind for finding in verdict.also}


@pytest.mark.parametrize(
    ("line", "function", "counts"),
    [
        ('with path.open("wb") as file:', "main", True),
        ("file = open(path, 'w')", "main", True),
        ('with path.open("rb") as file:', "main", False),
        ('with path.open("wb") as file:', "other", True),
    ],
)
def test_opening_a_file_belongs_to_its_save(line, function, counts):
    rows = with_saves(400, 20, 0.2, saved=0.2)  # the rest truncates the last checkpoint
    found = Sampled("algo-1-0", "outside", True, (Place("train.py", 30, function),), "pathlib.Path.open", 3.0, 45)
    metrics = attrs.evolve(metrics_of(rows), samples=Samples((found,), {("train.py", 30): line}))
    verdict = decide(Case(metrics, {}))
    if counts:
        assert (verdict.kind, verdict.also) == (Class.CHECKPOINTING, ())
        assert verdict.main.share_of_time == pytest.approx((20 * 0.04 + 3.0) / 7.9, abs=0.05)
    else:
        assert verdict.kind is Class.PERIODIC_STALL


def test_a_save_that_opens_its_file_in_the_same_line_counts_once():
    rows = with_saves(400, 20, 0.2)
    found = Sampled("algo-1-0", "outside", True, (Place("train.py", 31, "main"),), "pickle.dump", 4.0, 60)
    source = 'pickle.dump(state, open(path, "wb"))'
    once = verdict_of(rows).main.share_of_time
    metrics = attrs.evolve(metrics_of(rows), samples=Samples((found,), {("train.py", 31): source}))
    assert decide(Case(metrics, {})).main.share_of_time == pytest.approx(once)


def test_rare_saves_cost_nothing():
    assert verdict_of(with_saves(400, 200, 0.03)).kind is Class.BALANCED


def test_a_save_that_imports_a_library_does_not_count():
    rows = with_saves(400, 399, 2.0)
    assert verdict_of(rows).kind is Class.CHECKPOINTING
    rows[-1][-1]["imported"] = 1_500
    assert Class.CHECKPOINTING not in {one.kind for one in (verdict_of(rows).main, *verdict_of(rows).also)}


def test_a_save_after_the_loop_does_not_count():
    rows = training(200)
    end = rows[-1][2] + rows[-1][3]
    rows.append((event_names.SAVE, "torch.save", end + 0.1, 3.0, "algo-1-0", 199, {"calls": 1}))
    assert verdict_of(rows).kind is Class.BALANCED


def test_names_logging_instead_of_time_outside_the_phases():
    rows = training(400, outside=0.0075)
    for second in range(1, 7):  # sums of short calls, a second's each
        rows.append(
            (event_names.LOG, "logging.Logger.handle", second + 0.3, 0.35, "algo-1-0", -1, {"calls": 600, **LINE})
        )
        rows.append((event_names.LOG, "print", second + 0.3, 0.01, "algo-1-0", -1, {"calls": 50}))
    verdict = verdict_of(rows)
    assert verdict.kind is Class.LOGGING
    assert "logging.Logger.handle and print" in verdict.main.headline
    assert verdict.main.where[0].line == 31
    assert verdict.also == ()


def test_a_few_log_lines_are_no_finding():
    rows = training(400, outside=0.008)
    rows += [(event_names.LOG, "print", second + 0.3, 0.02, "algo-1-0", -1, {"calls": 60}) for second in range(1, 7)]
    verdict = verdict_of(rows)
    assert verdict.kind is Class.SYNC_BOUND
    assert verdict.also == ()


@pytest.mark.parametrize("args", [{}, {"calls": "many"}, {"calls": -3, "bytes": "x", "file": 7, "line": None}])
def test_damaged_arguments_do_no_harm(args):
    rows = training(400, every=40, stall=0.2)
    ends = [row[2] + row[3] for row in rows if row[0].startswith("Step")]
    rows += [(event_names.SAVE, "torch.save", ends[step], 0.2, "algo-1-0", step, args) for step in range(0, 399, 40)]
    assert verdict_of(rows).kind is Class.CHECKPOINTING


def sampled(*stacks, rows=None):
    """Return the verdict on a loop of which lines were sampled: phase, in a long step, text of the line, seconds."""
    rows = rows or training(400, outside=0.008)
    found = []
    for number, (phase, long, _text, seconds) in enumerate(stacks, 1):
        place = Place("train.py", number, "dump")
        found.append(Sampled("algo-1-0", phase, long, (place,), "", seconds, round(seconds * 15)))
    sources = {("train.py", number): text for number, (_, _, text, _) in enumerate(stacks, 1)}
    metrics = attrs.evolve(metrics_of(rows), samples=Samples(tuple(found), sources))
    return decide(Case(metrics, {}))


@pytest.mark.parametrize(
    "line", ['file.write(json.dumps(row) + "\\n")', "writer.writerow(row)", "out.flush()", "print(row, file=journal)"]
)
@pytest.mark.parametrize("phase", ["outside", "evaluation"])  # the model draws a sample, which is written
def test_names_lines_written_to_an_open_file(line, phase):
    verdict = sampled((phase, False, line, 2.5), ("forward", False, "model(x)", 3.0))
    assert (verdict.kind, verdict.main.confidence) == (Class.LOGGING, "medium")
    assert verdict.main.where[0].line == 1
    assert verdict.main.where[0].source == line
    assert verdict.also == ()


@pytest.mark.parametrize(
    ("phase", "line", "seconds"),
    [
        ("outside", "evaluate(model)", 2.5),
        ("forward", "self.log.write(str(x))", 2.5),  # which the model does
    ],
)
def test_other_lines_are_not_logging(phase, line, seconds):
    assert sampled((phase, False, line, seconds)).kind is Class.SYNC_BOUND


def test_calls_that_were_timed_count_once():
    rows = training(400, outside=0.008)
    rows += [
        (
            event_names.LOG,
            "print",
            second + 0.3,
            0.4,
            "algo-1-0",
            -1,
            {"calls": 60, **LINE, "file": "train.py", "line": 1},
        )
        for second in range(1, 7)
    ]
    verdict = sampled(("outside", False, "print(row)", 2.5), rows=rows)
    assert verdict.kind is Class.LOGGING
    assert verdict.main.share_of_time == pytest.approx(0.4, abs=0.1)
    assert "print: 360 calls" in verdict.main.headline


def test_names_what_lies_beside_the_phases_if_nothing_leads():
    """Time that no judge explains has lines, too."""
    verdict = sampled(
        ("outside", False, "update_average(model)", 1.2), ("forward", False, "model(x)", 3.0),
        rows=training(400, wait=0.00176, outside=0.00235),
    )  # fmt: skip
    assert verdict.kind is Class.BALANCED
    assert "no single cause" in verdict.main.headline
    assert [one.source for one in verdict.main.where] == ["update_average(model)"]
    assert part_of(verdict.main, verdict.main.where[0]) == "100 % of the time outside the phases, in 18 samples"


def with_callbacks(steps, length, **more):
    rows = training(steps, outside=length + 0.0002)
    ends = [row for row in rows if row[0].startswith("Step:")]
    args = {"calls": 1, **LINE}
    name = "Spectrum.on_train_batch_end"
    for row in ends:
        at = row[2] + row[3]
        rows.append((event_names.CALLBACK, name, at + 1e-5, length, "algo-1-0", row[5], args))
        if more.get("saved"):
            rows.append(
                (event_names.SAVE, "keras.save_model", at + 2e-5, length * more["saved"], "algo-1-0", row[5], args)
            )
    return rows


def test_names_a_slow_callback_with_its_line_and_gain():
    verdict = verdict_of(with_callbacks(400, 0.004))
    assert verdict.kind is Class.SLOW_CALLBACK
    assert "The callback Spectrum takes 2" in verdict.main.headline
    assert "399 calls of on_train_batch_end" in verdict.main.headline
    assert verdict.main.where[0].line == 31
    assert Class.SYNC_BOUND not in {finding.kind for finding in verdict.also}


def test_the_duration_of_a_callback_is_that_of_the_calls_that_do_something():
    """It was the mean of all calls, most of which return at once."""
    rows = training(400, outside=0.0002, every=40, stall=0.1)
    name, args = "Spectrum.on_train_batch_end", {**LINE, "calls": 1}
    ends = [(row[2] + row[3], row[5]) for row in rows if row[0].startswith("Step:")]
    rows += [(event_names.CALLBACK, name, at + 1e-5, 0.1, "algo-1-0", step, args) for at, step in ends[::40]]
    rows.append((event_names.CALLBACK, name, ends[-1][0], 4e-4, "algo-1-0", 399, {**LINE, "calls": 390}))
    main = verdict_of(rows).main
    assert main.kind is Class.SLOW_CALLBACK
    assert "10 of 400 calls of on_train_batch_end, 100 ms each" in main.headline


def test_a_callback_that_saves_is_checkpointing():
    verdict = verdict_of(with_callbacks(400, 0.004, saved=0.9))
    assert verdict.kind is Class.CHECKPOINTING
    assert Class.SLOW_CALLBACK not in {finding.kind for finding in verdict.also}


def test_a_callback_has_the_share_that_the_ledger_has():
    report = report_from(with_callbacks(400, 0.02, saved=0.4))
    main = report.verdict.main
    assert main.kind is Class.SLOW_CALLBACK
    assert main.share_of_time == pytest.approx(report.ledger.share("callbacks"), abs=0.01)
    assert main.gain.share_of_loop.value == pytest.approx(main.share_of_time, rel=0.1)
    assert f"files in them take {percent(report.ledger.share('saving'))} more" in main.headline


def test_a_fast_callback_is_no_finding():
    assert verdict_of(with_callbacks(400, 0.0005)).kind is Class.BALANCED
