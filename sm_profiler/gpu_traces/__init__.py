"""Traces of torch.profiler: tables, the GPU's time by cause, and timelines."""
