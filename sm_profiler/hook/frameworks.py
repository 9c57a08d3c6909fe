"""The frameworks whose import begins the hook, and the adapter of each.

A process may import several; the hook arms them all.  Until one of them is seen to train, the first in this order that
was imported names the files.  Adapters of other packages come last (`sm_profiler.plugins`).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from sm_profiler import plugins


class Framework(NamedTuple):
    """One framework.

    Attributes:
        module: importing this module installs the hook.
        title: name shown to users.
        adapter: `module:class` of its `FrameworkAdapter`.
    """

    module: str
    title: str
    adapter: str


FRAMEWORKS = (
    Framework("torch", "PyTorch", "sm_profiler.hook.pytorch.adapter:PyTorchAdapter"),
    Framework("keras", "Keras", "sm_profiler.hook.keras:KerasAdapter"),
    Framework("tensorflow", "TensorFlow", "sm_profiler.hook.tensorflow.adapter:TensorFlowAdapter"),
    Framework("jax", "JAX", "sm_profiler.hook.jax.adapter:JaxAdapter"),
)
WINDOWS = frozenset({"python", "detailed", "dataloader"})  # that exist for some framework


@cache
def frameworks() -> tuple[Framework, ...]:
    """Return all frameworks, those of other packages included; no adapter is imported."""
    own = {framework.module for framework in FRAMEWORKS}
    found = [Framework(entry.name, entry.name, entry.value) for entry in plugins.declared(plugins.ADAPTERS)]
    return (*FRAMEWORKS, *(framework for framework in found if framework.module not in own))
