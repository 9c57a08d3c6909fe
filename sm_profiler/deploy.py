"""Run the rules in your own AWS account: push the rule image to ECR, start it on a training job.

from sm_profiler.deploy import deploy_image, start_rules
image = deploy_image("sm-profiler-rules", region="eu-west-1")
print(start_rules("my-training-job", image=image, role="arn:aws:iam::123456789012:role/sm-profiler-rules").report_uri)

Needs the extra `aws`; `sm-profiler deploy` and `sm-profiler rules start` make the same two calls.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from botocore.exceptions import BotoCoreError, ClientError

from sm_profiler._version import __version__
from sm_profiler.config.launched import RUNNING, Launched
from sm_profiler.container import JOB_NAME_VARIABLE, RULE_OUTPUT
from sm_profiler.errors import ConfigError, ProfilerError, SourceError
from sm_profiler.launch.request import check_class, check_request, local_source, source_uri, upload_source
from sm_profiler.printable import logger_for, one_line
from sm_profiler.rules import RULES
from sm_profiler.rules.profiler_report import ProfilerReport, of_report
from sm_profiler.rules.rule import INTERVAL
from sm_profiler.rules.rule_job import COMPAT, DEFAULT_RULE, of_rule
from sm_profiler.settings import KMS_KEY, SOURCE
from sm_profiler.source.job import describe, missing_profile, outputs_of, stored_profile
from sm_profiler.source.opening import given, is_account, split_account
from sm_profiler.storage import AccessDeniedError, open_storage
from sm_profiler.storage.s3 import create_api_client, create_client, credentials_problem, environment_session, reason_of

__all__ = ["StartedRules", "deploy_image", "start_rules", "wait_for_end"]


log = logger_for(__name__)


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
        session = environment_session(region)
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
    for folder in [context] if context else [Path(__file__).parents[1], Path.cwd()]:
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


POLL_S = 10.0
MAX_VALUE = 256  # characters of an environment variable that CreateProcessingJob accepts
MAX_NAME = 63  # characters of a processing job's name
MAX_INSTANCES = 100
DEFAULT_TYPE, DEFAULT_TYPE_OF_SEVERAL = "ml.t3.medium", "ml.m5.xlarge"
_FORCE = "Nothing was started; `rules start --force`, or start_rules(force=True), starts the rules all the same."


@attrs.frozen
class StartedRules:
    """A processing job that evaluates rules.

    Attributes:
        name: name of the processing job.
        report_uri: s3:// URI that the report is written to.
        request: arguments of CreateProcessingJob.
    """

    name: str
    report_uri: str
    request: dict[str, Any]


def start_rules(  # keyword arguments, each an independent choice
    job: str,
    *,
    image: str,
    role: str | None,
    rule: str = DEFAULT_RULE,
    source: str | None = None,
    parameters: Mapping[str, object] | None = None,
    instance_type: str | None = None,
    instances: int = 1,
    volume_size_in_gb: int = 30,
    max_hours: float = 24,
    region: str | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> StartedRules:
    """Evaluate a training job's profile in a processing job of SageMaker; a running job is followed to its end.

    Several instances share the work once the training job is over, with the same result.

    Args:
        job: name or ARN of the training job, or account:REGION/NAME.
        image: URI of the rule image, as `deploy_image` returns it.
        role: ARN of the role that the container runs under, with few permissions (docs/deploying.md); None reuses the
            training job's role, which usually can do far more than read a profile.
        rule: the rule whose condition decides the status: `ProfilerReport` for all, or that rule's name.
        source: file with a custom rule, whose class `rule` names: an s3:// URI, or a local file, which is uploaded next to
            the profile.
        parameters: parameters of the rules; values become strings.
        instance_type: instance of the processing job; default: ml.t3.medium, or ml.m5.xlarge if there are several.
        instances: number of instances.
        volume_size_in_gb: its volume.
        max_hours: limit on its run time.
        region: AWS region; the session's own by default.
        force: start it without looking for a profile, for a job whose profiler will be switched on while it runs.
        dry_run: build the request and send nothing.

    Raises:
        ConfigError: a value that the container or the service would refuse.
        SourceError: there is no such training job, or it has no profile.
        ProfilerError: the processing job was refused.
    """
    texts = {str(key): str(value) for key, value in (parameters or {}).items()}
    if not source:
        rule = check_rule(rule)
        compat: Any = texts.get(COMPAT) or None
        ProfilerReport(compat=compat, **of_report(rule, of_rule(texts)))  # checks them
    if not 0 < max_hours < math.inf:
        raise ConfigError(f"max_hours {max_hours}: must be a positive number")
    if not 1 <= instances <= MAX_INSTANCES:
        raise ConfigError(f"{instances} instances: must be from 1 to {MAX_INSTANCES}")
    local = _local_file(source, rule, of_rule(texts)) if source and not source.startswith("s3://") else None
    if role and not role.startswith("arn:"):
        raise ConfigError(
            f"role {role!r} is not an ARN, such as arn:aws:iam::123456789012:role/{role}: aws iam get-role --role-name {role} "
            "prints it"
        )
    if is_account(named := given(job)):  # or its ARN
        of_job, job = split_account(named)
        region = region or of_job
    client: Any = create_api_client("sagemaker", region=region)
    training = describe(job, client=client)
    data = _profile_of(training, job, region=region, force=force)
    if local is not None:
        source = source_uri(f"{data.rpartition('/')[0]}/rule-source", rule, local)
    environment = {
        **texts,
        "rule_to_invoke": rule,
        "rule_follow": str(training.get("TrainingJobStatus") in RUNNING).lower(),
        SOURCE.name: data,
        JOB_NAME_VARIABLE: training["TrainingJobName"],
        **({"source_s3_uri": source} if source else {}),
    }
    too_long = [key for key, value in environment.items() if len(value) > MAX_VALUE]
    if too_long:
        raise ConfigError(f"{too_long[0]} is longer than the {MAX_VALUE} characters that a processing job accepts")
    suffix = f"-rules-{time.strftime('%Y%m%d%H%M%S')}"
    name = job[: MAX_NAME - len(suffix)].rstrip("-") + suffix
    target = f"{data.rpartition('/')[0]}/rule-output/{rule}"
    _warn_of_report(f"{target}/profiler-output", region)
    output = {"S3Uri": target, "LocalPath": RULE_OUTPUT, "S3UploadMode": "Continuous"}
    kind = instance_type or (DEFAULT_TYPE if instances == 1 else DEFAULT_TYPE_OF_SEVERAL)
    cluster = {"InstanceCount": instances, "InstanceType": kind, "VolumeSizeInGB": volume_size_in_gb}
    request = {
        "ProcessingJobName": name,
        "RoleArn": role or training["RoleArn"],
        "AppSpecification": {"ImageUri": image},
        "Environment": environment,
        "ProcessingOutputConfig": {"Outputs": [{"OutputName": "rule", "S3Output": output}], **_key_of(training)},
        "ProcessingResources": {"ClusterConfig": cluster},
        "StoppingCondition": {"MaxRuntimeInSeconds": int(max_hours * 3600)},
        **({"NetworkConfig": {"VpcConfig": training["VpcConfig"]}} if training.get("VpcConfig") else {}),
    }
    if problems := check_request("CreateProcessingJob", request):
        raise ConfigError("; ".join(problems))
    if not dry_run:
        if local is not None and source is not None:
            upload_source(local, source, rule, create_client("s3", region_name=region))
        with one_line_errors("the processing job was refused"):
            client.create_processing_job(**request)
    return StartedRules(name, f"{target}/profiler-output/profiler-report.html", request)


def _profile_of(training: dict[str, Any], job: str, *, region: str | None, force: bool) -> str:
    """Return the URI of a job's profile, or where it will be; without a profile, a processing job would be paid for nothing.

    Raises:
        SourceError: there is none, with the reason and what to do.
    """
    places = outputs_of(training, job)
    if force:
        return places[0]
    try:
        found = stored_profile(places, client=create_client("s3", region_name=region))
    except AccessDeniedError:  # the container has another role
        return places[0]
    except SourceError as error:
        text = missing_profile(training, job, places, region=region or "", problem=error)
        raise SourceError(f"{text} {_FORCE}") from error
    if found is None and not Launched.of(training).may_store_profile:
        raise SourceError(f"{missing_profile(training, job, places, region=region or '')} {_FORCE}")
    return found or places[0]


def _warn_of_report(target: str, region: str | None) -> None:
    """Log that an existing report will be replaced, as that of the rule that ran beside the job."""
    with contextlib.suppress(SourceError):  # the caller need not have the right to list the bucket
        if next(iter(open_storage(target, client=create_client("s3", region_name=region)).list("")), None) is not None:
            log.warning("%s has the report of an earlier evaluation: the new one replaces it", target)


def _key_of(training: Any) -> dict[str, str]:
    """Return the key that encrypts the report: SM_PROFILER_KMS_KEY, or else that of the training job's results."""
    key = KMS_KEY.read() or training.get("OutputDataConfig", {}).get("KmsKeyId")
    return {"KmsKeyId": key} if key else {}


def wait_for_end(
    name: str, *, region: str | None = None, poll_s: float = POLL_S, waiting: Callable[[str], object] = bool
) -> tuple[str, str]:
    """Wait until a processing job has ended; return its status, and its message or the reason of its failure.

    Args:
        name: the processing job.
        region: AWS region; the session's own by default.
        poll_s: seconds between two calls.
        waiting: called with the status after each call.

    Raises:
        ProfilerError: the job cannot be described.
    """
    client: Any = create_api_client("sagemaker", region=region)
    while True:
        with one_line_errors("the processing job cannot be described"):
            found = client.describe_processing_job(ProcessingJobName=name)
        status = str(found["ProcessingJobStatus"])
        if status not in RUNNING:
            return status, str(found.get("ExitMessage") or found.get("FailureReason") or "")
        waiting(status)
        time.sleep(poll_s)


def _local_file(source: str, rule: str, parameters: Mapping[str, str]) -> Path:
    path = local_source(source, rule)
    check_class(path, rule, parameters.keys() - {INTERVAL})
    return path


def check_rule(name: str) -> str:
    """Return the exact name of a built-in rule.

    Raises:
        ConfigError: there is no such rule; suggests the nearest name.
    """
    names = {known.lower(): known for known in (DEFAULT_RULE, *(rule.name() for rule in RULES))}
    if name.lower() in names:
        return names[name.lower()]
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {names[near[0]]}?" if near else f"built-in rules: {', '.join(names.values())}"
    raise ConfigError(f"no rule {name}; {hint} (a custom rule needs --source)")
