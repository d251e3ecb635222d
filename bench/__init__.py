"""Benchmarks: each number beside its floor, measured alternately in the same run (the design, section 12).

An absolute time says nothing about a shared machine; the ratio of two medians of one run does, and a count is
exact. ``python -m bench`` prints the table that `docs/performance.md` explains.
"""
