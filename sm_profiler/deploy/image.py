"""Build the rule image and push it to your own registry (ECR)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import boto3
from botocore.exceptions import BotoCoreError, ClientError

from sm_profiler._version import __version__
from sm_profiler.errors import ConfigError, ProfilerError
from sm_profiler.printable import one_line
from sm_profiler.storage.s3_client import create_api_client, credentials_problem, reason_of


@contextlib.contextmanager
def one_line_errors(refused: str) -> Iterator[None]:
    """Turn errors of AWS calls into a ProfilerError of one line.

    Args:
        refused: opening of the message if the service refuses a call.

    Raises:
        ProfilerError: a call in the block failed.
    """
    try:
        yield
    except ClientError as error:
        raise ProfilerError(credentials_problem(error) or f"{refused}: {one_line(error)}") from error
    except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint in the settings that is not a URL
        raise ProfilerError(reason_of(error)) from error


REPOSITORY = re.compile(r"(?=.{2,256}$)([a-z0-9]+([._-][a-z0-9]+)*/)*[a-z0-9]+([._-][a-z0-9]+)*")
RECIPE = Path("rule_container", "build.sh")


def deploy_image(  # keyword arguments, each an independent choice
    repository: str,
    *,
    tag: str = __version__,
    region: str | None = None,
    context: Path | None = None,
    base_image: str | None = None,
    python_version: str | None = None,
    dry_run: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> str:
    """Build the rule image, push it to ECR and return its URI.

    Creates the repository if it is missing: immutable tags, scanned on push.  Needs buildah or docker, and a checkout of
    sm-profiler's sources.

    Args:
        repository: name of the ECR repository.
        tag: the image's tag.
        region: AWS region; the session's own by default.
        context: a checkout of sm-profiler; found by itself in an editable installation or the current folder.
        base_image: image to build on; the recipe's default otherwise.
        python_version: Python of the base image, such as `3.12`.
        dry_run: change nothing, and make only read-only calls.
        on_step: receives each AWS call and command as one line, before it is made.

    Raises:
        ConfigError: ECR would refuse the repository's name, or no builder or no checkout is found.
        ProfilerError: an AWS call or a command failed.
    """
    if not REPOSITORY.fullmatch(repository):
        raise ConfigError(
            f"repository {repository!r}: ECR accepts lower-case letters and digits, with single '.', '_', '-' or '/' between them"
        )
    recipe = find_recipe(context)
    builder = shutil.which("buildah") or shutil.which("docker")
    if builder is None and not dry_run:
        raise ConfigError("building the image needs buildah or docker: install one of them")
    settings = {
        "BUILDER": builder or "buildah",
        "PYTHON": sys.executable,
        **({"BASE_IMAGE": base_image} if base_image else {}),
        **({"PYTHON_VERSION": python_version} if python_version else {}),
    }
    with one_line_errors("AWS refused"):
        session = boto3.Session(region_name=region)
        deployment = _Deployment(session, builder or "buildah", dry_run, on_step)
        image = f"{deployment.repository_uri(repository)}:{tag}"
        deployment.run_command([str(recipe), image], settings)
        deployment.push(image)
    return image


def find_recipe(context: Path | None = None) -> Path:
    """Return the path of the image's build script.

    Raises:
        ConfigError: no checkout of the sources found.
    """
    for folder in [context] if context else [Path(__file__).parents[2], Path.cwd()]:
        if (folder / RECIPE).is_file():
            return folder / RECIPE
    raise ConfigError(
        f"no {RECIPE} found: the image is built from a checkout of sm-profiler; name it with --context DIR"
    )


@attrs.frozen
class _Deployment:
    session: Any
    builder: str
    dry_run: bool
    on_step: Callable[[str], None]

    def repository_uri(self, name: str) -> str:
        """Return the URI of a repository, which is created if it is missing."""
        ecr = create_api_client("ecr", session=self.session)
        self.on_step(f"ecr.describe_repositories(repositoryNames=[{name!r}])")
        try:
            found = ecr.describe_repositories(repositoryNames=[name])
            return str(found["repositories"][0]["repositoryUri"])
        except ecr.exceptions.RepositoryNotFoundException:
            pass
        request = {
            "repositoryName": name,
            "imageScanningConfiguration": {"scanOnPush": True},
            "imageTagMutability": "IMMUTABLE",
            "encryptionConfiguration": {"encryptionType": "AES256"},
        }
        self.on_step(f"ecr.create_repository({json.dumps(request)})")
        if not self.dry_run:
            return str(ecr.create_repository(**request)["repository"]["repositoryUri"])
        self.on_step("sts.get_caller_identity()")
        account = create_api_client("sts", session=self.session).get_caller_identity()["Account"]
        region = str(self.session.region_name or "")
        suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        return f"{account}.dkr.ecr.{region}.{suffix}/{name}"

    def push(self, image: str) -> None:
        """Log in to the image's registry and push."""
        registry = image.partition("/")[0]
        self.on_step("ecr.get_authorization_token()")
        password = ""
        if not self.dry_run:
            answer = create_api_client("ecr", session=self.session).get_authorization_token()
            token = answer["authorizationData"][0]["authorizationToken"]
            password = base64.b64decode(token).decode().partition(":")[2]
        self.run_command([self.builder, "login", "--username", "AWS", "--password-stdin", registry], {}, password)
        self.run_command([self.builder, "push", image], {})

    def run_command(self, words: list[str], settings: dict[str, str], secret: str | None = None) -> None:
        """Run a command; the secret goes to its standard input and is never shown or passed as an argument."""
        shown = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
        self.on_step(" ".join([*shown, shlex.join(words)]))
        if self.dry_run:
            return
        try:
            done = subprocess.run(words, env={**os.environ, **settings}, input=secret, text=True, check=False)
        except OSError as error:
            raise ProfilerError(f"{words[0]}: {error.strerror}") from error
        if done.returncode:
            raise ProfilerError(f"{Path(words[0]).name} {words[1]} ended with exit code {done.returncode}")
