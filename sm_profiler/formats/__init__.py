"""File formats of profiler output: names, columns, writers, and readers that tolerate damage.

Files are bytes here, from any storage; this package imports no other.
"""
