"""Numbers that decide what counts as a step, a long step or idle, each with its reason."""

from __future__ import annotations


class Threshold(float):
    """A number that a verdict depends on, with the reason for its value."""

    reason: str

    def __new__(cls, value: float, reason: str) -> Threshold:  # Self needs Python 3.11
        """Return the number with its reason."""
        threshold = super().__new__(cls, value)
        threshold.reason = reason
        return threshold


T = Threshold

MIN_STEPS = T(
    20, "in fewer training steps the slow first ones (allocation, worker start, autotuning) dominate the mean"
)
IN_TURNS = T(
    0.5, "of the training steps follow another one; where fewer do, what follows an evaluation is the usual step"
)
FORWARDS_IN_STEP = T(4, "forwards without gradients, as of an agent that acts four times for each step that it learns")
STEPS_IN_TURN = T(2, "training steps, as of the two networks of a GAN; what comes more rarely is an evaluation")
NEARLY_ALL = T(0.9, "of the turns; the others end an epoch or an episode")
SAMPLE_IDLE = T(10.0, "percent; a GPU sample below it counts as idle, as in the rules' gpu_threshold")
SLOWED = T(1.1, "times the usual step; a window that slows steps by more would shift the shares of their parts")
GPU_LAG_S = T(1.0, "second that NVML's use of a GPU looks back over")
WARM_LEFT = T(0.5, "of the steps; a loop that has hardly more steps than its start is judged as a whole")
GPU_NEVER = T(0.5, "percent mean use; even a warm-up kernel exceeds it")
LONG_STEP = T(2.0, "times the median; the jitter of a machine stays well below it")
LONG_STEP_MADS = T(8.0, "median absolute deviations above the median, for loops in which twice the median is normal")
LONG_STEP_MS = T(5.0, "longer than the median by this much; shorter hiccups come from the operating system")
JITTER = T(0.2, "of the excess of a usual long step; shorter ones are jitter in comparison")
SAME_PART = T(0.7, "of the lost time is in steps that grew in the same part; noise hits parts at random")
SAME_WAY = T(0.9, "cosine between the growth of one long step and of all, over the parts; 26 degrees of difference")
GREW_TOO = T(0.25, "of the growth of the part that grew most; parts with less are not worth naming")
STRATUM = T(8, "recorded steps that those around them are like: of fewer, one odd step shifts the shares")
WARM_UP_STEPS = T(3, "the first steps allocate, compile and start workers; they are long in every job")
RARE = T(0.10, "of the steps; what happens more often is how the loop works")
PERIOD_REPEATS = T(3, "occurrences needed to recognize a period")
PERIOD_MATCH = T(0.8, "of the expected occurrences must be long; one may be missing, and chance does not reach it")
PERIOD_COST = T(0.6, "of the time lost in long steps is on the period; the rest is the noise of a busy machine")
PERIOD_CHANCE = T(0.01, "that as many steps in any other order would look as regular; a run in a hundred is too many")
PERIOD_JITTER = T(0.15, "of the median gap; events that come by the clock vary by a few steps")
LOOSE_PERIOD = T(2, "steps; gaps this short agree within any tolerance, so an approximate period must be longer")
MAX_PERIOD = T(100_000, "steps; even an epoch is rarely longer")
MANY_LONG = T(0.5, "if half of all steps are long, there is no usual step to compare them with")
HANG_CPU = T(0.2, "of one core; a process that waits uses less, and one that computes a whole core or more")
FLOOR = T(
    0.05,
    "of the time that a repair certainly saves: less is not worth an engineer's hour, and healthy jobs lose as much",
)
