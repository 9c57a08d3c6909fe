"""The ledger: every second in exactly one activity, for any recording."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm_profiler.diagnosis import Ledger, RankLedger
from sm_profiler.diagnosis.ledger import STEP, UNSEEN
from sm_profiler.diagnosis.table.reading import _activities, _painted, _Rows

amounts = st.one_of(st.floats(0, 1e6), st.sampled_from([float("nan"), float("inf"), -1.0, 0.0]))


@given(st.lists(st.tuples(amounts, amounts, amounts), min_size=1, max_size=20))
def test_activities_add_up_to_the_length_of_each_step(rows):
    length, first, second = (np.asarray(column) for column in zip(*rows, strict=True))
    ledger = RankLedger.of("0", np.arange(len(rows)), length, {"forward": first, "backward": second})
    total = sum(ledger.seconds.values(), np.zeros(len(rows)))
    assert total == pytest.approx(ledger.length)
    assert all((values >= 0).all() for values in ledger.seconds.values())


def test_time_without_a_record_is_unseen_and_lowers_the_coverage():
    ledger = Ledger((RankLedger.of("0", np.arange(4), np.full(4, 10.0), {"forward": np.full(4, 6.0)}),))
    assert ledger.totals.ranks[0].seconds == {"forward": 24.0, UNSEEN: 16.0}
    assert ledger.totals.coverage == pytest.approx(0.6)


def test_steps_of_which_only_the_length_is_known_are_no_knowledge():
    ledger = Ledger((RankLedger.of("0", np.arange(4), np.ones(4), {STEP: np.ones(4)}),))
    assert ledger.totals.coverage == 0


events = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.sampled_from([0, 1, 2])), min_size=1, max_size=12
)


@given(events)
def test_overlapping_operations_count_each_moment_once(recorded):
    """Compare with a count of microseconds, one by one; the innermost computation owns a moment, else communication."""
    names = ["forward-compute", "all-reduce", "optimizer"]
    start, seconds, code = (np.asarray(column) for column in zip(*recorded, strict=True))
    zeros = np.zeros(len(start), np.int64)
    rows = _Rows(
        ["0"], zeros, [""], zeros, names, code, zeros, start.astype(float), seconds.astype(float), {}, timed=True
    )
    found = _painted(rows, np.arange(len(start)), zeros, 1, _activities(rows))
    assert sum(float(values[0]) for values in found.values()) == pytest.approx(
        len({moment for begin, length, _ in recorded for moment in range(begin, begin + length)})
    )
    computing = {m for begin, length, kind in recorded if kind != 1 for m in range(begin, begin + length)}
    assert sum(float(found[key][0]) for key in ("forward", "optimizer") if key in found) == pytest.approx(
        len(computing)
    )


def test_ranks_are_compared_in_the_steps_that_all_have():
    def rank(name, steps):
        return RankLedger.of(name, np.asarray(steps), np.asarray(steps, float) + 1, {})

    ledger = Ledger((rank("0", [0, 1, 2, 4]), rank("1", [1, 2, 3, 4])))
    assert ledger.common_steps.tolist() == [1, 2, 4]
    assert ledger.table().tolist() == [[2, 3, 5], [2, 3, 5]]
