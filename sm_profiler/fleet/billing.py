"""The bill of each job: billed seconds times price times instances."""

from __future__ import annotations

import math

import attrs

from sm_profiler.diagnosis.model import Interval
from sm_profiler.fleet.model import FleetJob
from sm_profiler.fleet.rows import FAILURE
from sm_profiler.report.prices import Prices


def with_bill(job: FleetJob, prices: Prices) -> FleetJob:
    """Return a row with its dollars; without them if a price or the billed time is unknown."""
    each = _price(job, prices)
    if each is None or job.billable_s is None:
        return attrs.evolve(job, price=each, price_from=_origin(job, prices) if each is not None else "")
    second = each * job.instances / 3600
    bill = job.billable_s * second
    losses, left = [], bill
    for loss in job.losses:
        usd = min(loss.seconds * second, left)
        left = max(left - usd, 0.0)
        losses.append(attrs.evolve(loss, usd=usd))
    gain = job.gain_s and Interval(*(value * second for value in (job.gain_s.low, job.gain_s.value, job.gain_s.high)))
    lost = min(math.fsum(loss.usd or 0.0 for loss in losses), bill)
    return attrs.evolve(
        job,
        price=each,
        price_from=_origin(job, prices),
        bill_usd=bill,
        saved_usd=job.saved_s * second if job.spot else None,
        losses=tuple(losses),
        lost_usd=lost,
        gain_usd=gain,
        interrupted_usd=min(job.interrupted_s * second, bill) if job.interrupted_s else None,
        failed_usd=bill if any(loss.cause == FAILURE for loss in losses) else None,
    )


def _price(job: FleetJob, prices: Prices) -> float | None:
    """Return the price of one instance, on average if there are several types."""
    gpus = job.gpus / job.instances
    if not job.types:
        return prices.price(job.instance_type, gpus)
    total = 0.0
    for kind, count in job.types.items():
        price = prices.price(kind, gpus)
        if price is None:
            return None
        total += price * count
    return total / max(sum(job.types.values()), 1)


def _origin(job: FleetJob, prices: Prices) -> str:
    return "; ".join(dict.fromkeys(prices.origin_of(kind) for kind in job.types or (job.instance_type,)))
