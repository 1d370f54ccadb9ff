"""Who speaks something else to the Kafka port: known by the four bytes where a frame has its length."""

from __future__ import annotations

HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI ")
TLS = b"\x16\x03"


def describe_bad_size(size: int) -> str:
    """A length that no frame may have, for the log."""
    first = (size & 0xFFFFFFFF).to_bytes(4, "big")
    if first.startswith(TLS):
        return "it speaks TLS; this listener is PLAINTEXT"
    if first in HTTP:
        return "it speaks HTTP; that is served at another port"
    return f"a frame of {size} bytes"
