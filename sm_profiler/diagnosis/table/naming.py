"""The activity that an operation of a table belongs to, by its name."""

from __future__ import annotations

import re
from functools import cache

# The first pattern that is found in the lower-case name decides. Any other name is an activity in its own right.
ACTIVITIES = (
    ("data wait", r"data.?load|\bdata\b|input|fetch|next.?batch|wait_for_batch|^wait$"),
    ("saving", r"checkpoint|ckpt|\bsave"),
    ("evaluation", r"eval|valid"),
    ("garbage collection", r"^gc$|garbage"),
    ("logging", r"\blog(ging)?\b|print|metric"),
    ("communication", r"all.?reduce|all.?gather|reduce.?scatter|broadcast|all.?to.?all|barrier|nccl|[-_]?(send|recv|receive)\b|p2p|comm|sync"),
    ("optimizer", r"optim|clip.*grad|grad.*clip"),
    ("backward", r"backward|bwd"),
    ("forward", r"forward|fwd"),
    ("compute", r"compute|matmul|attention|mlp|layer"),
    ("step", r"^(train(ing)?|step|iter(ation)?)([-_ ]?(step|iter(ation)?|batch))?$"),
)  # fmt: skip
_COMPILED = tuple((activity, re.compile(pattern)) for activity, pattern in ACTIVITIES)


@cache
def activity_of(name: str) -> str:
    """Return the activity of an operation."""
    low = name.lower()
    if is_computation(low):
        return "backward" if runs_backward(low) else "forward" if re.search("forward|fwd", low) else "compute"
    return next((activity for activity, pattern in _COMPILED if pattern.search(low)), name)


@cache
def is_computation(name: str) -> bool:
    """Return whether an operation computes by its name, such as `backward-compute`."""
    return "compute" in name.lower()


@cache
def is_pass(name: str) -> bool:
    """Return whether an operation is a forward or backward pass, or other computation."""
    return is_computation(name) or activity_of(name) in ("forward", "backward")


@cache
def is_communication(name: str) -> bool:
    """Return whether ranks meet in an operation."""
    return activity_of(name) == "communication"


@cache
def is_sent(name: str) -> bool:
    """Return whether an operation sends to another pipeline stage."""
    return is_communication(name) and "send" in name.lower()


@cache
def is_received(name: str) -> bool:
    """Return whether an operation receives from another pipeline stage."""
    return is_communication(name) and "rec" in name.lower().replace("reduce", "")


@cache
def runs_backward(name: str) -> bool:
    """Return whether an operation belongs to the backward pass."""
    return re.search("backward|bwd", name.lower()) is not None
