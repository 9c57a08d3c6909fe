"""Findings that others explain: seconds with a known cause are not listed again as a symptom."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from sm_profiler.report import policy
from sm_profiler.report.model import Finding


def without_symptoms(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out findings of which others explain most; what they explain of the rest no longer counts for its weight."""
    left = []
    for finding in findings:
        explained = sum(one.explains.get(finding.kind, 0.0) for one in findings if one is not finding)
        if explained >= policy.EXPLAINED * finding.share_of_time and explained > 0:
            continue
        left.append(attrs.evolve(finding, weight=max(finding.weight - explained, 0.0)) if explained else finding)
    return left
