"""`TrainingJob`: a SageMaker training job and its profile."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from sm_profiler.analysis.readers import MetricsReaderBase, S3AlgorithmMetricsReader, S3SystemMetricsReader
from sm_profiler.analysis.times import us_since_epoch_to_human_readable_time
from sm_profiler.errors import SourceError
from sm_profiler.printable import printable
from sm_profiler.source import open_source
from sm_profiler.source.job import describe, profiler_output
from sm_profiler.storage.api_client import create_api_client

POLL_S = 10.0


class TrainingJob:
    """A SageMaker training job and its profile.

    Attributes:
        name: name of the job.
        profiler_config: the ProfilerConfig in the service's description; None for a job launched with the agent.
        profiler_s3_output_path: s3:// URI of the profile.
        system_metrics_reader: reader of the system metrics; None until they have been waited for.
        framework_metrics_reader: reader of the trace events; None until they have been waited for.
    """

    def __init__(self, training_job_name: str, region: str | None = None) -> None:
        """Describe a job.

        Args:
            training_job_name: name of the job.
            region: AWS region; default: boto3's.

        Raises:
            SourceError: the job does not exist, cannot be described, or is not profiled.
        """
        self.name = training_job_name
        try:
            self.sm_client = create_api_client("sagemaker", region=region)
        except SourceError as error:
            raise SourceError(f"training job {training_job_name} cannot be described: {error}") from error
        self.ds = describe(training_job_name, client=self.sm_client)
        self.profiler_config: dict[str, Any] | None = self.ds.get("ProfilerConfig")
        self.profiler_s3_output_path = profiler_output(training_job_name, client=self.sm_client)
        self.system_metrics_reader: S3SystemMetricsReader | None = None
        self.framework_metrics_reader: S3AlgorithmMetricsReader | None = None
        print(f"ProfilerConfig:{self.profiler_config}")  # noqa: T201 - output of a notebook cell
        print(f"s3 path:{printable(self.profiler_s3_output_path)}")  # noqa: T201

    def get_systems_metrics_reader(self) -> S3SystemMetricsReader | None:
        """Return the reader of system metrics; None until they have been waited for."""
        return self.system_metrics_reader

    def get_framework_metrics_reader(self) -> S3AlgorithmMetricsReader | None:
        """Return the reader of trace events; None until they have been waited for."""
        return self.framework_metrics_reader

    def get_sm_client(self) -> Any:
        """Return the boto3 client of SageMaker."""
        return self.sm_client

    def get_config_and_profiler_s3_output_path(self) -> tuple[dict[str, Any] | None, str]:
        """Return the ProfilerConfig and the s3:// URI of the profile."""
        return self.profiler_config, self.profiler_s3_output_path

    def describe_training_job(self) -> dict[str, Any]:
        """Return the current response of DescribeTrainingJob.

        Raises:
            SourceError: the job cannot be described.
        """
        return describe(self.name, client=self.sm_client)

    def report(self, **options: Any) -> Any:
        """Judge the job by its data so far, and return its report, which a notebook shows inline.

        Args:
            options: `height` in pixels, and those of `sm_profiler.report.build_report`.

        Raises:
            SourceError: it has no data yet, or the data cannot be read.
        """
        source = open_source(self.profiler_s3_output_path)
        source.description = self.describe_training_job()
        # by name: the report is made from this package's data, and must not be needed for it
        return import_module("sm_profiler.report").show_report(source, **options)

    def wait_for_sys_profiling_data_to_be_available(self) -> None:
        """Wait until the first system metrics file exists.

        Raises:
            SourceError: the job has ended without writing one, or cannot be described.
        """
        self.system_metrics_reader = S3SystemMetricsReader(self.profiler_s3_output_path)
        self._wait(self.system_metrics_reader, "Profiler data from system")

    def wait_for_framework_profiling_data_to_be_available(self) -> None:
        """Wait until the first trace file exists.

        Raises:
            SourceError: the job has ended without writing one, or cannot be described.
        """
        self.framework_metrics_reader = S3AlgorithmMetricsReader(self.profiler_s3_output_path)
        self._wait(self.framework_metrics_reader, "Profiler data from framework")
        latest = self.framework_metrics_reader.get_timestamp_of_latest_available_file()
        print(  # noqa: T201
            f"Found recorded framework annotations. Latest available timestamp microseconds_since_epoch is:{latest}, "
            f"human_readable_timestamp in utc: {us_since_epoch_to_human_readable_time(latest)}"
        )

    def _wait(self, reader: MetricsReaderBase, what: str) -> None:
        shown: tuple[str, str] | None = None
        while not reader.get_timestamp_of_latest_available_file():
            job = self.describe_training_job()
            status = job.get("TrainingJobStatus", ""), job.get("SecondaryStatus", "")
            reader.refresh_event_file_list()
            if reader.get_timestamp_of_latest_available_file():
                break
            if status[0] in {"Completed", "Failed", "Stopped"}:
                raise SourceError(f"training job {self.name} ended with status {status[0]}; it has no {what.lower()}")
            if status != shown:
                print(f"{what} not available yet; TrainingJobStatus:{status[0]} SecondaryStatus:{status[1]}")  # noqa: T201
                shown = status
            time.sleep(POLL_S)
        print(f"{what} is available")  # noqa: T201
