"""Every number that the fleet's analysis depends on, each with its reason."""

from sm_profiler.metrics.thresholds import Threshold as T  # noqa: N817 - as short as there

CHANCE = T(0.01, "probability, times the number of tests; one wrong name in a hundred fleets")
SLOW_HOST = T(1.05, "of the other nodes' time; less is the usual difference between machines of a type")
SLOW_JOBS = T(2, "jobs at least; once is an event of that job")
PEERS = T(3, "jobs on other machines at least, for a median that one of them cannot move")
REGRESSED = T(0.10, "longer steps; less is the usual difference between two runs")
REGRESSED_SPREADS = T(4.0, "deviations of the predecessors; chance does not reach this far in a thousand jobs")
LEAST_SPREAD = T(0.02, "of a step; the same job run twice differs by this, however close its predecessors were")
PREDECESSORS = T(3, "jobs at least; fewer have no spread")
MOST_PREDECESSORS = T(10, "jobs; older ones ran other code")
NEW_NORMAL = T(5, "slower jobs in a row; from then on they are what the next ones are compared with")
COMMON = T(0.5, "of a group's jobs; a cause of fewer is not the group's")
COMMON_JOBS = T(3, "jobs at least; fewer have their cause in common by chance")
COMMON_SHARE = T(0.05, "of a job's billed time; less is lost by most jobs")
TOP = T(10, "jobs; what one can look into in a week")
LARGE = T(0.5, "of all machine time; a single job that has more of it decides every share")
LARGE_AMONG = T(5, "jobs at least; of fewer, one is often the largest by far")
