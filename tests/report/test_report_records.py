"""The fold of events that describe one occurrence each."""

import json

import attrs
import numpy as np
import pytest

from sm_profiler.formats import event_names
from sm_profiler.formats.columns import EventColumns
from sm_profiler.formats.recorded import KINDS, Compile, Hang, Input, Profiling, Save, ThreadStack
from sm_profiler.metrics import record_fold
from sm_profiler.metrics.record_fold import RecordFold, read_args
from sm_profiler.report.build import data_quality
from tests.support.reports import START_S, events, metrics_of, training


@attrs.frozen
class Window:
    new_events: EventColumns


def saves(*rows, node="algo-1-0"):
    """Return saves from rows of start and duration in seconds."""
    return Window(
        events([(event_names.SAVE, "torch.save", start, length, node, int(start), {"bytes": 10}) for start, length in rows])
    )  # fmt: skip


def fold_of(*windows):
    fold = RecordFold()
    for window in windows:
        fold.update(window)
    return fold


def test_records_carry_their_arguments():
    (record,) = (
        metrics_of([(event_names.COMPILE, "forward", 3.0, 0.5, "algo-1-0", 7, {"reason": "new shape"})])
        .records[event_names.COMPILE]
        .longest
    )
    assert (record.process, record.name, record.step) == ("algo-1-0", "forward", 7)
    assert record.args == Compile(reason="new shape")
    assert record.end - START_S == pytest.approx(3.5)


def test_a_phase_that_was_not_recorded_is_absent():
    assert fold_of(saves((1.0, 0.1))).result().keys() == {event_names.SAVE}


def test_keeps_the_longest_and_counts_all(monkeypatch):
    monkeypatch.setattr(record_fold, "MAX_RECORDS", 2)
    found = fold_of(saves((1.0, 0.1), (2.0, 0.3)), saves((3.0, 0.2))).result()[event_names.SAVE]
    assert [round(record.seconds, 6) for record in found.longest] == [0.3, 0.2]
    assert found.count == 3
    assert found.seconds["algo-1-0"] == pytest.approx(0.6)


def test_folds_merge_in_any_order(monkeypatch):
    monkeypatch.setattr(record_fold, "MAX_RECORDS", 3)
    windows = [
        saves((1.0, 0.1), (2.0, 0.3)),
        saves((3.0, 0.2), (4.0, 0.5), node="algo-2-0"),
        saves((5.0, 0.4), (6.0, 0.6)),
    ]
    forward, backward = fold_of(), fold_of()
    for window in windows:
        forward.merge(fold_of(window))
    for window in reversed(windows):
        backward.merge(fold_of(window))
    (one,), (other,) = forward.result().values(), backward.result().values()
    assert one.longest == other.longest
    assert one.count == other.count == 6


def test_damaged_arguments_count_as_none():
    window = saves((1.0, 0.1))
    damaged = attrs.evolve(window.new_events, args=type(window.new_events.args)(window.new_events.args.codes, ("[[[",)))
    assert fold_of(Window(damaged)).result()[event_names.SAVE].longest[0].args == Save()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"path": 3, "line": 4}', Save(line=4)),
        ('{"line": 1e999, "file": "a.py"}', Save(file="a.py")),
        ('{"bytes": 1234567890123456789012, "calls": NaN}', Save()),
        ('{"\\ud800": 1, "path": "a"}', Save(path="a")),
        ('{"threads": [{"name": "a"}, 3, {"frames": [["f", 1]]}]}', Hang(threads=(ThreadStack(name="a"),))),
        ("[1]", Save()),
    ],
)  # fmt: skip
def test_what_is_damaged_has_its_default(text, found):
    assert read_args(type(found), text) == found


@pytest.mark.parametrize("kind", KINDS.values())
def test_what_is_written_is_read(kind):
    """Fields that are unknown are not written, but for the slowdown of a window."""
    assert read_args(kind, json.dumps(kind().args())) == kind()
    assert None not in kind().args().values()
    assert Profiling(kind="window", window="python").args() == {"kind": "window", "window": "python", "slower": None}


@pytest.mark.parametrize("args", [{}, {"processes": True}])
def test_the_number_of_workers_is_read_from_its_column(args):
    rows = events([(event_names.INPUT, "PyDataset", 1.0, 0.0, "algo-1-0", -1, args)])
    found = fold_of(Window(attrs.evolve(rows, num_workers=np.array([3], np.int32)))).result()
    assert found[event_names.INPUT].longest[0].args == Input(num_workers=3, **args)


def test_records_of_an_interrupted_process_belong_to_its_first_attempt():
    rows = [
        *training(40, node="algo-1-11"), (event_names.SAVE, "torch.save", 1.1, 0.2, "algo-1-11", 1),
        *training(40, node="algo-1-22", at=20.0), (event_names.SAVE, "torch.save", 20.1, 0.4, "algo-1-22", 1),
    ]  # fmt: skip
    metadata = tuple({"rank": None, "node": "algo-1", "pid": pid, "start_us": pid} for pid in (11, 22))
    saves = metrics_of(rows, metadata=metadata).records[event_names.SAVE]
    assert len(saves.of("algo-1-11")) == 2
    assert saves.seconds == {"algo-1-11": pytest.approx(0.6)}


def test_processes_are_counted_once_however_many_files_they_write():
    one = {"rank": 0, "pid": 7, "phases_every": 2, "clock_error_us": 40.0}
    other = {**one, "rank": 1, "pid": 8, "dropped": 1200, "phases_elsewhere": 3}
    found = data_quality((), ({**one, "phases_every": 1}, one, one, other)).collectors
    assert found == (
        "1,200 events could not be recorded: the disk was too slow or failed, or the process was killed as it wrote",
        "3 phases ran on other threads than the training's: they are in timelines, and no part of the loop",
        "clocks agree within 0.04 ms (2 processes)",
        "phases were sampled at one of 2 steps to stay within the overhead budget (2 processes)",
    )
