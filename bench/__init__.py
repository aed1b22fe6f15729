"""Benchmarks against what a user would pick instead: `python -m bench` (or `vmhost bench`, `make bench`)."""
