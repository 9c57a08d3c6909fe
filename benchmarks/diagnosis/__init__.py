"""A benchmark of diagnosis: training scripts with planted problems, and profilers that name them.

`python -m benchmarks.diagnosis --help` lists what it can do; docs/benchmark.md explains it.
"""
