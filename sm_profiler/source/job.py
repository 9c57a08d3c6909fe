"""Where a training job of SageMaker keeps its profiler output."""

from __future__ import annotations

from typing import Any

from sm_profiler.errors import SourceError

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError as missing:  # pragma: no cover - only imported for the name of a training job
    raise SourceError("opening a training job by its name needs boto3: pip install 'sm-profiler[aws]'") from missing

# A mistyped folder's name ends here too, perhaps on a machine without a network.
_PATIENCE = Config(connect_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})


def describe(name: str, *, region: str | None = None, client: Any = None) -> dict[str, Any]:
    """DescribeTrainingJob's answer.

    Raises:
        SourceError: there is no such job, or it cannot be asked for.
    """
    try:
        client = client or boto3.client("sagemaker", region_name=region, config=_PATIENCE)
        answer: dict[str, Any] = client.describe_training_job(TrainingJobName=name)
    except ClientError as error:
        said = error.response.get("Error", {}).get("Message", str(error))
        raise SourceError(f"training job {name}: {' '.join(str(said).split())}") from error
    except (BotoCoreError, ValueError) as error:
        said = " ".join(str(error).split())
        raise SourceError(f"{name} is neither a folder nor a training job that can be asked for: {said}") from error
    return answer


def profiler_output(name: str, *, region: str | None = None, client: Any = None) -> str:
    """The s3:// URI of a training job's `profiler-output`.

    Raises:
        SourceError: there is no such job, or it is not profiled.
    """
    job = describe(name, region=region, client=client)
    path = (job.get("ProfilerConfig") or {}).get("S3OutputPath")
    if not path:
        # A job launched with the agent carries its configuration in its environment, and its output beside its model.
        path = (job.get("OutputDataConfig") or {}).get("S3OutputPath")
    if not path:
        raise SourceError(f"training job {name} has no profiler output")
    return f"{path.rstrip('/')}/{job.get('TrainingJobName', name)}/profiler-output"
