"""Recognition of clients that speak another protocol, by the four bytes where a Kafka frame has its length."""

from __future__ import annotations

HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI ")
TLS = b"\x16\x03"


def describe_bad_size(size: int) -> str:
    """Returns a log text for a frame length that is not allowed."""
    first = (size & 0xFFFFFFFF).to_bytes(4, "big")
    if first.startswith(TLS):
        return "it speaks TLS; this listener is PLAINTEXT"
    if first in HTTP:
        return "it speaks HTTP; that is served at another port"
    return f"a frame of {size} bytes"
