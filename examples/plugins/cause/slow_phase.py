"""Two causes of time lost to a feature store: one for profiles, one for tables of times and GPU traces."""

from functools import partial

from sm_profiler.diagnosis import Cause
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.table.causes import activity
from sm_profiler.report import Finding

LEAST = 0.5  # share of the loop


def judge(case):
    """Return a finding if half of the loop is code between the phases of the model, or None."""
    between = case.mean(lambda rank: rank.share("between"))
    if between < LEAST:
        return None
    return Finding(
        Class.USER_PHASE,
        f"{between:.0%} of the loop is spent between the phases of the model.",
        (),
        "Ask the platform team: most of these scripts wait for the feature store.",
        between,
        label="Waiting for the feature store",
    )


CAUSE = Cause(
    "USER_PHASE",
    partial(activity, name="feature store"),  # steps without this operation of the table
    "The feature store takes {percent} of the time.",
    "Read the features of the next batch while this one is computed.",
)
