"""A gain as one sentence."""

from __future__ import annotations

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.model import Finding, Gain, Interval
from sm_profiler.formatting import duration, percent

CLEAR_FACTOR = 1.1  # smaller speedups are worded as a share of the time
CENT = 0.01
WIDE = 10.0  # times its low end, from which on the high end of a range is left out
_MOST = 0.999 / (1 - limits.MOST_SAVED)


def gain_of_finding(finding: Finding) -> str:
    """Return what the repair of a finding saves; empty if that is unknown or nothing."""
    if finding.larger_batch:
        return gain_sentence(
            finding.gain, subject=f"A batch {limits.BATCH_LARGER:g} times as large", per=" for each sample"
        )
    return gain_sentence(finding.gain)


def gain_sentence(gain: Gain | None, *, subject: str = "Repairing it", per: str = "") -> str:
    """Return what a repair saves; empty if that is unknown or nothing."""
    if gain is None or gain.speedup.high <= 1.0:
        return ""
    money = f", saves about {dollars(gain.usd.value)}" if gain.usd and gain.usd.value >= CENT else ""
    money += " at an estimated price" if money and gain.usd_is_rough else ""
    if gain.of == "job":
        seconds = _range(duration(gain.seconds.low), duration(gain.seconds.high))
        return f"{subject} saves {seconds} of the job{money.replace(', saves', ',')}."
    if gain.of == "steps":
        return f"{subject} makes these steps {factors(gain.speedup)} times as fast{money}."
    if gain.speedup.value < CLEAR_FACTOR:
        share = gain.share_of_loop
        return f"{subject} saves {_range(percent(share.low), percent(share.high))} of the loop{money.replace(', saves', ',')}."
    return f"{subject} makes the loop {factors(gain.speedup)} times as fast{per}{money}."


def factors(speedup: Interval) -> str:
    """Format a range of speedups: `1.6 to 1.8`, `more than 4.9`."""
    if speedup.high >= _MOST or speedup.high > WIDE * speedup.low:  # a cap, or a range of all sizes: no estimate
        return f"more than {speedup.low:.1f}"
    digits = 0 if speedup.low >= 10 else 1 if speedup.high - speedup.low >= 0.15 else 2  # digits shown
    return _range(f"{speedup.low:.{digits}f}", f"{speedup.high:.{digits}f}")


def dollars(amount: float) -> str:
    """Format dollars: `$210`, `$2.10`."""
    return f"${amount:,.0f}" if amount >= 10 else f"${amount:.2f}"  # digits shown


def _range(low: str, high: str) -> str:
    """Join the ends of a range; a unit that both have is written once."""
    if low == high:
        return low
    first, _, unit = low.partition(" ")
    return f"{first if unit == high.partition(' ')[2] else low} to {high}"
