"""Every number that the fleet's analysis depends on, each with its reason."""

from sm_profiler.metrics.thresholds import Threshold

CHANCE = Threshold(0.01, "probability, times the number of tests; one wrong name in a hundred fleets")
SLOW_HOST = Threshold(1.05, "of the other nodes' time; less is the usual difference between machines of a type")
SLOW_JOBS = Threshold(2, "jobs at least; once is an event of that job")
PEERS = Threshold(3, "jobs on other machines at least, for a median that one of them cannot move")
REGRESSED = Threshold(0.10, "longer steps; less is the usual difference between two runs")
REGRESSED_SPREADS = Threshold(4.0, "deviations of the predecessors; chance does not reach this far in a thousand jobs")
LEAST_SPREAD = Threshold(0.02, "of a step; the same job run twice differs by this, however close its predecessors were")
PREDECESSORS = Threshold(3, "jobs at least; fewer have no spread")
MOST_PREDECESSORS = Threshold(10, "jobs; older ones ran other code")
NEW_NORMAL = Threshold(5, "slower jobs in a row; from then on they are what the next ones are compared with")
COMMON = Threshold(0.5, "of a group's jobs; a cause of fewer is not the group's")
COMMON_JOBS = Threshold(3, "jobs at least; fewer have their cause in common by chance")
COMMON_SHARE = Threshold(0.05, "of a job's billed time; less is lost by most jobs")
TOP = Threshold(10, "jobs; a week of work")
LARGE = Threshold(0.5, "of all machine time; a single job that has more of it decides every share")
LARGE_AMONG = Threshold(5, "jobs at least; of fewer, the largest often has most of the time")
