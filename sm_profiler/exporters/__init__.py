"""Findings and metrics for other tools: coding agents, trackers, dashboards, messages.

Each needs an extra, and none is imported unless it is used.
"""
