"""What a training job runs: from the request of SDK v2, of SDK v3, or of a boto3 call, to a command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.container import CODE, INPUT_DATA
from sm_profiler.errors import ProfilerError
from sm_profiler.local.container import Host, arguments_of, decode, user_hyperparameters
from sm_profiler.local.records import JsonDict
from sm_profiler.local.transfer import download, unpack

DRIVERS = "sm_drivers"  # the channel in which SDK v3 sends the scripts that start the user's
PIPE = "Pipe"


@attrs.frozen
class Program:
    """A command, where it starts, and the requirements to install before it."""

    command: list[str]
    folder: Path
    requirements: Path | None = None


def fetch_channels(s3: Any, host: Host, request: JsonDict) -> list[str]:
    """Download the input channels; returns a line on each.

    Raises:
        ProfilerError: a channel that is empty, or of a kind that this endpoint does not have.
    """
    lines = []
    for channel in request.get("InputDataConfig", ()):
        name = channel["ChannelName"]
        source = channel["DataSource"].get("S3DataSource")
        mode = channel.get("InputMode") or request["AlgorithmSpecification"]["TrainingInputMode"]
        if source is None or source["S3DataType"] != "S3Prefix" or mode == PIPE:
            raise ProfilerError(
                f"channel {name}: the local endpoint has S3Prefix channels in File or FastFile mode only"
            )
        sharded = source.get("S3DataDistributionType") == "ShardedByS3Key"
        folder = host.path(INPUT_DATA) / name
        count = download(s3, source["S3Uri"], folder, (host.rank, len(host.hosts)) if sharded else (0, 1))
        lines.append(f"channel {name}: {count} objects from {source['S3Uri']}")
        if name == DRIVERS:
            rewrite_drivers(folder, host)
    return lines


def rewrite_drivers(folder: Path, host: Host) -> None:
    """Make SDK v3's own scripts use this host's folder, and the address and port at which its hosts can meet.

    They name /opt/ml in their text, a first host called algo-1 that no name server knows here, and one port for all jobs.
    """
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in (".py", ".sh", ".json"):
            text = host.map(path.read_text("utf-8"))
            text = text.replace("{os.environ['SM_MASTER_ADDR']}", "127.0.0.1")
            path.write_text(re.sub(r"(?m)^SM_MASTER_PORT = \d+$", f"SM_MASTER_PORT = {host.port}", text), "utf-8")


def program_of(s3: Any, host: Host, request: JsonDict, python: Path, gpus: int) -> Program:
    """The command of a job; fetches the source code that hyperparameters name.

    Raises:
        ProfilerError: the request names nothing that could be run without a container.
    """
    algorithm = request["AlgorithmSpecification"]
    if algorithm.get("ContainerEntrypoint"):
        words = [*algorithm["ContainerEntrypoint"], *algorithm.get("ContainerArguments", ())]
        return Program([host.map(word) for word in words], host.ml)
    hyperparameters = request.get("HyperParameters", {})
    directory = decode(hyperparameters.get("sagemaker_submit_directory", ""))
    script = decode(hyperparameters.get("sagemaker_program", ""))
    if not directory or not script:
        raise ProfilerError(
            f"nothing to run: the local endpoint does not start the image {algorithm.get('TrainingImage', '')!r}; it runs"
            " scripts (sagemaker_submit_directory and sagemaker_program, as Estimators with an entry_point send them,"
            " or a ContainerEntrypoint)"
        )
    code = host.path(CODE)
    fetched = host.folder / "sourcedir"
    download(s3, directory, fetched)
    unpack(next(path for path in fetched.rglob("*") if path.is_file()), code)
    if not (code / script).is_file():
        raise ProfilerError(f"the source code has no file {script}")
    requirements = code / "requirements.txt"
    arguments = arguments_of(user_hyperparameters(hyperparameters))
    return Program(
        [*launcher(host, hyperparameters, script, python, gpus), script, *arguments],
        code,
        requirements if requirements.is_file() else None,
    )


def launcher(host: Host, hyperparameters: JsonDict, script: str, python: Path, gpus: int) -> list[str]:
    """What starts the script: python, a shell, or torchrun where the request asks for it."""
    if script.endswith(".sh"):
        return ["/bin/sh"]
    torchrun = decode(hyperparameters.get("sagemaker_torch_distributed_enabled", "false"))
    ddp = decode(hyperparameters.get("sagemaker_pytorch_ddp_enabled", "false"))
    if not (torchrun or ddp):
        return [str(python)]
    return [
        str(python), "-m", "torch.distributed.run", f"--nnodes={len(host.hosts)}", f"--node_rank={host.rank}",
        f"--nproc_per_node={max(1, gpus)}", "--master_addr=127.0.0.1", f"--master_port={host.port}",
    ]  # fmt: skip
