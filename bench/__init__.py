"""Benchmarks: every claim about speed comes from here, printed beside its goal. `python -m bench --help`."""
