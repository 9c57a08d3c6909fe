"""Estimate the cost of lost time from a dated table of list prices, and from the user's own."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any, TypeVar

import attrs

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.model import Cost, Finding, Interval, Verdict
from sm_profiler.errors import ConfigError
from sm_profiler.metrics.job_metrics import JobMetrics
from sm_profiler.metrics.startup import billed_time

K = TypeVar("K")

MOST_DOLLARS = 1e6  # an hour
ANY = "*"  # in the user's prices: machines of any other type, or of an unknown one
PER_GPU = "gpu_hour"
OWN = "your price table"


@attrs.frozen
class Prices:
    """Dollars an hour by instance type.

    Attributes:
        by_type: of an instance.
        by_gpu: of a GPU, of types whose price depends on how many they have.
        own: types whose price is the user's.
        listed: origin of the others.
        guessed: types whose price in the package is no list price.
    """

    by_type: Mapping[str, float]
    by_gpu: Mapping[str, float]
    own: frozenset[str]
    listed: str
    guessed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, own: Mapping[str, object] | None = None) -> Prices:
        """Return the prices of the package, with the user's added to them or in their place.

        Args:
            own: type → dollars an hour, `{"gpu_hour": dollars}`, or None for a price that is not known; `*` is any other type.

        Raises:
            ConfigError: a price is something else.
        """
        table = built_in()
        by_type, by_gpu = dict(table["dollars_per_hour"]), {}
        for kind, given in (own or {}).items():
            by_type.pop(kind, None)
            if isinstance(given, Mapping) and set(given) == {PER_GPU}:
                by_gpu[kind] = _dollars(kind, given[PER_GPU])
            elif given is not None:
                by_type[kind] = _dollars(kind, given)
        listed = f"list prices of {table['region']}, {table['as_of']}"
        return cls(by_type, by_gpu, frozenset(own or ()), listed, frozenset(table["estimated"]))

    @property
    def origin(self) -> str:
        return f"{OWN}; others: {self.listed}" if self.own else self.listed

    def origin_of(self, kind: str) -> str:
        if kind in self.own or kind not in self.by_type:
            return OWN
        return f"{self.listed}, the price of {kind} estimated" if self.is_estimated(kind) else self.listed

    def is_estimated(self, kind: str) -> bool:
        """Return whether a type's price is neither the user's nor a list price."""
        return kind in self.guessed and kind not in self.own

    def unknown(self, kind: str) -> str:
        """Return that the price of a type is unknown, with the types that its name resembles; "" if it is known."""
        if self.price(kind, gpus=1) is not None:
            return ""
        near = difflib.get_close_matches(kind, [*self.by_type, *self.by_gpu], n=3)
        hint = f" (did you mean {', '.join(near)}?)" if near else ""
        return f"no price is known for {kind}{hint}: the report names no money; --prices FILE adds prices"

    def is_per_gpu(self, kind: str) -> bool:
        """Return whether a type's price is that of its GPUs, so that a machine without any has none."""
        for name in (kind, ANY):
            if name in self.by_type or name in self.own:
                return name in self.by_gpu
        return False

    def price(self, kind: str, gpus: float = 0.0) -> float | None:
        """Return dollars an hour of one instance that has some GPUs; None if they are unknown."""
        for name in (kind, ANY):
            if name in self.by_type:
                return self.by_type[name]
            if name in self.by_gpu and gpus > 0:
                return self.by_gpu[name] * gpus
            if name in self.own:  # the user's word that it has no price
                return None
        return None


def _dollars(kind: str, price: object) -> float:
    if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price <= MOST_DOLLARS:
        raise ConfigError(f'the price of {kind} must be a number of dollars an hour, or {{"{PER_GPU}": dollars}}')
    return float(price)


def built_in() -> dict[str, Any]:
    """Return the table of the package: `{"as_of": …, "region": …, "dollars_per_hour": {type: price}}`."""
    table: dict[str, Any] = json.loads((files("sm_profiler.report") / "prices.json").read_text("utf-8"))
    return table


def cost_of(metrics: JobMetrics, verdict: Verdict, prices: Mapping[str, object] | None = None) -> Cost | None:
    """Return the cost per hour and how much of it is lost; None if the instance type or its price is unknown."""
    table = Prices.of(prices)
    types = metrics.node_types or ({"": len(metrics.nodes)} if ANY in table.own and metrics.nodes else {})
    nodes = sum(types.values())
    each = {kind: table.price(kind, len(metrics.gpus) / nodes) for kind in types}
    if not types or any(price is None for price in each.values()):
        return None
    hourly = sum((each[kind] or 0.0) * count for kind, count in types.items())
    kind = " + ".join(types)
    machines = " + ".join(f"{count} x {kind or 'machine'}" for kind, count in types.items())
    lost_s, billed_s = lost_time(metrics, verdict)
    lost = round(hourly * lost_s / billed_s, 4) if billed_s else 0.0  # rounded once for sentence and page
    origin = "; ".join(dict.fromkeys(table.origin_of(kind) for kind in types))
    failed = ", as the job failed" if metrics.ending.failed else ""
    sentence = f"Estimate: about ${lost:.2f} of ${hourly:.2f} per hour is lost{failed} ({machines}; {origin})."
    if not lost:
        sentence = f"Estimate: the job costs about ${hourly:.2f} per hour ({machines}; {origin})."
    smaller = smaller_instance(metrics, kind, table.by_type) if kind in table.by_type and len(types) == 1 else None
    if smaller:
        used = "GPUs, GPU memory and CPUs" if metrics.gpus else "CPUs and memory"
        sentence += (
            f" Its {used} are less than half used: {smaller} would cost ${table.by_type[smaller] * nodes:.2f} per hour"
            f"{', an estimated price' if table.is_estimated(smaller) else ''}."
        )
    return Cost(
        instance_type=kind,
        nodes=nodes,
        per_hour=round(hourly, 4),
        lost_per_hour=lost,
        lost_usd=round(hourly * lost_s / 3600, 4),
        prices=origin,
        price_estimated=any(table.is_estimated(kind) for kind in types),
        smaller_instance=smaller,
        sentence=sentence,
    )


def lost_time(metrics: JobMetrics, verdict: Verdict) -> tuple[float, float]:
    """Return the billed seconds of a job that are lost, and all that are billed."""
    bill = billed_time(metrics.description)
    gap = 0.0 if bill is not None else metrics.between_attempts
    ran = metrics.duration - gap
    billed = bill.billable_s if bill is not None else ran
    if metrics.ending.failed:
        return billed, billed
    wanted = [("", max(metrics.interruptions[1] - gap, 0.0))]
    for finding in (verdict.main, *verdict.also):
        if not finding.kind.costs_time:
            continue
        whole = max(metrics.loop[1] - metrics.loop[0] - gap, 0.0) if finding.of == "loop" and metrics.loop else ran
        gain = finding.gain.seconds if finding.gain else None
        wanted.append(("", loss_of(finding, gain, whole, leads=finding is verdict.main)))
    ran = max(bill.training_s if bill is not None else 0.0, ran, billed)
    return sum(seconds for _, seconds in billed_losses(wanted, billed, ran)), billed


def loss_of(finding: Finding, gain: Interval | None, whole_s: float, *, leads: bool) -> float:
    """Return the seconds that a finding costs: what its repair saves; of low confidence, what it saves at least.

    Args:
        finding: the finding.
        gain: seconds that its repair saves; None if they are unknown.
        whole_s: the time that its share is one of.
        leads: it is the verdict, whose share counts without a gain; the time of another may be the verdict's.
    """
    if gain is not None:
        return gain.low if finding.confidence == "low" else gain.value
    return finding.share_of_time * whole_s if leads else 0.0


def billed_losses(wanted: Iterable[tuple[K, float]], billed_s: float, ran_s: float) -> list[tuple[K, float]]:
    """Return losses in billed seconds, which together are never more than what is billed; none of nothing.

    Args:
        wanted: a key and seconds of the job, in order.
        billed_s: billed seconds; spot instances are billed for a part of the time.
        ran_s: seconds that the job ran.
    """
    found, left = [], billed_s
    for key, seconds in wanted:
        taken = min(seconds * billed_s / ran_s, left) if ran_s > 0 else 0.0
        if taken > 0:
            left = max(left - taken, 0.0)
            found.append((key, taken))
    return found


def smaller_instance(metrics: JobMetrics, kind: str, price_of: Mapping[str, float]) -> str | None:
    """Return the next cheaper type of the same family if this one is less than half used in all respects."""
    used = [metrics.mean_of(metric) for metric in ("cpu", "gpu", "gpu_memory", "memory")]
    measured = [value for value in used if value is not None]
    if metrics.mean_of("cpu") is None or not measured or max(measured) > 100 * (limits.MAJORITY - limits.FLOOR):
        return None
    family = kind.rpartition(".")[0]
    cheaper = [
        (price, name)
        for name, price in price_of.items()
        if name.rpartition(".")[0] == family and price < price_of[kind]
    ]
    return max(cheaper)[1] if cheaper else None
