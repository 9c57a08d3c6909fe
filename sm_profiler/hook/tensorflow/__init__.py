"""The adapter for TensorFlow."""
