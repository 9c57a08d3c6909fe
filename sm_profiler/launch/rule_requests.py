"""Rules in a request: resolve images and upload local sources, as an SDK v2 Estimator does."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sm_profiler.container import KMS_VARIABLE
from sm_profiler.debugger.debugger import get_rule_container_image_uri
from sm_profiler.debugger.images import DEFAULT_IMAGE, DETAILED, registered_image
from sm_profiler.errors import ConfigError
from sm_profiler.launch.service_model import is_pipeline_variable


def rule_request(rule: Any, region: str | None, session: Any, s3_output_path: str | None) -> dict[str, Any]:
    """Return a rule's entry in the request's `ProfilerRuleConfigurations`; the rule is not changed.

    Args:
        rule: a ProfilerRule of this package or of the SDK.
        region: region of the job; needed for AWS's own image.
        session: boto3 session for uploading a local rule source.
        s3_output_path: S3 URI that a local rule source is uploaded to; the session's default bucket if it is None.

    Raises:
        ConfigError: the image cannot be resolved, or the source cannot be uploaded.
    """
    request: dict[str, Any] = dict(rule.to_profiler_rule_config_dict())
    if request["RuleEvaluatorImage"] == DEFAULT_IMAGE:
        _resolve_image(request, region)
    parameters = request.get("RuleParameters")
    source = (parameters or {}).get("source_s3_uri")
    if isinstance(source, str) and not source.startswith("s3://"):
        uploaded = _upload(source, request["RuleConfigurationName"], session, s3_output_path)
        request["RuleParameters"] = {**(parameters or {}), "source_s3_uri": uploaded}
    return request


def _resolve_image(request: dict[str, Any], region: str | None) -> None:
    name = request["RuleConfigurationName"]
    detailed = isinstance(name, str) and name.startswith(DETAILED)
    own = None if detailed else registered_image(region)
    if own:
        request["RuleEvaluatorImage"] = own
        return
    if not region:
        raise ConfigError(
            f"rule {name}: its image depends on the region: pass region=, or register an image with "
            "SM_PROFILER_RULE_IMAGE"
        )
    try:
        request["RuleEvaluatorImage"] = get_rule_container_image_uri(name, region)
    except ConfigError:
        raise
    except ValueError as error:  # the SDK lists no image for the region
        line = " ".join(str(error).split())
        raise ConfigError(f"rule {name}: AWS has no rule image for {region} ({line[:120]})") from None
    if not detailed:  # AWS chooses the machines of its own rules
        request.pop("InstanceType", None)
        request.pop("VolumeSizeInGB", None)


def _upload(source: str, name: str, session: Any, s3_output_path: str | None) -> str:
    """Upload a local rule source and return its S3 URI."""
    path = local_source(source, name)
    if session is None:
        raise ConfigError(f"rule {name}: its source {source} is a local file: pass session=, or an s3:// URI")
    with _upload_errors(source, name):
        bucket, prefix = _destination(session, s3_output_path)
        uri = source_uri(f"s3://{bucket}/{prefix}", name, path)
        upload_source(path, uri, name, session.client("s3"))
    return uri


def local_source(source: str, name: str) -> Path:
    """Return the path of a local rule source.

    Raises:
        ConfigError: there is no such file.
    """
    path = Path(source.removeprefix("file://"))
    try:
        exists = path.is_file()
    except OSError:  # for example a name that is too long
        exists = False
    if not exists:
        raise ConfigError(f"rule {name}: its source {source} is neither an S3 URI nor a local file")
    return path


def source_uri(prefix: str, name: str, path: Path) -> str:
    """Return a new S3 URI below a prefix for a rule's source."""
    return f"{prefix.rstrip('/')}/{name}/{uuid.uuid4()}/{path.name}"


def upload_source(path: Path, uri: str, name: str, client: Any) -> None:
    """Upload a rule's source.

    Raises:
        ConfigError: that failed.
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    kms_key = os.environ.get(KMS_VARIABLE)
    encrypted = {"ExtraArgs": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key}} if kms_key else {}
    with _upload_errors(str(path), name):
        client.upload_file(str(path), bucket, key, **encrypted)


@contextmanager
def _upload_errors(source: str, name: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # boto3's errors and S3 transfer's have no common base
        line = " ".join(str(error).split())
        raise ConfigError(f"rule {name}: its source {source} could not be uploaded: {line}") from error


def _destination(session: Any, s3_output_path: str | None) -> tuple[str, str]:
    if s3_output_path and not is_pipeline_variable(s3_output_path):
        parts = urlsplit(s3_output_path)
        return parts.netloc, parts.path.strip("/")
    account = session.client("sts").get_caller_identity()["Account"]
    return f"sagemaker-{session.region_name}-{account}", ""
