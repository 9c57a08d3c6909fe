"""`sm-profiler deploy`: the rule image into your own registry (ECR)."""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from sm_profiler._version import __version__
from sm_profiler.cli.command import DONE
from sm_profiler.errors import ConfigError, ProfilerError

RECIPE = Path("rule_container", "build.sh")


class Command:
    """Creates the repository where there is none, builds, pushes, and prints what to put into ProfilerRule."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "--repository", required=True, metavar="NAME", help="the ECR repository; created if missing"
        )
        parser.add_argument("--tag", default=__version__, help=f"the image's tag (default: {__version__})")
        parser.add_argument("--region", metavar="NAME")
        parser.add_argument("--context", type=Path, metavar="DIR", help="a checkout of sm-profiler (default: found)")
        parser.add_argument("--base-image", metavar="NAME", help="the image to build on (default: public slim Python)")
        parser.add_argument("--python-version", metavar="X.Y", help="Python of the base image (default: 3.12)")
        parser.add_argument("--dry-run", action="store_true", help="show every call and command, change nothing")

    def run(self, options: Namespace) -> int:
        """Deploy; every step is shown as it happens."""
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError

        recipe = find_recipe(options.context)
        builder = shutil.which("buildah") or shutil.which("docker")
        if builder is None and not options.dry_run:
            raise ConfigError("neither buildah nor docker is installed: one of them has to build the image")
        try:
            session = boto3.Session(region_name=options.region)
            deployment = Deployment(session, options, recipe, builder or "buildah")
            image = deployment.run()
        except ClientError as error:
            raise ProfilerError(f"AWS refused: {' '.join(str(error).split())}") from None
        except BotoCoreError as error:
            raise ProfilerError(" ".join(str(error).split())) from None
        print(f"export SM_PROFILER_RULE_IMAGE={image}")
        print("ProfilerRule.custom(")
        print(f'    name="ProfilerReport", image_uri="{image}",')
        print('    instance_type="ml.t3.medium", volume_size_in_gb=30,')
        print('    rule_parameters={"rule_to_invoke": "ProfilerReport"},')
        print(")")
        return DONE


def find_recipe(context: Path | None) -> Path:
    """Where build.sh stands.

    Raises:
        ConfigError: there is no checkout of the sources.
    """
    places = [context] if context else [Path(__file__).parents[2], Path.cwd()]
    for place in places:
        if (place / RECIPE).is_file():
            return place / RECIPE
    raise ConfigError(
        f"{RECIPE} is not here: the image is built from a checkout of sm-profiler, name it with --context DIR"
    )


class Deployment:
    """One deployment; with `dry_run` it says what it would do and asks AWS only what changes nothing."""

    def __init__(self, session: Any, options: Namespace, recipe: Path, builder: str) -> None:
        self.ecr, self.sts = session.client("ecr"), session.client("sts")
        self.options, self.recipe, self.builder = options, recipe, builder
        self.region: str = session.region_name or ""

    def run(self) -> str:
        """All steps; returns the image's URI."""
        image = f"{self._repository_uri()}:{self.options.tag}"
        self._build(image)
        self._push(image)
        return image

    def _repository_uri(self) -> str:
        name = self.options.repository
        _say(f"ecr.describe_repositories(repositoryNames=[{name!r}])")
        try:
            found = self.ecr.describe_repositories(repositoryNames=[name])
            return str(found["repositories"][0]["repositoryUri"])
        except self.ecr.exceptions.RepositoryNotFoundException:
            pass
        wanted = {
            "repositoryName": name,
            "imageScanningConfiguration": {"scanOnPush": True},
            "imageTagMutability": "IMMUTABLE",
            "encryptionConfiguration": {"encryptionType": "AES256"},
        }
        _say(f"ecr.create_repository({json.dumps(wanted)})")
        if not self.options.dry_run:
            return str(self.ecr.create_repository(**wanted)["repository"]["repositoryUri"])
        _say("sts.get_caller_identity()")
        account = self.sts.get_caller_identity()["Account"]
        suffix = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
        return f"{account}.dkr.ecr.{self.region}.{suffix}/{name}"

    def _build(self, image: str) -> None:
        settings = {
            "BUILDER": self.builder,
            "PYTHON": sys.executable,
            **({"BASE_IMAGE": self.options.base_image} if self.options.base_image else {}),
            **({"PYTHON_VERSION": self.options.python_version} if self.options.python_version else {}),
        }
        self._command([str(self.recipe), image], settings)

    def _push(self, image: str) -> None:
        registry = image.partition("/")[0]
        _say("ecr.get_authorization_token()")
        if self.options.dry_run:
            password = ""
        else:
            token = self.ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
            password = base64.b64decode(token).decode().partition(":")[2]
        self._command([self.builder, "login", "--username", "AWS", "--password-stdin", registry], {}, password)
        self._command([self.builder, "push", image], {})

    def _command(self, words: list[str], settings: dict[str, str], secret: str | None = None) -> None:
        """Run a command, a password on its standard input; it is never shown, and never among the arguments."""
        shown = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
        _say(" ".join([*shown, shlex.join(words)]))
        if self.options.dry_run:
            return
        done = subprocess.run(words, env={**os.environ, **settings}, input=secret, text=True, check=False)
        if done.returncode:
            raise ProfilerError(f"{Path(words[0]).name} {words[1]} ended with exit code {done.returncode}")


def _say(step: str) -> None:
    print(f"+ {step}", file=sys.stderr)
