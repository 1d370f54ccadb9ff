"""A TCP port on loopback for a server that must know its own before it starts."""

from __future__ import annotations

import random
import socket

BELOW_EPHEMERAL = range(20_000, 32_768)
"""Ports below the ephemeral range: no outgoing connection and no server on port 0 gets one, so that it stays free while
its server restarts."""
TRIES = 100
_drawn = random.SystemRandom()


def free_port() -> int:
    """Returns a port on which no process listens now."""
    with held_port() as held:
        found: int = held.getsockname()[1]
    return found


def held_port() -> socket.socket:
    """Yields a socket on a port that no other process draws while it is open. On Linux a server that reuses addresses
    may listen there all the same."""
    for _ in range(TRIES):
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", _drawn.choice(BELOW_EPHEMERAL)))
        except OSError:  # taken: draw again
            held.close()
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return held
    raise OSError(f"none of {TRIES} ports drawn from {BELOW_EPHEMERAL} is free")


def hold_ports(processes: int, step: int) -> list[socket.socket]:
    """Returns sockets at a free port and, where there are several processes, at that of each process above it."""
    for _ in range(TRIES):
        held = [held_port()]
        try:
            for number in range(1, processes + 1 if processes > 1 else 1):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", held[0].getsockname()[1] + step * number))
                held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:  # taken: draw again
            for each in held:
                each.close()
            continue
        return held
    raise OSError(f"no ports {step} apart are free")
