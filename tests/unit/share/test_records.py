"""Records of `__share_group_state`: the bytes of Kafka 4.2, both ways."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Corrupt
from tiered.ids import TopicId
from tiered.share import records
from tiered.share.records import ShareSnapshot, ShareUpdate, read_key, read_snapshot, read_update
from tiered.share.requests import SharePartitionKey
from tiered.share.state import PERSISTED_STATES, RecordState, StateBatch

KEY = SharePartitionKey("g", TopicId("AAECAwQFBgcICQoLDA0ODw"), 1)
SNAPSHOT = ShareSnapshot(
    2, 3, 7, 5, 8, 9, (StateBatch(5, 6, RecordState.AVAILABLE, 1), StateBatch(7, 10, RecordState.ARCHIVED, 5)), 4
)
UPDATE = ShareUpdate(2, 7, -1, (StateBatch(5, 6, RecordState.ACKNOWLEDGED, 1),))
# The serializers of Kafka 4.2.0 made these bytes.
SNAPSHOT_BYTES = bytes.fromhex(
    "0000" "00000002" "00000003" "00000007" "0000000000000005" "0000000000000008" "0000000000000009"
    "03" "0000000000000005" "0000000000000006" "00" "0001" "00"
    "0000000000000007" "000000000000000a" "04" "0005" "00"
    "01" "00" "04" "00000004"
)  # fmt: skip
UPDATE_BYTES = bytes.fromhex(
    "0000" "00000002" "00000007" "ffffffffffffffff" "02" "0000000000000005" "0000000000000006" "02" "0001" "00" "00"
)  # fmt: skip
NEW_BYTES = bytes.fromhex("0000000000000000000100000000ffffffffffffffff000000000000000800000000000000080100")
KEY_BYTES = bytes.fromhex("000167000102030405060708090a0b0c0d0e0f00000001")

batches = st.lists(
    st.builds(
        lambda first, size, state, count: StateBatch(first, first + size, state, count),
        st.integers(0, 1 << 60),
        st.integers(0, 1 << 40),
        st.sampled_from(sorted(PERSISTED_STATES)),
        st.integers(0, 32_767),
    ),
    max_size=300,
).map(tuple)
epochs = st.integers(0, (1 << 31) - 1)
offsets = st.integers(-1, 1 << 62)


def test_records_have_kafkas_bytes() -> None:
    assert records.snapshot_record(KEY, SNAPSHOT)[:2] == (b"\0\0" + KEY_BYTES, SNAPSHOT_BYTES)
    assert records.update_record(KEY, UPDATE)[:2] == (b"\0\1" + KEY_BYTES, UPDATE_BYTES)
    assert records.encode_snapshot(ShareSnapshot(0, 1, 0, -1, 8, 8)) == NEW_BYTES
    assert records.snapshot_record(KEY, None)[:2] == (b"\0\0" + KEY_BYTES, None)


def test_kafkas_bytes_are_read() -> None:
    assert read_key(b"\0\0" + KEY_BYTES) == (records.SNAPSHOT_KEY, KEY)
    assert read_key(b"\0\1" + KEY_BYTES) == (records.UPDATE_KEY, KEY)
    assert read_key(b"\0\2" + KEY_BYTES) is None
    assert read_snapshot(SNAPSHOT_BYTES) == SNAPSHOT
    assert read_update(UPDATE_BYTES) == UPDATE


@given(epochs, epochs, epochs, offsets, offsets, offsets, batches, st.integers(-1, 1000))
def test_snapshot_is_read_as_it_was_written(
    snapshot_epoch: int, state: int, leader: int, start: int, created: int, written: int,
    found: tuple[StateBatch, ...], count: int,
) -> None:  # fmt: skip
    value = ShareSnapshot(snapshot_epoch, state, leader, start, created, written, found, count)
    assert read_snapshot(records.encode_snapshot(value)) == value


@given(epochs, epochs, offsets, batches, st.integers(-1, 1000))
def test_update_is_read_as_it_was_written(
    snapshot_epoch: int, leader: int, start: int, found: tuple[StateBatch, ...], count: int
) -> None:
    value = ShareUpdate(snapshot_epoch, leader, start, found, count)
    assert read_update(records.encode_update(value)) == value


@pytest.mark.parametrize("state", [1, 3, 5, 255])
def test_state_that_is_never_persisted_is_corrupt(state: int) -> None:
    raw = UPDATE_BYTES.replace(b"\2\0\1\0\0", bytes((state, 0, 1, 0, 0)))
    with pytest.raises(Corrupt, match=f"state {state}"):
        read_update(raw)


@given(st.binary(max_size=80), st.integers(0, 100), st.sampled_from([SNAPSHOT_BYTES, UPDATE_BYTES, KEY_BYTES]))
def test_damaged_bytes_are_corrupt_or_read(noise: bytes, at: int, raw: bytes) -> None:
    damaged = raw[:at] + noise + raw[at + len(noise) :]
    for read in (read_snapshot, read_update, read_key):
        with contextlib.suppress(Corrupt):
            read(damaged)
