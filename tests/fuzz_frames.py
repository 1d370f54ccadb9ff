"""Frames as no client sends them, for every table and version: the codec reads them or says `Malformed`, and soon.

python -m tests.fuzz_frames --seconds 60 --seed 7       ends with 1 and the frame that broke a rule
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from random import Random

from tests.unit.kafka.values import TABLES, Drawn, versions
from tiered_api.kafka import codec, headers
from tiered_api.kafka.schema import Message

SECONDS_MOST = 0.05
"""CPU time for one frame of some hundred bytes: far above what any takes, far below what a loop gone wild does."""

VARINTS = "ffffffff0f ffffffff07 8080808008 8080808000 ffffffffff80 8001 ff7f 00 01 02 7f 80 ff"
PLAIN = "ffffffff 7fffffff 80000000 40000000 10000000 00000100 ffff 7fff 8000"
LENGTHS = tuple(bytes.fromhex(digits) for digits in f"{VARINTS} {PLAIN}".split())
"""What stands where a length is expected: the bounds of varints and of plain lengths, null, and wraps of both."""


def overwrite(draw: Random, body: bytes) -> bytes:
    """A length over what is there."""
    at, length = draw.randint(0, len(body)), draw.choice(LENGTHS)
    return body[:at] + length + body[at + len(length) :]


def insert(draw: Random, body: bytes) -> bytes:
    """A length between two bytes."""
    at = draw.randint(0, len(body))
    return body[:at] + draw.choice(LENGTHS) + body[at:]


def scatter(draw: Random, body: bytes) -> bytes:
    """Some bytes turned into others."""
    out = bytearray(body)
    for _ in range(draw.randint(1, 4)):
        if out:
            out[draw.randrange(len(out))] = draw.randrange(256)
    return bytes(out)


def cut(draw: Random, body: bytes) -> bytes:
    """A piece taken out."""
    start = draw.randint(0, len(body))
    return body[:start] + body[start + draw.randint(1, 16) :]


def repeat(draw: Random, body: bytes) -> bytes:
    """A piece there twice, or many times."""
    start = draw.randint(0, len(body))
    stop = start + draw.randint(1, 32)
    return body[:stop] + body[start:stop] * draw.choice((1, 2, 30)) + body[stop:]


def noise(draw: Random, body: bytes) -> bytes:
    """Nothing of it left."""
    return draw.randbytes(draw.randint(0, max(len(body), 8)))


MUTATIONS: tuple[Callable[[Random, bytes], bytes], ...] = (overwrite, overwrite, insert, scatter, cut, repeat, noise)


def mutated(draw: Random, body: bytes) -> bytes:
    """A body after one to three mutations."""
    for _ in range(draw.randint(1, 3)):
        body = draw.choice(MUTATIONS)(draw, body)
    return body


def check(table: type[Message], version: int, frame: bytes) -> float:
    """Reads a frame, and what was read once more; the seconds that the first took. Any error but Malformed passes."""
    view = memoryview(frame)
    before = time.process_time()
    try:
        message = codec.decode(table, version, view)
    except codec.Malformed:
        return time.process_time() - before
    seconds = time.process_time() - before
    again = codec.decode(table, version, codec.encode(message, version))
    assert again == message, f"{again} is not {message}"
    return seconds


def check_header(frame: bytes) -> None:
    """The same for headers of requests."""
    try:
        header = headers.request_header(memoryview(frame))
    except codec.Malformed:
        return
    assert 10 <= header.position <= len(frame)


def frames(seed: int) -> Iterator[tuple[type[Message], int, bytes]]:
    """Endless mutated frames of all tables and versions."""
    draw = Random(seed)
    known = [(table, version) for table in TABLES.values() for version in versions(table)]
    while True:
        table, version = draw.choice(known)
        body = codec.encode(Drawn(draw.getrandbits(32)).message(table, version), version)
        for _ in range(20):
            yield table, version, mutated(draw, body)


def main(arguments: list[str]) -> int:
    """Checks frames for a while; 1 when a rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    end, count, worst = time.monotonic() + given.seconds, 0, 0.0
    for table, version, frame in frames(given.seed):
        try:
            seconds = check(table, version, frame)
            check_header(frame)
        except BaseException:
            print(f"{table.__name__} version {version}: {frame.hex()}", file=sys.stderr)
            raise
        if seconds > SECONDS_MOST:
            print(f"{table.__name__} version {version}: {seconds:.3f} s for {frame.hex()}", file=sys.stderr)
            return 1
        count, worst = count + 1, max(worst, seconds)
        if time.monotonic() > end:
            break
    print(f"{count} frames, the slowest took {worst * 1000:.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
