"""Things that the scripts share: a seed, small data, and one line at the end with the script's own counts and a digest.

The scripts contain nothing about a profiler.  Import this module first: it makes torchvision importable.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections.abc import Iterable

import numpy as np
import torch

SEED = 11
SCALE = int(os.environ.get("SCALE", "1"))  # longer trainings, whose verdicts are worth reading

torch.set_num_threads(1)
torch.manual_seed(SEED)
random.seed(SEED)
np.random.seed(SEED)  # noqa: NPY002 - the global state is what is compared


def _make_torchvision_importable() -> None:
    """Declare the operators that torchvision's wheel for CUDA cannot load beside a torch for the CPU; nothing here calls them."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _make_torchvision_importable.library = library  # it lives as long as the process


try:
    import torchvision  # noqa: F401 - libraries find it installed, and import it
except ImportError:
    pass
except RuntimeError:
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == "torchvision"]:
        del sys.modules[loaded]
    _make_torchvision_importable()


class Rows(torch.utils.data.Dataset):
    """Records of tensors, as tuples or, with names, as dicts."""

    def __init__(self, *columns: torch.Tensor, names: tuple[str, ...] = ()) -> None:
        self.columns, self.names = columns, names

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int):
        values = [column[index] for column in self.columns]
        return dict(zip(self.names, values, strict=True)) if self.names else tuple(values)


def finish(
    *models: torch.nn.Module, train: int, evaluation: int = 0, losses: Iterable = (), forwards: int | None = None
) -> None:
    """Print the script's own counts of steps, and a digest of losses, weights and random states.

    Args:
        models: those whose weights count.
        train: training steps as the library counted them.
        evaluation: batches of evaluation.
        losses: numbers or tensors.
        forwards: calls of outermost models, if the script counts them.
    """
    digest = hashlib.sha256()
    for loss in losses:
        digest.update(repr(float(loss)).encode())
    for model in models:
        for name, value in model.state_dict().items():
            digest.update(name.encode())
            if isinstance(value, torch.Tensor):
                digest.update(value.detach().to(torch.float64).contiguous().numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    digest.update(repr((random.getstate(), np.random.get_state()[1].tolist())).encode())  # noqa: NPY002
    said = {"train": train, "eval": evaluation, "digest": digest.hexdigest(), "forwards": forwards}
    sys.stdout.write("\nCOUNTED " + json.dumps(said) + "\n")
    sys.stdout.flush()
