"""The monitor: samples the machine during a training and uploads the profile to S3."""
