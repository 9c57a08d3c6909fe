"""Base of the built-in rules: parameters, results, and both ways in (columns and event objects).

`Differences` lists what the managed service is known to have computed differently.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

import attrs
import numpy as np

from sm_profiler.errors import ConfigError
from sm_profiler.folding import EvaluationWindow, in_timeline_order
from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints, Mask, SystemColumns
from sm_profiler.formats.event_objects import event_columns, system_columns
from sm_profiler.rules.results import RuleResult
from sm_profiler.rules.rule import SCAN_INTERVAL_US, Rule

if TYPE_CHECKING:
    from typing_extensions import Self

MIN_INTERVAL_US = 100_000
MAX_INTERVAL_US = 100 * 365 * 86_400_000_000  # a longer one is one window anyway
_OF_SERVICE = "default of the service"
P = TypeVar("P", bound=attrs.AttrsInstance)

Check: TypeAlias = "Callable[[attrs.Attribute[Any], object], object]"

Compat: TypeAlias = Literal["service"] | None

CPU_UTILIZATION, IO_WAIT = "CPUUtilization", "I/OWaitPercentage"
GPU_UTILIZATION, GPU_MEMORY = "GPUUtilization", "GPUMemoryUtilization"
MEMORY_NAME = "MemoryUsedPercent"  # name of rows that have no dimension
MAX_VALUE = 1e15  # of a metric; larger ones are damaged, and sums of them would overflow
_NODE = re.compile(r"(algo-\d+)(?:-|$)", re.ASCII)


def as_number(value: object) -> object:
    """Convert a string, as the API carries all values, to a number; leave anything else to the validator."""
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value
        return int(number) if number.is_integer() and "." not in value and "e" not in value.lower() else number
    return value


def _check_number(field: attrs.Attribute[Any], value: object) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an int above the largest float
        pass
    raise ConfigError(f"{field.name} must be a number, not {str(value)[:60]!r}")


def _is_percentile(field: attrs.Attribute[Any], value: object) -> None:
    if not 0 <= _check_number(field, value) <= 100:  # percent
        raise ConfigError(f"{field.name} must be a valid percentile!")


def _is_positive(field: attrs.Attribute[Any], value: object) -> None:
    if _check_number(field, value) <= 0:
        raise ConfigError(f"{field.name} must be a positive integer!")


def _is_whole(field: attrs.Attribute[Any], value: object) -> None:
    if not _check_number(field, value).is_integer():
        raise ConfigError(f"{field.name} must be a positive integer!")


def _is_count(field: attrs.Attribute[Any], value: object) -> None:
    _is_positive(field, value)
    _is_whole(field, value)


def _is_whole_length(field: attrs.Attribute[Any], value: object) -> None:
    _is_whole(field, value)
    if _check_number(field, value) < 0:
        raise ConfigError(f"{field.name} must not be negative")


def _as_count(value: object) -> object:
    number = as_number(value)
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _as_text(value: object) -> object:
    return None if value is None or (isinstance(value, str) and value in {"", "None"}) else value


def _is_text(field: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{field.name} must be a string, not {str(value)[:60]!r}")


def _field(
    default: object, converter: Callable[[object], object], check: Check, in_service: Check, of_service: object = None
) -> Any:
    metadata = {None: check, "service": in_service, _OF_SERVICE: default if of_service is None else of_service}
    return attrs.field(default=default, converter=converter, metadata=metadata)


def percentile(default: float) -> Any:
    """Declare a field for a percentage, 0 to 100."""
    return _field(default, as_number, _is_percentile, _check_number)


def positive(default: float, *, of_service: float | None = None) -> Any:
    """Declare a field for a number above zero; the service may have had another default."""
    return _field(default, as_number, _is_positive, _check_number, of_service)


def count(default: int) -> Any:
    """Declare a field for a whole number above zero."""
    return _field(default, _as_count, _is_count, _is_whole)


def length(default: int) -> Any:
    """Declare a field for a number of latest values, above zero; for the service, zero means all values."""
    return _field(default, _as_count, _is_count, _is_whole_length)


def text(default: str | None = None) -> Any:
    """Declare a field for a text or None."""
    return _field(default, _as_text, _is_text, _is_text)


def interval(value: object) -> int:
    """Convert a length of time in microseconds.

    Raises:
        ConfigError: it is not a whole number, or shorter than a sampling interval.
    """
    number = _as_count(value)
    if isinstance(number, bool) or not isinstance(number, int) or number <= 0:
        raise ConfigError("scan_interval_us must be a positive integer!")
    if number < MIN_INTERVAL_US:
        raise ConfigError(f"scan_interval_us must be at least {MIN_INTERVAL_US}, the shortest sampling interval")
    return min(number, MAX_INTERVAL_US)


def build(kind: type[P], rule: str, values: Mapping[str, object], compat: str | None = None) -> P:
    """Build the parameters of a rule.

    Args:
        kind: attrs class with the fields that this module declares.
        rule: name for messages.
        values: what was given; strings are converted.
        compat: "service" accepts numbers outside a parameter's range, as the service's container did: the SDK refused
            them before.

    Raises:
        ConfigError: an unknown name or a bad value; one line with the rule's name.
    """
    fields = attrs.fields(kind)
    known = {field.name for field in fields}
    unknown = [name for name in values if name not in known]
    if unknown:
        offered = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"{rule} has no parameter {unknown[0]!r}; it has: {offered}")
    if compat is not None:
        values = {**{field.name: field.metadata[_OF_SERVICE] for field in fields}, **values}
    built = kind(**values)
    try:
        for field in fields:
            field.metadata[compat](field, getattr(built, field.name))
    except ConfigError as error:
        raise ConfigError(f"{rule}: {error}") from None
    return built


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
    return SERVICE if compat == "service" else DOCUMENTED


@attrs.frozen
class NoParameters:
    """A rule without parameters."""


class BuiltinRule(Rule):
    """A built-in rule: a fold over windows.

    A subclass names its `Parameters` and implements `evaluate`, `absorb` and `result`. What the managed service computed
    differently is a named difference (`sm_profiler.rules.base`), which a subclass asks for where it matters.

    Attributes:
        Parameters: attrs class of the rule's parameters.
        parameters: the parameters in force.
        compat: "service" or None.
    """

    Parameters: ClassVar[type[Any]] = NoParameters

    def __init__(self, base_trial: Any = None, *, compat: Compat = None, **values: object) -> None:
        """Create the rule.

        Args:
            base_trial: only for the old API's `invoke_rule`.
            compat: "service" for the managed service's numbers.
            values: the parameters; values may be strings.

        Raises:
            ConfigError: an unknown parameter or a bad value.
        """
        if compat not in {None, "service"}:
            raise ConfigError(f'compat is None or "service", not {compat!r}')
        super().__init__(base_trial)
        self.rule_name = self.name()
        self.compat = compat
        self.scan_interval_us = interval(values.pop("scan_interval_us", SCAN_INTERVAL_US))
        self.parameters = self.read_parameters(values)
        self.start()

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    @property
    def differs(self) -> Differences:
        """Differences from the documented rules that apply."""
        return differences(self.compat)

    def rows(self, window: EvaluationWindow) -> tuple[SystemColumns, EventColumns]:
        """Return the rows of a window that count in it."""
        if self.differs.edges_twice:
            return window.system, window.events
        return window.new_system, window.new_events

    def start(self) -> None:
        """Set up the state of the fold."""

    def read_parameters(self, values: Mapping[str, object]) -> Any:
        return build(self.Parameters, self.name(), self.accepted(values), self.compat)

    @classmethod
    def check_parameters(cls, values: Mapping[str, object], compat: Compat = None) -> None:
        """Raise ConfigError if a parameter is unknown or bad."""
        build(cls.Parameters, cls.name(), cls.accepted(values), compat)

    @classmethod
    def parameter_names(cls) -> set[str]:
        """Return the names of the parameters that users may give."""
        return {field.name for field in attrs.fields(cls.Parameters)}

    @classmethod
    def accepted(cls, values: Mapping[str, object]) -> dict[str, object]:
        """Map the names that users may give to those of `Parameters`."""
        return dict(values)

    def shown_parameters(self) -> dict[str, object]:
        """Return the parameters as the report names them, in its order."""
        return attrs.asdict(self.parameters)

    def update(self, window: EvaluationWindow) -> bool:
        """Evaluate the next window; return True if it meets the condition."""
        if self.differs.whole_windows and not window.evaluated_by_service:
            return False
        return self.evaluate(window)

    @abstractmethod
    def evaluate(self, window: EvaluationWindow) -> bool:
        """Evaluate a window; return True if it meets the condition."""

    def merge(self, other: Self) -> None:
        """Absorb a rule that saw another part of the same job: other nodes or other minutes.

        Raises:
            ValueError: one of the two has compat="service", which cannot be merged.
        """
        if self.differs.as_it_went or other.differs.as_it_went:
            raise ValueError(f'{self.name()} with compat="service" cannot be merged')
        self.absorb(other)

    @abstractmethod
    def absorb(self, other: Any) -> None:
        """Add the state of another part of the job."""

    @abstractmethod
    def result(self) -> RuleResult:
        """Return the result for all windows so far; more windows may follow."""

    def _result(
        self,
        triggered: int,
        violations: int,
        datapoints: int,
        details: Mapping[str, Any],
        not_evaluated: str | None = None,
    ) -> RuleResult:
        missing = None if self.differs.silent else not_evaluated
        return RuleResult(triggered, violations, datapoints, details, self.shown_parameters(), missing)

    def invoke_for_timerange(
        self, start_us: float, end_us: float, system_events: Sequence[Any], framework_events: Sequence[Any]
    ) -> bool:
        """Evaluate a window given as event objects (the old API); return True if it meets the condition."""
        system, events = system_columns(system_events), in_timeline_order(event_columns(framework_events))
        new_system = system[system.timestamp * 1e6 < end_us]
        new_events = events[(events.start_us >= start_us) & (events.start_us < end_us)]
        return self.update(EvaluationWindow(int(start_us), int(end_us), system, events, new_system, new_events))

    def _start_report(self) -> None:
        """Skip the old API's report: it is built from the result."""

    @property
    def report(self) -> dict[str, Any]:  # type: ignore[override]
        """The report object, as the old API names it."""
        return self.result().as_dict()


def values_per_gpu(system: SystemColumns, dimension: str) -> Iterator[tuple[str, str, Floats]]:
    """Yield (node, GPU, plausible values in the order of the rows); pairs in order of first appearance."""
    rows = np.flatnonzero(system.dimension.mask(dimension) & _is_plausible(system.value))
    if len(rows) == 0:
        return
    width = len(system.name.values)
    keys = system.node.codes[rows].astype(np.int64) * width + system.name.codes[rows]
    distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(system.value[rows][order], np.cumsum(np.bincount(inverse))[:-1])
    for index in np.argsort(first):
        node, name = divmod(int(distinct[index]), width)
        yield system.node.values[node], system.name.values[name], parts[index]


def sums_per_moment(system: SystemColumns, chosen: Mask) -> Iterator[tuple[str, Floats]]:
    """Yield (node, sum of the chosen rows at each timestamp); nodes and timestamps in order of first appearance."""
    for node, own in system.node.groups(chosen & _is_plausible(system.value)):
        times = system.timestamp[own]
        if (np.diff(times) >= 0).all():
            points = np.cumsum(np.diff(times, prepend=times[0]) != 0)
            yield node, np.bincount(points, system.value[own]).astype(np.float64)
        else:
            _, first_at, inverse = np.unique(times, return_index=True, return_inverse=True)
            sums = np.bincount(inverse, system.value[own]).astype(np.float64)
            yield node, sums[np.argsort(first_at)]


def names_by_node(system: SystemColumns, chosen: Mask) -> dict[str, set[str]]:
    """Return node → the names of its chosen rows; every node of the rows has an entry."""
    found: dict[str, set[str]] = {node: set() for node in system.node.present()}
    for node, rows in system.node.groups(chosen):
        found[node].update(system.name[rows].present())
    return found


def _is_plausible(values: Floats) -> Mask:
    plausible: Mask = np.abs(values) <= MAX_VALUE  # False for NaN
    return plausible


def gpu_data_missing(datapoints: int, patience: int) -> str | None:
    """Return why a rule about GPUs cannot be evaluated, or None if it can."""
    if datapoints == 0:
        return "no GPU metrics"
    return f"{datapoints} data points per GPU, patience is {patience}" if datapoints <= patience else None


def node_of(process: str) -> str:
    """Return the node of a process: algo-1 for algo-1-0; a host name without the number of the process."""
    match = _NODE.match(process)
    return match[1] if match else re.sub(r"^\d+-|-\d+$", "", process)


def is_numbered(node: str) -> bool:
    """Return whether a node has the form of SageMaker's names, as the names of its processes then have."""
    return _NODE.match(node) is not None


def node_groups(processes: Category) -> dict[str, Ints]:
    """Return node → the numbers of its rows, for the column of the rows' processes."""
    names = [node_of(process) for process in processes.values]
    numbers = Category.of(names)
    return dict(Category(numbers.codes[processes.codes], numbers.values).groups()) if names else {}
