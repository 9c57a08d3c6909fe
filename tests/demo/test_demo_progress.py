"""The lines that the demo prints while its jobs run."""

from sm_profiler.local.demo_run import Demo


def test_progress_counts_files_as_the_report_does():
    keys = [
        "system/incremental/1.algo-1.json",
        "framework/pevents/2.json",
        "system/training_job_end.ts",
        "framework/training_job_end.ts",
    ]
    job = {
        "TrainingJobName": "demo",
        "SecondaryStatus": "Training",
        "ProfilerConfig": {"S3OutputPath": "s3://bucket/x"},
    }

    class Client:
        def list_training_jobs(self):
            return {"TrainingJobSummaries": [job]}

        def describe_training_job(self, **_request):
            return job

        def get_paginator(self, _name):
            return self

        def paginate(self, **_request):
            return [{"Contents": [{"Key": key} for key in keys]}]

    demo, shown = object.__new__(Demo), []
    demo.show, demo._s3, demo._sagemaker = shown.append, Client(), Client()
    demo._show_progress()
    assert "; 2 profile files on S3;" in shown[0]
