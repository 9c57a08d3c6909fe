"""States that wait in a temporary file are those that were put away."""

import tempfile

import pytest

from sm_profiler.folding import Slice, SliceTree, Stored, run_sliced, windows
from sm_profiler.metrics.metric_folds import new_folds
from sm_profiler.metrics.scaling import kept
from sm_profiler.metrics.scaling import kept as put_away
from sm_profiler.metrics.scaling.part import encode_slice
from sm_profiler.source import open_source
from tests.support.jobs import make_job


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job") / "job", "--minutes", "5", "--gpus", "2", "--cpus", "2")


def folded(job):
    state = Slice(new_folds({}), {3: "broke"})
    for window in windows(open_source(job, cache=False, progress=False)):
        state.update(window)
    return state


def test_a_state_comes_back_with_the_same_bytes(job):
    load = put_away.put_away(folded(job))
    assert encode_slice(load()) == encode_slice(folded(job))


def test_a_state_stays_in_memory_without_a_place_for_files(job, monkeypatch):
    def full(**options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    state = folded(job)
    assert put_away.put_away(state)() is state


def test_slices_that_were_put_away_merge_to_the_same_digits(job):
    stored = []

    def kept(state):
        stored.append(state)
        return put_away.put_away(state)

    def whole(**options):
        source = open_source(job, cache=False, progress=False)
        return encode_slice(run_sliced(source, lambda: new_folds({}), length=1, **options))

    assert whole(put_away=kept) == whole()
    assert len(stored) > 1


def test_a_state_that_waits_is_loaded_part_by_part(job):
    state = put_away.put_away(folded(job))()
    assert all(isinstance(rule, Stored) for rule in state.folds[0].rules.values())
    assert all(isinstance(fold, Stored) for fold in state.folds[1:])
    assert state.folds[0].rule("StepOutlier") is state.folds[0].rules["StepOutlier"]
    assert isinstance(state.folds[0].rules["BatchSize"], Stored)


def test_a_state_that_cannot_be_written_to_its_end_keeps_its_digits(job, monkeypatch):
    written, put = [], put_away._File.put

    def full(self, part, state):
        if len(written) > 5:
            raise OSError(28, "No space left on device")
        written.append(part)
        return put(self, part, state)

    monkeypatch.setattr(put_away._File, "put", full)
    assert encode_slice(put_away.put_away(folded(job))()) == encode_slice(folded(job))
    assert len(written) == 6


def test_a_rule_that_cannot_be_merged_does_not_affect_others(job, monkeypatch):
    def fail(self, other):
        raise ValueError("damaged")

    monkeypatch.setattr("sm_profiler.rules.gpu_rules.BatchSize.absorb", fail)
    source = open_source(job, cache=False, progress=False)
    whole = run_sliced(source, lambda: new_folds({}), length=1, put_away=put_away.put_away)
    results = whole.folds[0].results()
    assert list(results.broken) == ["BatchSize"]
    assert "StepOutlier" in results.results
    assert not whole.broken


@pytest.mark.parametrize("level", [0, 1])
def test_a_merge_that_fails_later_breaks_the_rule_of_the_whole_job(monkeypatch, level):
    """Of four slices, either the second pair cannot be merged, or it cannot be merged with the first."""

    def fail(self, other):
        self.seen = [*getattr(self, "seen", [0]), *getattr(other, "seen", [0])]
        if self.number == 2 - 2 * level and len(self.seen) == 2 + 2 * level:
            raise ValueError("damaged")

    monkeypatch.setattr("sm_profiler.rules.dataloader.Dataloader.absorb", fail)
    for away in (None, put_away.put_away):
        tree = SliceTree(away)
        for number in range(4):
            state = Slice(new_folds({}))
            state.folds[0].rules["Dataloader"].number = number
            tree.add(0, number, state)
        results = tree.whole().folds[0].results()
        assert list(results.broken) == ["Dataloader"]
        assert "damaged" in results.broken["Dataloader"]
        assert "Dataloader" not in results.results


def test_the_state_of_a_rule_that_cannot_be_merged_is_not_kept(job, tmp_path, monkeypatch):
    def fail(self, other):
        raise ValueError("damaged")

    source = open_source(job, cache=False, progress=False)
    merged = run_sliced(source, lambda: new_folds({}), length=1, put_away=put_away.put_away)
    monkeypatch.setattr("sm_profiler.rules.gpu_rules.BatchSize.absorb", fail)
    assert isinstance(merged.folds[0].rules["BatchSize"], Stored)
    monkeypatch.setattr(kept, "_digest", lambda _: "known")
    monkeypatch.setenv("SM_PROFILER_CACHE", str(tmp_path))
    kept.keep(source, merged)
    assert not list(tmp_path.iterdir())
