"""Every built-in rule is registered, documented and described everywhere that lists the rules."""

import re
from pathlib import Path

import attrs
import pytest

import sm_profiler.rules
from sm_profiler.config import explaining
from sm_profiler.render import sections
from sm_profiler.rules import RULES, base

DOCS = Path(__file__).parents[2] / "docs"
by_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name())


@by_rule
def test_rule_is_exported(rule):
    assert getattr(sm_profiler.rules, rule.name()) is rule


@by_rule
def test_rule_is_documented(rule):
    rows = [line for line in (DOCS / "rules.md").read_text().splitlines() if re.match(rf"\|.*\b{rule.name()}\b", line)]
    assert rows, f"docs/rules.md: no row for {rule.name()}"
    for field in attrs.fields(rule.Parameters):
        assert re.search(rf"\b{field.name}\b", rows[0]), f"docs/rules.md: {rule.name()} lacks {field.name}"
    assert f"::: sm_profiler.rules.{rule.name()}\n" in (DOCS / "reference/rules.md").read_text() + "\n"


@by_rule
def test_configuration_check_has_the_parameters_of_a_rule(rule):
    expected = {field.name for field in attrs.fields(rule.Parameters)}
    assert set(explaining._RULE_PARAMETERS[rule.name()].split()) == expected


@by_rule
def test_report_has_a_text_about_a_rule(rule):
    assert sections.RULES[rule.name()].looks_for


def test_every_difference_of_the_service_is_used():
    rules = "".join(path.read_text() for path in Path(base.__file__).parent.glob("*.py"))
    assert all(f"differs.{field.name}" in rules for field in attrs.fields(base.Differences))
