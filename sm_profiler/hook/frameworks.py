"""The frameworks whose import brings the hook, and the adapter of each.

To support another one, write a `FrameworkAdapter` in a package of its own and add a line here.
"""

from __future__ import annotations

from typing import NamedTuple


class Framework(NamedTuple):
    """One framework.

    Attributes:
        module: importing this module installs the hook.
        title: name shown to users.
        adapter: `module:class` of its `FrameworkAdapter`; empty if the framework is not supported yet.
    """

    module: str
    title: str
    adapter: str


FRAMEWORKS = (
    Framework("torch", "PyTorch", "sm_profiler.hook.pytorch.adapter:PyTorchAdapter"),
    Framework("tensorflow", "TensorFlow", ""),
)
