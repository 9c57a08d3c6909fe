"""A cause: a phase that the script declares takes more time than the model itself."""

from sm_profiler.diagnosis.classes import Class
from sm_profiler.report import Finding

LEAST = 0.5  # share of the loop


def judge(context):
    """Return a finding, or None."""
    outside = context.mean(lambda rank: rank.share("between"))
    if outside < LEAST:
        return None
    return Finding(
        Class.USER_PHASE,
        f"{outside:.0%} of the loop is spent between the phases of the model.",
        (),
        "Ask the platform team: most of these scripts wait for the feature store.",
        outside,
        label="Waiting for the feature store",
    )
