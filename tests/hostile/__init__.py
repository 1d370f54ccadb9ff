"""Attacks on a broker in a process of its own, a module for each family: the latency of other clients, and the memory
of the broker. A hostile day runs all of them on one broker.

`make hostile` runs them at full size and judges times. `make test` runs them small, and judges only that other clients
get replies, and the bounds on memory. A new attack is a function with the decorator `attacks.attack`.
"""
