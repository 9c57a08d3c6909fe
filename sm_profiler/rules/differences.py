"""Known differences of the managed service, as parameters of the rules."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

Compat: TypeAlias = Literal["service"] | None


@attrs.frozen(kw_only=True)
class Differences:
    """The known differences; each is False in the documented rules and True for `compat="service"`.

    Attributes:
        whole_windows: incomplete windows at the end of a job are not evaluated.
        edges_twice: rows that cross the edge of a window count in both windows.
        all_values: every value is kept; the quantiles of long jobs are exact.
        as_it_went: results are those of the moment at which they were found, in the order of appearance, and parts of a
            job cannot be merged.
        silent: a rule without data reports no reason.
        joint_points: a data point is what all nodes sampled within 20 ms (CPUBottleneck, IOBottleneck).
        swapped: CPU and GPU time have each other's label (CPUBottleneck, IOBottleneck, StepOutlier).
        silent_gpus: GPUs and nodes are evaluated again in windows without new values (LowGPUUtilization, BatchSize).
        shifted: the latest values are compared with one value less, which ends two before the last
            (GPUMemoryIncrease).
        across_nodes: cores and GPUs of equal names on several nodes are one (OverallSystemUsage, BatchSize).
        first_minute: `last_timestamp` is the job's first minute (BatchSize).
        lent_quartile: whiskers of a GPU's memory use the lower quartile of its utilization (BatchSize).
        added_up: all steps are evaluated again in each window, and their outliers are added up; a process has one phase,
            the last (StepOutlier).
        never: the rule never fires (MaxInitializationTime).
        file_order: the first and last step are those of the files (MaxInitializationTime).
        with_itself: a GPU is compared with itself (LoadBalancing).
        processes: few loading processes are enough, whether the loop waits or not (Dataloader).
        counted_again: time outside of steps is computed with its own last value among the steps
            (OverallFrameworkMetrics).
    """

    whole_windows: bool = False
    edges_twice: bool = False
    all_values: bool = False
    as_it_went: bool = False
    silent: bool = False
    joint_points: bool = False
    swapped: bool = False
    silent_gpus: bool = False
    shifted: bool = False
    across_nodes: bool = False
    first_minute: bool = False
    lent_quartile: bool = False
    added_up: bool = False
    never: bool = False
    file_order: bool = False
    with_itself: bool = False
    processes: bool = False
    counted_again: bool = False


DOCUMENTED = Differences()
SERVICE = Differences(**{field.name: True for field in attrs.fields(Differences)})


def differences(compat: Compat) -> Differences:
    """Return the differences of a kind of results."""
    return SERVICE if compat == "service" else DOCUMENTED
