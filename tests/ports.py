"""A TCP port on loopback for a server that must know its own before it starts."""

from __future__ import annotations

import random
import socket

BELOW_EPHEMERAL = range(20_000, 32_768)
"""No outgoing connection and no server on port 0 gets one of these, so it stays free while its server is restarted."""
TRIES = 100
_drawn = random.SystemRandom()


def free_port() -> int:
    """One that nobody listens on now."""
    for _ in range(TRIES):
        port = _drawn.choice(BELOW_EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # taken: draw again
                continue
            return port
    raise OSError(f"none of {TRIES} ports drawn from {BELOW_EPHEMERAL} is free")
