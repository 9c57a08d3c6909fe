"""The monitor: samples the machine beside the training and uploads the profile to S3."""
