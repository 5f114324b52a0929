"""Benchmarks: ratios against a plainly written baseline, each behind a correctness gate.

``pytest bench`` runs every gate and both sides once, with ``--benchmark-enable`` it times the sides one by one, and
``python -m bench.report`` interleaves them and writes the table in README.md.
"""
