"""The activity that an operation of a table belongs to, by its name."""

from __future__ import annotations

import re
from functools import cache

# The first pattern that is found in the words of a name decides. Any other name is an activity in its own right.
ACTIVITIES = (
    ("data wait", r"data ?load|\bdata\b(?! parallel)|\binput|fetch|(next|get) ?batch|\bbatch (wait|load|gen)|wait for batch|^wait$"),
    ("saving", r"checkpoint|ckpt|\bsav(e|ing)"),
    ("evaluation", r"\beval|\bvalid"),
    ("garbage collection", r"\bgc\b|garbage"),
    ("logging", r"\blog(s|ging|ger)?\b|\bprint|\bmetric|tensorboard|wandb"),
    ("communication", r"all ?reduce|all ?gather|reduce ?scatter|broadcast|all ?to ?all|barrier|nccl|\bi?(send|recv|receive)\b|p2p|\bcomm|(?<!a)sync"),
    ("optimizer", r"optim|\bopt\b|clip.*grad|grad.*clip"),
    ("backward", r"backward|\bbwd|back ?prop"),
    ("forward", r"forward|\bfwd"),
    ("compute", r"compute|matmul|attention|\bmlp|layer"),
    ("step", r"^(train(ing)?|step|iter(ation)?)( ?(step|iter(ation)?|batch))?$"),
)  # fmt: skip
_WITHIN_STEP = frozenset(activity for activity, _ in ACTIVITIES) - {"step"}
_COMPILED = tuple((activity, re.compile(pattern)) for activity, pattern in ACTIVITIES)


@cache
def words_of(name: str) -> str:
    """Return the words of a name in lower case: `data_time`, `dataTime` and `Data-Time` are the same."""
    return re.sub(r"[^a-z0-9]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()).strip()


@cache
def activity_of(name: str) -> str:
    """Return the activity of an operation."""
    words = words_of(name)
    if "compute" in words:
        return "backward" if runs_backward(name) else "forward" if re.search("forward|fwd", words) else "compute"
    return next((activity for activity, pattern in _COMPILED if pattern.search(words)), name)


@cache
def is_activity(name: str) -> bool:
    """Return whether an operation belongs to an activity within a step by its name."""
    return activity_of(name) in _WITHIN_STEP


@cache
def is_pass(name: str) -> bool:
    """Return whether an operation is a forward or backward pass, or other computation."""
    return activity_of(name) in ("forward", "backward", "compute")


@cache
def is_communication(name: str) -> bool:
    """Return whether ranks meet in an operation."""
    return activity_of(name) == "communication"


@cache
def is_point_to_point(name: str) -> bool:
    """Return whether an operation sends to another pipeline stage, or receives from it."""
    return is_communication(name) and re.search(r"\bi?(send|rec)", words_of(name)) is not None


@cache
def is_sent(name: str) -> bool:
    """Return whether an operation sends to another pipeline stage."""
    return is_point_to_point(name) and "send" in words_of(name)


@cache
def runs_backward(name: str) -> bool:
    """Return whether an operation belongs to the backward pass."""
    return re.search("backward|bwd", words_of(name)) is not None
