"""Measure a script's own DataLoader under several settings, in a process of the script, without training."""
