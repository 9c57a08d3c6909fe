"""A training with Ray Train on one node: two workers, each an actor of its own process."""

import os
import sys

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

FOLDER = os.path.dirname(os.path.abspath(__file__))


def train() -> None:
    sys.path.insert(0, FOLDER)
    import loop
    from torch import distributed

    loop.train(distributed.get_rank(), distributed.get_world_size(), workers=0)


def main() -> None:
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=True)
    scaling, run = ScalingConfig(num_workers=2), RunConfig(storage_path=sys.argv[1], name="run")
    TorchTrainer(train, scaling_config=scaling, run_config=run).fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
