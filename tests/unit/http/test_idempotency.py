"""Tests of `Idempotency-Key`: the key in its header, and the producer that it becomes."""

from __future__ import annotations

import pytest

from tiered.ids import KEYED_FROM, TopicId
from tiered.producers.entry import SEQUENCE_MAX
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.partitions.idempotency import EPOCH_MAX, make_key, parse_key

TOPIC = TopicId("AAAAAAAAQACAAAAAAAAAAQ")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('"8e03978e"', "8e03978e"),
        ("8e03978e", "8e03978e"),
        (r'"a\"b\\c"', r"a\"b\c".replace('\\"', '"')),
        (' "x y" ', "x y"),
    ],
)
def test_key_is_a_quoted_string_or_bare(text: str, name: str) -> None:
    assert parse_key(text) == name


@pytest.mark.parametrize(
    "text", ["", '""', '"a', '"', r'"a\b"', '"a"b"', "ä", "a\tb", "x" * 256, '"' + "x" * 256 + '"']
)
def test_malformed_key_is_refused(text: str) -> None:
    with pytest.raises(HttpError, match="Idempotency-Key") as refused:
        parse_key(text)
    assert refused.value.status == 400


def test_key_and_request_decide_on_the_producer() -> None:
    key = make_key(TOPIC, "k", "/topics/t json", b"body")
    assert key == make_key(TOPIC, "k", "/topics/t json", b"body")
    assert key.producer_id >= KEYED_FROM
    assert 0 <= key.producer_epoch <= EPOCH_MAX and 0 <= key.base_sequence <= SEQUENCE_MAX
    for other in (make_key(TOPIC, "k", "/topics/t json", b"body2"), make_key(TOPIC, "k", "/topics/t binary", b"body")):
        assert other.producer_id == key.producer_id
        assert other[2:] != key[2:]
    assert make_key(TOPIC, "l", "/topics/t json", b"body").producer_id != key.producer_id
