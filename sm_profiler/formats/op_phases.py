"""Phases of a training step from the names that frameworks give their operations."""

from __future__ import annotations

import re

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

_BACKWARD = re.compile(r"(?:^|/)gradient_tape/|transpose\(jvp\(|transpose\(")
_FORWARD = re.compile(r"(?:^|[/(])jvp\(")
# Keras puts the optimizer's name in front of what it computes.
_OPTIMIZERS = frozenset(
    (
        "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl", "lamb", "lion", "loss_scale_optimizer",
        "muon", "nadam", "rmsprop", "sgd", "schedulefreeadamw",
    )
)  # fmt: skip
_SCOPES = 3  # at the start of a name, one of which may be the optimizer: `StatefulPartitionedCall/adam/Sub`, `jit(train_step)/adam/mul`


def phase_of(name: str, *, tensorflow: bool) -> str:
    """Return the phase of an operation; "" if its name does not show it.

    Args:
        name: the framework's name: `gradient_tape/dense/MatMul`, `jit(step)/transpose(jvp(Net))/dot_general`.
        tensorflow: the name is one of TensorFlow, where what is neither gradient nor optimizer is the model.
    """
    if _BACKWARD.search(name):
        return BACKWARD
    if any(re.sub(r"_\d+$", "", scope) in _OPTIMIZERS for scope in name.split("/")[:_SCOPES]):
        return OPTIMIZER
    if _FORWARD.search(name) or (tensorflow and "/" in name.removeprefix("StatefulPartitionedCall/")):
        return FORWARD
    return ""
