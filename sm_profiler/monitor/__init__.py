"""Beside the training: what the machine does meanwhile, and how the files get to S3."""
