"""The numbers that decide a verdict, each with its reason."""

from sm_profiler.metrics import thresholds

FLOOR = thresholds.FLOOR  # the share of a step that a finding must reach, and long steps, too

SURELY = 2  # times the floor; what is closer to it may not be worth it in another run
MIN_STEPS = 10  # fewer give no median that a single odd step cannot move
RARE = 0.25  # of the steps: exceptions; more are how the loop works
REPEATS = 3  # gaps between long steps, before they are called regular
MOST = 0.9  # of a whole, if nearly all is meant: of a gain, of gaps that agree
SEEN = 2 / 3  # of the time that must be known before a training is called healthy
TOGETHER = 0.8  # correlation from which two quantities have the same cause; it then explains 64 % of the variance
SAME_RANKS = 8  # most ranks that are named as slow; more are a property of the job
BEYOND_CHANCE = 4  # standard errors of a mean: among thousands of ranks none is beyond it by chance
INTERVAL = 0.9  # probability that a gain lies in its interval
ROUNDS = 400  # resamples; the ends of a 90 % interval then vary by a twentieth of its width
SHUFFLES = 99  # orders by chance: a stretch that beats all of them is chance in one of 100 cases
SEED = 20240229  # fixed, so that the same data always give the same verdict
MOST_SAVED = 0.99  # of the loop; no repair makes a loop more than a hundred times as fast
REPEAT = 0.03  # of a step; the same training on the same machine differs by this much from run to run
REPEAT_MOST = 0.15  # of a step; a machine that varies more is disturbed in this run only
