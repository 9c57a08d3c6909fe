"""Confidence in a finding, with the reason why it is not higher."""

from __future__ import annotations


class Confidence(str):
    """A confidence (`low`, `medium` or `high`) that has a reason.

    Attributes:
        reason: a few words; "" if the confidence is high.
    """

    __slots__ = ("reason",)

    reason: str

    def __new__(cls, level: str, reason: str = "") -> Confidence:  # typing.Self comes with Python 3.11
        """Return a confidence with its reason."""
        found = super().__new__(cls, level)
        found.reason = reason
        return found


# A wait or repeated work is lost; of other work, the records show what it costs and not what it is good for.
MAY_BE_NEEDED = "the training may need it"
OTHERS_WORK = "other programs use the cores"
RIVALLED = "another finding costs about as much"
CLOSE_TO_FLOOR = "it gains little more than the least worth naming"


def few_steps(steps: int) -> str:
    """Return that the steps are too few for high confidence."""
    return f"only {steps:,} steps"
