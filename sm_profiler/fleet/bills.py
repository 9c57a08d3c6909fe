"""Dollars of a row: billed seconds times price times instances."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from sm_profiler.errors import ConfigError
from sm_profiler.fleet.model import FleetJob, Range
from sm_profiler.fleet.rows import FAILURE
from sm_profiler.report.prices import built_in

MOST_DOLLARS = 1e6  # an hour


@attrs.frozen
class Prices:
    """Dollars an hour by instance type, and where they are from."""

    by_type: Mapping[str, float]
    origin: str

    @classmethod
    def of(cls, own: Mapping[str, object] | None) -> Prices:
        """Return the user's prices, or those of the package.

        Raises:
            ConfigError: a price is not a number of dollars.
        """
        table = built_in()
        if own is None:
            return cls(table["dollars_per_hour"], f"list prices of {table['region']}, {table['as_of']}")
        found = {}
        for kind, price in own.items():
            if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price <= MOST_DOLLARS:
                raise ConfigError(f"the price of {kind} must be a number of dollars an hour")
            found[kind] = float(price)
        return cls(found, "your price table")


def with_bill(job: FleetJob, prices: Prices) -> FleetJob:
    """Return a row with its dollars; without them if a price or the billed time is unknown."""
    each = _price(job, prices)
    if each is None or job.billable_s is None:
        return attrs.evolve(job, price=each, price_from=prices.origin if each is not None else "")
    second = each * job.instances / 3600
    bill = job.billable_s * second
    losses, left = [], bill
    for one in job.losses:
        usd = min(one.seconds * second, left)
        left = max(left - usd, 0.0)
        losses.append(attrs.evolve(one, usd=usd))
    gain = job.gain_s and Range(*(value * second for value in (job.gain_s.low, job.gain_s.value, job.gain_s.high)))
    lost = min(math.fsum(one.usd or 0.0 for one in losses), bill)
    return attrs.evolve(
        job,
        price=each,
        price_from=prices.origin,
        bill_usd=bill,
        saved_usd=job.saved_s * second if job.spot else None,
        losses=tuple(losses),
        lost_usd=lost,
        gain_usd=gain,
        interrupted_usd=min(job.interrupted_s * second, bill) if job.interrupted_s else None,
        failed_usd=bill if any(one.cause == FAILURE for one in losses) else None,
    )


def _price(job: FleetJob, prices: Prices) -> float | None:
    """Return the price of one instance, on average if there are several types."""
    if not job.types:
        return prices.by_type.get(job.instance_type)
    total = 0.0
    for kind, count in job.types.items():
        if kind not in prices.by_type:
            return None
        total += prices.by_type[kind] * count
    return total / max(sum(job.types.values()), 1)
