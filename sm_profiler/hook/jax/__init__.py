"""The adapter for JAX."""
