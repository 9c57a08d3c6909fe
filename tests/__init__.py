"""Tests of sm-profiler."""
