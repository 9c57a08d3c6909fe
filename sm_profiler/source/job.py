"""Location of the profiler output of a SageMaker training job."""

from __future__ import annotations

from typing import Any

from sm_profiler.container import AUTO_VARIABLE, ISOLATED_FOLDER
from sm_profiler.errors import SourceError

try:
    from botocore.exceptions import BotoCoreError, ClientError

    from sm_profiler.storage.api_client import create_api_client
except (ImportError, SourceError) as missing:  # pragma: no cover - only imported for the name of a training job
    raise SourceError("opening a training job by its name needs boto3: pip install 'sm-profiler[aws]'") from missing


def describe(name: str, *, region: str | None = None, client: Any = None) -> dict[str, Any]:
    """Return the response of DescribeTrainingJob.

    Raises:
        SourceError: there is no such job, or the request fails.
    """
    try:
        client = client or create_api_client("sagemaker", region=region)
        answer: dict[str, Any] = client.describe_training_job(TrainingJobName=name)
    except ClientError as error:
        message = error.response.get("Error", {}).get("Message", str(error))
        raise SourceError(f"training job {name}: {' '.join(str(message).split())}") from error
    except (BotoCoreError, ValueError, SourceError) as error:
        # A mistyped folder name gets here too, possibly on a machine without a network.
        message, cause = " ".join(str(error).split()), error.__cause__ if isinstance(error, SourceError) else error
        raise SourceError(f"{name} is not a folder, and its training job cannot be looked up: {message}") from cause
    return answer


def profiler_output(name: str, *, region: str | None = None, client: Any = None) -> str:
    """Return the s3:// URI of a training job's `profiler-output`.

    Raises:
        SourceError: there is no such job, or it is not profiled.
    """
    return output_of(describe(name, region=region, client=client), name)


def output_of(job: dict[str, Any], name: str) -> str:
    """Return the s3:// URI of the `profiler-output` of a described training job.

    Raises:
        SourceError: it is not profiled.
    """
    path = (job.get("ProfilerConfig") or {}).get("S3OutputPath")
    isolated = job.get("EnableNetworkIsolation") is True and AUTO_VARIABLE in (job.get("Environment") or {})
    if not path and isolated:
        return _stored_output(job, name)
    if not path:
        # A job launched with the agent has its configuration in its environment, and its output next to its model.
        path = (job.get("OutputDataConfig") or {}).get("S3OutputPath")
    if not path:
        raise SourceError(f"training job {name} has no profiler output")
    return f"{path.rstrip('/')}/{job.get('TrainingJobName', name)}/profiler-output"


def _stored_output(job: dict[str, Any], name: str) -> str:
    """Return where the service stores the files of the agent in a job without a network."""
    checkpoints = (job.get("CheckpointConfig") or {}).get("S3Uri")
    if not checkpoints:
        results = (
            f"{(job.get('OutputDataConfig') or {}).get('S3OutputPath', '').rstrip('/')}/{name}/output/output.tar.gz"
        )
        raise SourceError(
            f"training job {name} has no network: its profile is the folder {ISOLATED_FOLDER} in {results}; download and "
            "unpack it, and name the folder"
        )
    return f"{checkpoints.rstrip('/')}/{ISOLATED_FOLDER}"
