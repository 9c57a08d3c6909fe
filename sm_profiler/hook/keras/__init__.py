"""The adapter for Keras 3, on all of its backends."""
