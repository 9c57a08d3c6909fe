"""Command of a training job, from a request of SDK v2, SDK v3 or boto3, and the Python environment in which it runs.

A job can import all packages of the endpoint's environment (torch, numpy, sm_profiler …). What it installs, from a
requirements.txt or with pip in the script, goes to the job's folder; the endpoint's environment is never modified.

On request, AWS's own training toolkit starts the scripts, as in its containers (`sagemaker-training` from PyPI):
SM_PROFILER_LOCAL_TOOLKIT is the python of an environment that has the toolkit, and the packages that the jobs import.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

import sm_profiler
from sm_profiler.container import CODE, INPUT_DATA
from sm_profiler.errors import ProfilerError
from sm_profiler.local.host import Host, arguments_of, decode, user_hyperparameters
from sm_profiler.local.records import JsonDict
from sm_profiler.local.services import download, unpack
from sm_profiler.settings import LOCAL_PYTHON, LOCAL_TOOLKIT

# The user's settings for pip: mirrors, proxies, certificates.
PIP_VARIABLES = (
    "PIP_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_",
    "REQUESTS_CA_BUNDLE",
    "HOME",
    "XDG_CONFIG_",
)
# Line of the wheel's .pth file, for installations without it, such as editable installs.
AUTO_START = (
    "import os; os.environ.get('SM_PROFILER_AUTO', '').strip().lower() not in ('', 'off', 'no', 'none', 'false', '0') "
    "and __import__('sm_profiler.hook.auto').hook.auto.arm()"
)
MAX_COMMAND = 65536  # bytes of a console script; they are small


def create_overlay(folder: Path, python: str | None = None) -> Path:
    """Create the environment, which takes some tens of milliseconds, and return its python.

    Args:
        folder: where.
        python: the interpreter with the packages; by default that of `SM_PROFILER_LOCAL_PYTHON`, or the endpoint's.
    """
    python = python or LOCAL_PYTHON.read()
    if python:
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
        show = "import json, sys, sysconfig; print(json.dumps([sys.path, sysconfig.get_path('scripts')]))"
        shown = subprocess.run([python, "-c", show], check=True, capture_output=True, text=True).stdout
        paths, scripts = json.loads(shown)
    else:
        venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
        paths, scripts = sys.path, sysconfig.get_path("scripts")
    site = next(folder.glob("lib/python3*/site-packages"))
    installed = [path for path in paths if Path(path).name in ("site-packages", "dist-packages")]
    # addsitedir also reads .pth files, on which editable installations depend
    lines = [f"import site; site.addsitedir({path!r})" for path in installed]
    lines.append(str(Path(sm_profiler.__file__).parents[1]))
    (site / "_endpoint.pth").write_text("\n".join(lines) + "\n", "utf-8")
    if not any(found for path in installed for found in Path(path).glob("sm_profiler*.pth")):
        (site / "sm_profiler_auto.pth").write_text(AUTO_START + "\n", "utf-8")
    copy_commands(Path(scripts), folder / "bin")
    return folder / "bin" / "python"


def copy_commands(source: Path, target: Path) -> None:
    """Copy the commands of Python packages (torchrun, accelerate, pip …) so that they run with the target's python."""
    shebang = re.compile(re.escape(os.fsencode(source)) + rb"/python[0-9.]*")
    python = os.fsencode(target / "python")
    with contextlib.suppress(OSError):
        for entry in os.scandir(source):
            with contextlib.suppress(OSError):  # a broken link
                if not entry.is_file() or entry.stat().st_size > MAX_COMMAND or (target / entry.name).exists():
                    continue
                first, newline, rest = Path(entry.path).read_bytes().partition(b"\n")
                # pip writes the interpreter into the second line if the first would be too long
                second, newlines, rest = rest.partition(b"\n") if first == b"#!/bin/sh" else (b"", b"", rest)
                head, count = shebang.subn(lambda _: python, first + newline + second)
                if first.startswith(b"#!") and count:
                    (target / entry.name).write_bytes(head + newlines + rest)
                    (target / entry.name).chmod(0o755)


def pip_settings() -> dict[str, str]:
    """Return the user's mirrors and proxies, for a pip that asks nothing."""
    found = {name: value for name, value in os.environ.items() if name.upper().startswith(PIP_VARIABLES)}
    return {**found, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def pip_environment(job: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a job's pip run: with the user's settings, and without the hook."""
    return {**{name: value for name, value in job.items() if not name.startswith("SM_PROFILER")}, **pip_settings()}


def install_command(python: Path, installs: Sequence[str]) -> list[str]:
    """Return the pip command for packages and requirements files, given as pip's arguments."""
    return [str(python), "-m", "pip", "install", "--progress-bar", "off", *installs]


BASE_FOLDER = "SAGEMAKER_BASE_DIR"  # the toolkit's own variable for the counterpart of /opt/ml


def toolkit_python(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the python whose toolkit starts the jobs; None if the endpoint starts them itself."""
    python: str | None = LOCAL_TOOLKIT.read(environment)
    return python


def start_environment(host: Host, found: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the toolkit's own process, which sets those of the script."""
    # pip runs inside, in the job's home folder
    pip = {name: value for name, value in pip_settings().items() if name not in {"HOME", "XDG_CONFIG_HOME"}}
    own = {name: value for name, value in found.items() if name != "PYTHONPATH"}
    return {**pip, **own, BASE_FOLDER: str(host.ml)}


DRIVERS = "sm_drivers"  # channel with the scripts by which SDK v3 starts the user's script
PIPE = "Pipe"


@attrs.frozen
class Program:
    """A command to run.

    Attributes:
        command: program and arguments.
        folder: its working directory.
        installs: what pip installs first, as its arguments; empty for nothing.
        by_toolkit: AWS's toolkit starts the script, and sets the script's variables itself.
    """

    command: list[str]
    folder: Path
    installs: tuple[str, ...] = ()
    by_toolkit: bool = False


def fetch_channels(s3: Any, host: Host, request: JsonDict) -> list[str]:
    """Download the input channels and return one log line for each."""
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


def program_of(s3: Any, host: Host, request: JsonDict, python: Path, gpus: int, *, toolkit: bool = False) -> Program:
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
    if toolkit:  # in place of the container's `train`
        command = [str(python), "-m", "sm_profiler.local.toolkit_start", str(host.port), *host.hosts]
        return Program(command, host.ml, by_toolkit=True)
    code = host.path(CODE)
    unpack(_source_archive(s3, host, directory), code)
    if not _is_file_below(code, script):
        raise ProfilerError(f"the source code has no file {script}")
    arguments = arguments_of(user_hyperparameters(hyperparameters))
    is_package = (code / "setup.py").is_file() and not script.endswith(".sh")
    if not is_package and not script.endswith(".py"):
        (code / script).chmod(0o755)
        return Program(["/bin/sh", "-c", shlex.join([f"./{script}", *arguments])], code)
    installs = ["."] if is_package else []
    if (code / "requirements.txt").is_file():
        installs += ["-r", str(code / "requirements.txt")]
    words = ["-m", script.removesuffix(".py")] if is_package else [script]
    command = [*launcher(host, hyperparameters, python, gpus), *words, *arguments]
    return Program(command, code, tuple(installs))


def _source_archive(s3: Any, host: Host, directory: str) -> Path:
    """Return the archive with the source code: from S3, or in a channel, by which jobs without a network get it."""
    if directory.startswith(f"{INPUT_DATA}/"):
        inside = str(host.path(directory).relative_to(host.ml))
        if not _is_file_below(host.ml, inside):
            raise ProfilerError(f"no input channel contains {directory}")
        return host.ml / inside
    fetched = host.folder / "sourcedir"
    download(s3, directory, fetched)
    return next(path for path in fetched.rglob("*") if path.is_file())


def _is_file_below(folder: Path, name: str) -> bool:
    try:
        path = (folder / name).resolve()
        return path.is_relative_to(folder.resolve()) and path.is_file()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def launcher(host: Host, hyperparameters: JsonDict, python: Path, gpus: int) -> list[str]:
    """Return the words before the script: python, or torchrun if the request enables it."""
    if decode(hyperparameters.get("sagemaker_mpi_enabled", "false")):
        raise ProfilerError(
            "MPI needs AWS's training toolkit: start the endpoint with SM_PROFILER_LOCAL_TOOLKIT, the python of an"
            " environment that has sagemaker-training"
        )
    torchrun = decode(hyperparameters.get("sagemaker_torch_distributed_enabled", "false"))
    ddp = decode(hyperparameters.get("sagemaker_pytorch_ddp_enabled", "false"))
    if not (torchrun or ddp):
        return [str(python)]
    return [
        str(python), "-m", "torch.distributed.run", f"--nnodes={len(host.hosts)}", f"--node_rank={host.rank}",
        f"--nproc_per_node={max(1, gpus)}", "--master_addr=127.0.0.1", f"--master_port={host.port}",
    ]  # fmt: skip
