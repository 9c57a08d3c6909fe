"""Metrics of a job, folded from its events and samples: steps and their parts, records, sampled stacks, machine."""
