"""Conditions of `--fail-on`: limits of waste, cost and coverage."""

from __future__ import annotations

import re

import attrs

from sm_profiler.errors import ConfigError
from sm_profiler.fleet.model import Totals
from sm_profiler.fleet.wording import coverage, money
from sm_profiler.formatting import percent

FORMS = "waste>20%, cost>500 (dollars) or coverage<80%, several separated by commas"
_CONDITION = re.compile(r"(waste|cost|coverage)\s*([<>])\s*\$?\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(%?)")
_SIGN = {"waste": ">", "cost": ">", "coverage": "<"}
_WHOLE = 100.0  # percent


@attrs.frozen
class Condition:
    """One limit; a share for waste and coverage, dollars for cost."""

    name: str
    limit: float

    def text(self) -> str:
        """Return the condition as it is written."""
        limit = f"{self.limit:g}" if self.name == "cost" else f"{round(_WHOLE * self.limit, 6):g}%"
        return f"{self.name}{_SIGN[self.name]}{limit}"

    def broken_by(self, totals: Totals) -> str:
        """Return what the jobs have instead; "" if they keep the limit or what it concerns is unknown."""
        if self.name == "cost":
            return money(totals.bill_usd) if totals.bill_usd > self.limit else ""
        value = totals.waste if self.name == "waste" else totals.coverage
        if value is None or not (value > self.limit if self.name == "waste" else value < self.limit):
            return ""
        return f"{_WHOLE * value:.3g} %"

    def has_nothing(self, totals: Totals) -> bool:
        """Return whether there is nothing that the condition could be checked for: it is not kept then."""
        if self.name == "cost":
            return not totals.priced
        return (totals.waste if self.name == "waste" else totals.coverage) is None

    def unknown_for(self, totals: Totals) -> str:
        """Return why the condition could not be checked, or only for a part of the jobs; "" if it was."""
        if not totals.jobs:
            return f"{self.text()}: there are no jobs to check; is the source right, and are profiles there?"
        if self.name == "cost" and (left := totals.jobs - totals.priced):
            return f"{self.text()}: the bill of {left:,} of {totals.jobs:,} jobs is unknown and not counted"
        if self.has_nothing(totals):
            return f"{self.text()}: nothing is known, no job was judged"
        if self.name == "waste" and (covered := coverage(totals)):
            return f"{self.text()} was checked for what was judged. {covered}"
        if self.name == "coverage" and totals.coverage is not None:
            counted = percent(totals.coverage)
            if (covered := coverage(totals)) and f" {counted} of" not in covered:  # the summary has another share
                return f"{self.text()}: {counted} counts jobs whose time or price is unknown as average ones. {covered}"
        return ""


def conditions_of(text: str) -> tuple[Condition, ...]:
    """Read conditions separated by commas, such as `waste>20%,coverage<80%`.

    Raises:
        ConfigError: a part of the text is not a condition.
    """
    return tuple(_condition(part.strip()) for part in text.split(","))


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if not found:
        raise ConfigError(f"{text!r} is not a condition: expected {FORMS}")
    name, sign, number, unit = found.groups()
    if sign != _SIGN[name]:
        raise ConfigError(
            f"{text}: {name} has {'an upper' if _SIGN[name] == '>' else 'a lower'} limit, {name}{_SIGN[name]}N"
        )
    if name == "cost":
        if unit:
            raise ConfigError(f"{text}: the cost is in dollars, without %")
        return Condition(name, float(number))
    if not unit:
        raise ConfigError(f"{text}: {name} is in percent: {name}{sign}{number}%")
    if float(number) > _WHOLE:
        raise ConfigError(f"{text}: {name} is at most 100 %")
    return Condition(name, float(number) / _WHOLE)
