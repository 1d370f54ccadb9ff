"""Small changes of bytes, drawn from a seed: wrong lengths, flipped bits, and pieces that are missing or repeated."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

VARINTS = "ffffffff0f ffffffff07 8080808008 8080808000 ffffffffff80 8001 ff7f 00 01 02 7f 80 ff"
PLAIN = "ffffffff 7fffffff 80000000 40000000 10000000 00000100 ffff 7fff 8000"
LENGTHS = tuple(bytes.fromhex(digits) for digits in f"{VARINTS} {PLAIN}".split())
"""Values in place of a length: the bounds of varints and of plain lengths, null, and wraps of both."""


def overwrite(rng: Random, body: bytes) -> bytes:
    """Writes a length over existing bytes."""
    at, length = rng.randint(0, len(body)), rng.choice(LENGTHS)
    return body[:at] + length + body[at + len(length) :]


def insert(rng: Random, body: bytes) -> bytes:
    """Inserts a length between two bytes."""
    at = rng.randint(0, len(body))
    return body[:at] + rng.choice(LENGTHS) + body[at:]


def change_bytes(rng: Random, body: bytes) -> bytes:
    """Changes some bytes."""
    out = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        if out:
            out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def remove_piece(rng: Random, body: bytes) -> bytes:
    """Removes a piece."""
    start = rng.randint(0, len(body))
    return body[:start] + body[start + rng.randint(1, 16) :]


def repeat_piece(rng: Random, body: bytes) -> bytes:
    """Repeats a piece once or many times."""
    start = rng.randint(0, len(body))
    stop = start + rng.randint(1, 32)
    return body[:stop] + body[start:stop] * rng.choice((1, 2, 30)) + body[stop:]


def replace_all(rng: Random, body: bytes) -> bytes:
    """Replaces everything."""
    return rng.randbytes(rng.randint(0, max(len(body), 8)))


MUTATIONS: tuple[Callable[[Random, bytes], bytes], ...] = (
    overwrite,
    overwrite,
    insert,
    change_bytes,
    remove_piece,
    repeat_piece,
    replace_all,
)


def mutate(rng: Random, body: bytes) -> bytes:
    """Returns a body after one to three mutations."""
    for _ in range(rng.randint(1, 3)):
        body = rng.choice(MUTATIONS)(rng, body)
    return body
