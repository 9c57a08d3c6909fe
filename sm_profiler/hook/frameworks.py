"""The frameworks whose import brings the hook, and the adapter of each.

A process may import several; the hook arms them all.  Until one of them is seen to train, the first in this order that
was imported names the files.  To support another framework, write a `FrameworkAdapter` in a package of its own and add
a line here.
"""

from __future__ import annotations

from typing import NamedTuple


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
    Framework("keras", "Keras", "sm_profiler.hook.keras.adapter:KerasAdapter"),
    Framework("tensorflow", "TensorFlow", "sm_profiler.hook.tensorflow.adapter:TensorFlowAdapter"),
    Framework("jax", "JAX", "sm_profiler.hook.jax.adapter:JaxAdapter"),
)
WINDOWS = frozenset({"python", "detailed", "dataloader"})  # that exist for some framework
