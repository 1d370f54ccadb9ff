"""Frames of people who mean harm, or whose program is broken: for every table and version nothing but `Malformed`."""

from __future__ import annotations

import tracemalloc
from itertools import islice
from random import Random

import pytest

from tests.fuzz.frames import SECONDS_MOST, check, check_header, mutated_frames
from tests.fuzz.mutations import LENGTHS, mutate
from tests.unit.kafka.golden_frames import FRAMES
from tests.unit.kafka.values import TABLES, Drawn, versions
from tiered_api.kafka.protocol import codec
from tiered_api.kafka.protocol.primitives import id_text
from tiered_api.kafka.protocol.schema import Message

MUTATED = 25
ROOM = 16 << 10
"""What a frame that lies may take besides four times its bytes: error texts, a few objects."""


def bodies(table: type[Message], version: int, count: int = 2) -> list[bytes]:
    """Bodies to start from; the first says nothing."""
    drawn = [Drawn(seed).message(table, version) for seed in range(40, 40 + count)]
    return [codec.encode(message, version) for message in (table(), *drawn)]


def refused(table: type[Message], version: int, frame: bytes) -> bool:
    """Whether a frame is malformed."""
    try:
        codec.decode(table, version, memoryview(frame))
    except codec.Malformed:
        return True
    return False


@pytest.mark.parametrize("name", TABLES)
def test_a_part_of_a_frame_is_malformed_and_so_is_more_than_one_answer(name: str) -> None:
    table = TABLES[name]
    for version in versions(table):
        for body in bodies(table, version):
            for size in range(0, len(body), 1 + len(body) // 50):
                assert refused(table, version, body[:size]), (version, body.hex(), size)
            assert refused(table, version, body + b"\0") != name.endswith("Request"), (version, body.hex())


@pytest.mark.parametrize("name", TABLES)
def test_mutated_frames_are_read_or_malformed(name: str) -> None:
    table = TABLES[name]
    for version in versions(table):
        rng = Random(f"{name} {version}")
        for body in bodies(table, version):
            for _ in range(MUTATED):
                frame = mutate(rng, body)
                assert check(table, version, frame) < SECONDS_MOST, (version, frame.hex())


def test_frames_of_any_kind_are_read_or_malformed() -> None:
    for table, version, frame in islice(mutated_frames(seed=1), 4000):
        assert check(table, version, frame) < SECONDS_MOST, (table.__name__, version, frame.hex())


def test_mutated_headers_are_read_or_malformed() -> None:
    rng = Random(2)
    for _, request, _ in FRAMES:
        for _ in range(100):
            check_header(mutate(rng, bytes.fromhex(request)[:60]))


@pytest.mark.parametrize("name", TABLES)
def test_a_length_that_lies_takes_no_memory(name: str) -> None:
    """At every place of a frame stands once every length: none is believed before the bytes are counted."""
    table = TABLES[name]
    version = versions(table)[-1]
    body = max(bodies(table, version, 4), key=lambda each: len(each) if len(each) < 300 else 0)
    lies = [body[:at] + lie + body[at + len(lie) :] for at in range(len(body)) for lie in LENGTHS]
    refused(table, version, body)
    tracemalloc.start()
    try:
        for frame in lies[:: 1 + len(lies) // 400]:
            id_text.cache_clear()  # a cache of bounded size that grows in leaps
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            refused(table, version, frame)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 4 * len(frame) + ROOM, frame.hex()
    finally:
        tracemalloc.stop()
