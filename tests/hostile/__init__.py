"""Attacks on a broker in a process of its own, a module for each family: what others wait, and what memory it takes.

`make hostile` runs them at full size and judges times. `make test` runs them small: then only what can be counted is
judged, that others are answered, and the bounds on memory.
"""
