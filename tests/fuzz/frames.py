"""Fuzzing of frames for every table and version: the codec reads them or raises `Malformed`, and soon.

python -m tests.fuzz.frames --seconds 60 --seed 7       ends with 1 and the frame that broke a rule
python -m tests.fuzz.frames --keep list_transactions    writes a request in each version into the corpus
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.fuzz.mutations import mutate
from tests.fuzz.rounds import CORPUS, SECONDS_MOST
from tests.unit.kafka.values import OURS, TABLES, Drawn, versions
from tiered_api.kafka.protocol import apis, codec, headers
from tiered_api.kafka.protocol.schema import Message


def check(table: type[Message], version: int, frame: bytes) -> float:
    """Decodes a frame, and decodes the encoded result again; returns the seconds of the first decode. Any error but
    Malformed is raised."""
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
    """Checks a header of a request in the same way."""
    try:
        header = headers.decode_request_header(memoryview(frame))
    except codec.Malformed:
        return
    assert 10 <= header.position <= len(frame)


def mutated_frames(seed: int) -> Iterator[tuple[type[Message], int, bytes]]:
    """Yields mutated frames of all tables and versions without end."""
    rng = Random(seed)
    known = [(table, version) for table in TABLES.values() for version in versions(table)]
    while True:
        table, version = rng.choice(known)
        body = codec.encode(Drawn(rng.getrandbits(32)).message(table, version), version)
        for _ in range(20):
            yield table, version, mutate(rng, body)


def keep_requests(module_name: str) -> Path:
    """Writes a request of an API in each served version into the corpus. Raises `StopIteration` for an unknown name."""
    api = next(each for each in apis.ALL_APIS.values() if each.module_name == module_name)
    drawn, path = Drawn(api.key, gentle=True), CORPUS / "wire" / f"frame-{module_name}.many"
    table = (TABLES | OURS)[f"{api.name}Request"]
    frames = [
        headers.encode_request_header(api, version, 7, "c") + codec.encode(drawn.message(table, version), version)
        for version in api.served_versions
    ]
    path.write_bytes(b"".join(len(each).to_bytes(4, "big") + each for each in frames))
    return path


def main(arguments: list[str]) -> int:
    """Checks frames for a while; returns 1 if a rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", metavar="API", help="name of its file in messages/")
    given = parser.parse_args(arguments)
    if given.keep:
        print(keep_requests(given.keep))
        return 0
    end, count, worst = time.monotonic() + given.seconds, 0, 0.0
    for table, version, frame in mutated_frames(given.seed):
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
