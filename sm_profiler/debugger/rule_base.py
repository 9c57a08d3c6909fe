"""The fields that every rule has."""

from __future__ import annotations

from typing import Any

import attrs

from sm_profiler.debugger.disguise import Disguised


@attrs.define(slots=False, order=True, on_setattr=None)
class RuleBase(Disguised):
    """A rule: its image, where it runs, where it writes, and its parameters."""

    name: Any
    image_uri: Any
    instance_type: Any
    container_local_output_path: Any
    s3_output_path: Any
    volume_size_in_gb: Any
    rule_parameters: Any

    @staticmethod
    def _set_rule_parameters(source: Any, rule_to_invoke: Any, rule_parameters: Any) -> dict[str, Any]:
        """A custom rule's parameters: its source, the rule in it, and the user's.

        Raises:
            ValueError: a source without a rule, or a rule without a source.
        """
        if bool(source) ^ bool(rule_to_invoke):
            raise ValueError("If you provide a source, you must also provide a rule to invoke (and vice versa).")
        named = {"source_s3_uri": source, "rule_to_invoke": rule_to_invoke}
        merged = {key: value for key, value in named.items() if value}
        merged.update(rule_parameters or {})
        return merged
