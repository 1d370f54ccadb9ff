"""Tests against two codecs of other authors: in every table and version our bytes equal theirs, and mean the same to
them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kafka.oracles import Answer, decode_with_kafka_python, decode_with_kio, plain
from tests.unit.kafka.values import KIO_ONLY, TABLES, Drawn, versions
from tiered_api.kafka.protocol import codec
from tiered_api.kafka.protocol.schema import Message

DRAWS = 6

ADAPTED = {
    ("kafka-python", "ApiVersionsResponse"): "an answer with an error is read as version 0, whatever it was asked for",
}
"""(oracle, table): the reason why the oracle does not get some values."""


def adapt(oracle: str, message: Any) -> Any:
    """Returns the message without the fields in ADAPTED."""
    if (oracle, type(message).__name__) in ADAPTED:
        message.error_code = 0
    return message


def check(oracle: str, table: type[Message], answer: Any, gentle: bool) -> None:
    for version in versions(table):
        for seed in range(DRAWS):
            message = adapt(oracle, Drawn(seed, gentle).message(table, version))
            ours = codec.encode(message, version)
            values, written = _decode(answer, table, version, ours)
            where = f"{table.__name__} v{version} seed {seed}"
            assert written == ours, where
            assert values == plain(message, version), where
            assert codec.decode(table, version, memoryview(written)) == message, where


def _decode(answer: Any, table: type[Message], version: int, body: bytes) -> Answer:
    made: Answer = answer(table, version, body)
    return made


@pytest.mark.parametrize("name", TABLES)
def test_kio_decodes_and_encodes_the_same(name: str) -> None:
    check("kio", TABLES[name], decode_with_kio, gentle=True)


@pytest.mark.parametrize("name", [name for name in TABLES if name not in KIO_ONLY])
def test_kafka_python_decodes_and_encodes_the_same(name: str) -> None:
    check("kafka-python", TABLES[name], decode_with_kafka_python, gentle=False)
