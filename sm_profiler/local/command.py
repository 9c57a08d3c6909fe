"""Command of a training job, from a request of SDK v2, SDK v3 or boto3."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.container import CODE, INPUT_DATA
from sm_profiler.errors import ProfilerError
from sm_profiler.local.host import Host, arguments_of, decode, user_hyperparameters
from sm_profiler.local.records import JsonDict
from sm_profiler.local.transfer import download, unpack

DRIVERS = "sm_drivers"  # channel with the scripts by which SDK v3 starts the user's script
PIPE = "Pipe"


@attrs.frozen
class Program:
    """A command, its working directory, and requirements to install first."""

    command: list[str]
    folder: Path
    requirements: Path | None = None


def fetch_channels(s3: Any, host: Host, request: JsonDict) -> list[str]:
    """Download the input channels and return one log line for each.

    Raises:
        ProfilerError: a channel is empty, or of a kind that the local endpoint does not support.
    """
    lines = []
    for channel in request.get("InputDataConfig", ()):
        name = channel["ChannelName"]
        source = channel["DataSource"].get("S3DataSource")
        mode = channel.get("InputMode") or request["AlgorithmSpecification"]["TrainingInputMode"]
        if source is None or source["S3DataType"] != "S3Prefix" or mode == PIPE:
            raise ProfilerError(
                f"channel {name}: the local endpoint supports only S3Prefix channels in File or FastFile mode"
            )
        sharded = source.get("S3DataDistributionType") == "ShardedByS3Key"
        folder = host.path(INPUT_DATA) / name
        count = download(s3, source["S3Uri"], folder, (host.rank, len(host.hosts)) if sharded else (0, 1))
        lines.append(f"channel {name}: {count} objects from {source['S3Uri']}")
        if name == DRIVERS:
            rewrite_drivers(folder, host)
    return lines


def rewrite_drivers(folder: Path, host: Host) -> None:
    """Make SDK v3's scripts use this host's folder, and the address and port of this job.

    They contain /opt/ml, the name algo-1, which does not resolve here, and one port for all jobs.
    """
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in (".py", ".sh", ".json"):
            text = host.map(path.read_text("utf-8"))
            text = text.replace("{os.environ['SM_MASTER_ADDR']}", "127.0.0.1")
            path.write_text(re.sub(r"(?m)^SM_MASTER_PORT = \d+$", f"SM_MASTER_PORT = {host.port}", text), "utf-8")


def program_of(s3: Any, host: Host, request: JsonDict, python: Path, gpus: int) -> Program:
    """Return the command of a job; downloads the source code that hyperparameters name.

    Raises:
        ProfilerError: the request names nothing that runs without a container, or a script outside the source code.
    """
    algorithm = request["AlgorithmSpecification"]
    if algorithm.get("ContainerEntrypoint"):
        words = [*algorithm["ContainerEntrypoint"], *algorithm.get("ContainerArguments", ())]
        return Program([host.map(word) for word in words], host.ml)
    hyperparameters = request.get("HyperParameters", {})
    directory = str(decode(hyperparameters.get("sagemaker_submit_directory", "")))
    script = str(decode(hyperparameters.get("sagemaker_program", "")))
    if not directory or not script:
        raise ProfilerError(
            f"nothing to run: the local endpoint cannot start the image {algorithm.get('TrainingImage', '')!r}; it runs"
            " scripts (sagemaker_submit_directory and sagemaker_program, which an Estimator with entry_point sends)"
            " and jobs with a ContainerEntrypoint"
        )
    code = host.path(CODE)
    fetched = host.folder / "sourcedir"
    download(s3, directory, fetched)
    unpack(next(path for path in fetched.rglob("*") if path.is_file()), code)
    if not _is_file_below(code, script):
        raise ProfilerError(f"the source code has no file {script}")
    requirements = code / "requirements.txt"
    arguments = arguments_of(user_hyperparameters(hyperparameters))
    return Program(
        [*launcher(host, hyperparameters, script, python, gpus), script, *arguments],
        code,
        requirements if requirements.is_file() else None,
    )


def _is_file_below(folder: Path, name: str) -> bool:
    try:
        path = (folder / name).resolve()
        return path.is_relative_to(folder.resolve()) and path.is_file()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def launcher(host: Host, hyperparameters: JsonDict, script: str, python: Path, gpus: int) -> list[str]:
    """Return the words before the script: python, a shell, or torchrun if the request enables it."""
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
