"""Timelines for Perfetto and chrome://tracing."""
