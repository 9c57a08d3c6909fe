"""A training with DeepSpeed on the CPU; the stage of ZeRO is the argument."""

import sys

import deepspeed
import loop
import torch
from torch import distributed

STEPS = 12


def main() -> None:
    stage = int(sys.argv[-1])
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first, for minutes
    deepspeed.init_distributed("gloo", verbose=False)
    torch.manual_seed(1)
    model = loop.Small()
    config = {
        "train_micro_batch_size_per_gpu": loop.BATCH,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    world, rank = distributed.get_world_size(), distributed.get_rank()
    data = loop.Numbers(STEPS * loop.BATCH * world)
    engine, _, loader, _ = deepspeed.initialize(model=model, training_data=data, config=config)
    losses = []
    for batch in loader:
        loss = torch.nn.functional.mse_loss(engine(batch), batch)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    loop.report(rank, len(losses), losses, model)


if __name__ == "__main__":
    main()
