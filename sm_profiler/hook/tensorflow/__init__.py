"""TensorFlow: where the steps of custom loops and their waits can be seen, in Python and inside graphs."""
