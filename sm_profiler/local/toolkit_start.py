"""Call what the container's `train` command calls: `python -m sm_profiler.local.toolkit_start PORT HOST…`.

It runs in the job's environment.  A container has its own names and addresses; here all hosts of a job are this machine:
their names lead to 127.0.0.1, the port is the job's, and mpirun needs no SSH.  Nothing else of the toolkit is changed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import signal
import socket
import sys
from typing import Any

ADDRESS = "127.0.0.1"
FRAMEWORK = "sagemaker_pytorch_container"  # AWS's package for PyTorch's containers, with its launcher torchrun
PRELOAD = "LD_PRELOAD="
FRAMEWORK_VARIABLE = "SAGEMAKER_TRAINING_MODULE"


def main(port: str, *hosts: str) -> None:
    """Run the training and exit with the toolkit's code."""
    sys.argv = ["train"]
    # The first process of a container outlives SIGTERM; a handler, unlike SIG_IGN, is not inherited by the script.
    signal.signal(signal.SIGTERM, lambda *_: None)
    if sys.path and sys.path[0] in ("", os.getcwd()):  # what `python -m` adds, and `train` does not
        del sys.path[0]
    try:
        trainer = importlib.import_module("sagemaker_training.trainer")
    except ModuleNotFoundError as error:
        sys.exit(
            f"AWS's training toolkit is not installed in this environment: {error}; pip install sagemaker-training"
        )
    _find_hosts(hosts)
    _start_torchrun_here(port)
    _start_mpirun_here()
    if importlib.util.find_spec(FRAMEWORK) is not None:
        os.environ.setdefault(FRAMEWORK_VARIABLE, f"{FRAMEWORK}.training:main")
        _name_this_machine(importlib.import_module(f"{FRAMEWORK}.training"), port)
    trainer.train()


def _find_hosts(hosts: tuple[str, ...]) -> None:
    """Let the toolkit's wait for its hosts' names succeed."""
    look_up = socket.gethostbyname
    socket.gethostbyname = lambda name: ADDRESS if name in hosts else look_up(name)


def _start_torchrun_here(port: str) -> None:
    torchrun: Any = importlib.import_module("sagemaker_training.torch_distributed")
    torchrun.MASTER_PORT = port
    create = torchrun.TorchDistributedRunner._create_command  # builds torchrun's arguments

    def create_command(runner: Any) -> Any:
        runner._master_hostname = ADDRESS
        return create(runner)

    torchrun.TorchDistributedRunner._create_command = create_command


def _start_mpirun_here() -> None:
    mpi: Any = importlib.import_module("sagemaker_training.mpi")
    mpi._start_sshd_daemon = lambda: None  # a container's server, for its other hosts
    create = mpi.MasterRunner._create_command  # builds mpirun's arguments

    def create_command(runner: Any) -> Any:
        hosts = runner._hosts  # mpirun would reach them by SSH
        if len(hosts) > 1:
            sys.exit("MPI on several hosts needs their SSH servers; the local endpoint runs it on one host")
        runner._hosts = ["localhost"]
        try:
            words = create(runner)
        finally:
            runner._hosts = hosts
        preload = next((number for number, word in enumerate(words) if word.startswith(PRELOAD)), None)
        if preload is not None:  # a library that reads the host's name from a fixed path in /opt/ml
            del words[preload - 1 : preload + 1]
        return words

    mpi.MasterRunner._create_command = create_command


def _name_this_machine(training: Any, port: str) -> None:
    original = training._set_distributed_environment  # it sets the address of the first host

    @functools.wraps(original)
    def set_environment(*args: Any) -> None:
        original(*args)
        os.environ.update(MASTER_ADDR=ADDRESS, MASTER_PORT=port)

    training._set_distributed_environment = set_environment


if __name__ == "__main__":
    main(*sys.argv[1:])
