"""Records of `__transaction_state`: Kafka's bytes, both ways."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Corrupt
from tiered.ids import TopicPartition
from tiered.transactions import records
from tiered.transactions.metadata import TransactionMetadata, TransactionState
from tiered.transactions.records import encode_value, read_key, read_value, transaction_key, transaction_record

ONGOING = TransactionMetadata(
    7, 3, 60_000, TransactionState.ONGOING, frozenset((TopicPartition("ab", 1), TopicPartition("ab", 0))), 9, 8,
    previous_producer_id=7, client_version=2,
)  # fmt: skip
ONGOING_BYTES = bytes.fromhex(
    "0001" "0000000000000007" "0003" "0000ea60" "01"  # version, producer id, epoch, timeout, Ongoing
    "02" "036162" "03" "00000000" "00000001" "00"  # one topic with two partitions
    "0000000000000009" "0000000000000008"  # updated, started
    "02" "00" "08" "0000000000000007" "02" "02" "0002"  # previous producer id, client version
)  # fmt: skip
PLAIN_BYTES = bytes.fromhex(
    "0000" "0000000000000007" "0003" "0000ea60" "04"
    "00000001" "00026162" "00000002" "00000000" "00000001"
    "0000000000000009" "0000000000000008"
)  # fmt: skip

values = st.builds(
    TransactionMetadata,
    st.integers(0, 1 << 40),
    st.integers(0, 32_767),
    st.integers(1, (1 << 31) - 1),
    st.sampled_from([each for each in TransactionState if each is not TransactionState.EMPTY]),
    st.frozensets(st.builds(TopicPartition, st.text("abcé", min_size=1, max_size=300), st.integers(0, 1000))),
    st.integers(-1, 1 << 45),
    st.integers(-1, 1 << 45),
    st.integers(-1, 1 << 40),
    st.integers(-1, 1 << 40),
    st.integers(0, 2),
)


def test_open_transaction_has_kafkas_bytes() -> None:
    assert encode_value(ONGOING) == ONGOING_BYTES
    assert read_value(ONGOING_BYTES) == ONGOING


def test_value_of_version_0_is_read() -> None:
    assert read_value(PLAIN_BYTES) == ONGOING._replace(
        state=TransactionState.COMPLETE_COMMIT, previous_producer_id=-1, client_version=0
    )


def test_partitions_of_an_empty_state_are_null() -> None:
    empty = TransactionMetadata(1, 0, 5, TransactionState.EMPTY)
    raw = encode_value(empty)
    assert raw[17:18] == b"\0" and read_value(raw) == empty
    null_in_version_0 = PLAIN_BYTES[:17] + b"\xff\xff\xff\xff" + PLAIN_BYTES[-16:]
    assert read_value(null_in_version_0).partitions == frozenset()


def test_key_is_the_transactional_id() -> None:
    assert transaction_key("ab") == b"\0\0\0\x02ab"
    assert read_key(transaction_key("é")) == "é"
    assert read_key(b"\0\x01\0\x02ab") is None, "a version of tomorrow"
    assert transaction_record("ab", None).value is None


@given(values)
def test_every_value_decodes_to_what_was_encoded(value: TransactionMetadata) -> None:
    assert read_value(encode_value(value)) == value


@given(values, st.data())
def test_torn_value_is_refused(value: TransactionMetadata, data: st.DataObject) -> None:
    raw = encode_value(value)
    with pytest.raises(Corrupt):
        read_value(raw[: data.draw(st.integers(0, len(raw) - 1))])


@given(values, st.integers(0, 90), st.integers(0, 255))
def test_value_that_is_read_in_one_step_is_that_of_its_fields(
    value: TransactionMetadata, position: int, byte: int
) -> None:
    whole = encode_value(value)
    damaged = bytearray(whole)
    damaged[position % len(whole)] = byte
    for raw in (whole, bytes(damaged)):
        quick = records._read_decided_value(raw)
        assert quick is None or quick == records._read_value(raw)
    is_quick = not value.partitions and not value.request_hash and not value.reply
    assert (records._read_decided_value(whole) is not None) is is_quick


@given(st.binary(max_size=80))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    for read in (read_value, read_key):
        with contextlib.suppress(Corrupt):
            read(raw)
