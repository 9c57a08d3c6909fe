"""Carrying a profiler configuration into a training job: boto3, SDK v2, SDK v3, or the container's environment."""
