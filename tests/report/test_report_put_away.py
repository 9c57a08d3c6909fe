"""States that wait in a temporary file are those that were put away."""

import tempfile

import pytest
from report_helpers import make_job

from sm_profiler.report.scaling import put_away
from sm_profiler.report.scaling.part import encode_slice, new_folds
from sm_profiler.rules.engine import Slice, run_sliced, windows
from sm_profiler.source import open_source


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job") / "job", "--minutes", "5", "--gpus", "2", "--cpus", "2")


def folded(job):
    state = Slice(new_folds({}), {3: "broke"})
    for window in windows(open_source(job, cache=False, progress=False)):
        state.update(window)
    return state


def test_a_state_comes_back_with_the_same_bytes(job):
    load = put_away.put_away(folded(job), {})
    assert encode_slice(load()) == encode_slice(folded(job))


def test_a_state_stays_in_memory_without_a_place_for_files(job, monkeypatch):
    def full(**options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    state = folded(job)
    assert put_away.put_away(state, {})() is state


def test_slices_that_were_put_away_merge_to_the_same_digits(job):
    stored = []

    def kept(state):
        stored.append(state)
        return put_away.put_away(state, {})

    def whole(**options):
        source = open_source(job, cache=False, progress=False)
        return encode_slice(run_sliced(source, lambda: new_folds({}), length=1, **options))

    assert whole(put_away=kept) == whole()
    assert len(stored) > 1
