"""Folding: a job's windows, one after another or in parts, reduced to states of bounded size."""
