"""Fields of every rule.

The class has the SDK's name, which is part of its error messages; in `debugger.py` that name is the SDK's own class.
"""

from __future__ import annotations

from typing import Any

import attrs

from sm_profiler.debugger.sdk_compat import SdkCompatible


@attrs.define(slots=False, order=True, on_setattr=None)
class RuleBase(SdkCompatible):
    """Image, machine, output and parameters of a rule."""

    name: Any
    image_uri: Any
    instance_type: Any
    container_local_output_path: Any
    s3_output_path: Any
    volume_size_in_gb: Any
    rule_parameters: Any

    @staticmethod
    def _set_rule_parameters(source: Any, rule_to_invoke: Any, rule_parameters: Any) -> dict[str, Any]:
        """Return a custom rule's parameters: its source, the rule's name in it, and the user's.

        Raises:
            ValueError: a source without a rule, or a rule without a source.
        """
        if bool(source) ^ bool(rule_to_invoke):
            raise ValueError("If you provide a source, you must also provide a rule to invoke (and vice versa).")
        named = {"source_s3_uri": source, "rule_to_invoke": rule_to_invoke}
        merged = {key: value for key, value in named.items() if value}
        merged.update(rule_parameters or {})
        return merged
