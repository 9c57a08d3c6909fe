"""PyTorch: where a training script's steps can be seen, without a change to the script."""
