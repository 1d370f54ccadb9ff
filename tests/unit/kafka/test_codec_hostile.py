"""Tests of hostile and broken frames: every table and version raises only `Malformed`."""

from __future__ import annotations

import tracemalloc
from itertools import islice
from random import Random

import pytest

from tests.fuzz.frames import check, check_header, mutated_frames
from tests.fuzz.mutations import LENGTHS, mutate
from tests.fuzz.rounds import SECONDS_MOST
from tests.unit.kafka.golden_frames import FRAMES
from tests.unit.kafka.values import TABLES, Drawn, versions
from tiered_api.kafka.protocol import codec
from tiered_api.kafka.protocol.primitives import id_text
from tiered_api.kafka.protocol.schema import Message

MUTATED = 25
ROOM = 16 << 10
"""Bytes that a hostile frame may take besides four times its size: error texts and a few objects."""


def bodies(table: type[Message], version: int, count: int = 2) -> list[bytes]:
    """Returns valid bodies to start from; the first has only defaults."""
    drawn = [Drawn(seed).message(table, version) for seed in range(40, 40 + count)]
    return [codec.encode(message, version) for message in (table(), *drawn)]


def is_malformed(table: type[Message], version: int, frame: bytes) -> bool:
    """True if a frame is malformed."""
    try:
        codec.decode(table, version, memoryview(frame))
    except codec.Malformed:
        return True
    return False


@pytest.mark.parametrize("name", TABLES)
def test_cut_frame_and_reply_with_extra_bytes_are_malformed(name: str) -> None:
    table = TABLES[name]
    for version in versions(table):
        for body in bodies(table, version):
            for size in range(0, len(body), 1 + len(body) // 50):
                assert is_malformed(table, version, body[:size]), (version, body.hex(), size)
            assert is_malformed(table, version, body + b"\0") != name.endswith("Request"), (version, body.hex())


@pytest.mark.parametrize("name", TABLES)
def test_mutated_frames_decode_or_are_malformed(name: str) -> None:
    table = TABLES[name]
    for version in versions(table):
        rng = Random(f"{name} {version}")
        for body in bodies(table, version):
            for _ in range(MUTATED):
                frame = mutate(rng, body)
                assert check(table, version, frame) < SECONDS_MOST, (version, frame.hex())


def test_any_bytes_decode_or_are_malformed() -> None:
    for table, version, frame in islice(mutated_frames(seed=1), 4000):
        assert check(table, version, frame) < SECONDS_MOST, (table.__name__, version, frame.hex())


def test_mutated_headers_decode_or_are_malformed() -> None:
    rng = Random(2)
    for _, request, _ in FRAMES:
        for _ in range(100):
            check_header(mutate(rng, bytes.fromhex(request)[:60]))


@pytest.mark.parametrize("name", TABLES)
def test_hostile_length_takes_no_memory(name: str) -> None:
    """Puts every length at every position of a frame. The codec counts the bytes before it trusts a length."""
    table = TABLES[name]
    version = versions(table)[-1]
    body = max(bodies(table, version, 4), key=lambda each: len(each) if len(each) < 300 else 0)
    lies = [body[:at] + lie + body[at + len(lie) :] for at in range(len(body)) for lie in LENGTHS]
    is_malformed(table, version, body)
    tracemalloc.start()
    try:
        for frame in lies[:: 1 + len(lies) // 400]:
            id_text.cache_clear()  # a cache of bounded size that grows in leaps
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            is_malformed(table, version, frame)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 4 * len(frame) + ROOM, frame.hex()
    finally:
        tracemalloc.stop()
