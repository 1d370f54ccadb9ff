"""Records, byte for byte: records are read as they were written, old versions of Kafka's too, and nothing crashes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tiered.errors import Corrupt
from tiered.groups.log_state import LogState
from tiered.groups.records import (
    NO_TIME,
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    group_key,
    group_record,
    group_value,
    offset_key,
    offset_record,
    offset_value,
    read_group,
    read_key,
    read_offset,
)
from tiered.shard import CoordinatorRecord

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAEA"
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(max_size=30)
MEMBERS = st.builds(
    MemberValue, TEXT, st.none() | TEXT, TEXT, TEXT, st.integers(0, 9), INT32, st.binary(), st.binary(max_size=300)
)
GROUPS = st.builds(
    GroupValue, TEXT, INT32, st.none() | TEXT, st.none() | TEXT, INT64, st.lists(MEMBERS, max_size=3).map(tuple)
)


# -- bytes that Kafka 4.2 writes --------------------------------------------------------------------------------------


def test_offset_record_has_kafkas_bytes() -> None:
    value = OffsetValue(5, 3, "m", 258)
    assert offset_key("g", "t", 2) == bytes.fromhex("0001 0001 67 0001 74 00000002")
    assert offset_value(value) == bytes.fromhex("0003 0000000000000005 00000003 0001 6d 0000000000000102")


def test_offset_with_an_expiry_time_is_version_one() -> None:
    value = OffsetValue(5, 3, "m", 258, 259)
    raw = bytes.fromhex("0001 0000000000000005 0001 6d 0000000000000102 0000000000000103")
    assert offset_value(value) == raw
    assert read_offset(raw) == value._replace(leader_epoch=-1), "that version has no room for the epoch"


def test_offset_with_a_topic_id_is_version_four() -> None:
    value = OffsetValue(5, 3, "m", 258, NO_TIME, TOPIC_ID)
    raw = bytes.fromhex("0004 0000000000000005 00000003 02 6d 0000000000000102 01 00 10" + "00" * 15 + "10")
    assert offset_value(value) == raw
    assert read_offset(raw) == value


def test_group_record_has_kafkas_bytes() -> None:
    member = MemberValue("m", "i", "c", "h", 2, 1, b"s", b"a")
    value = GroupValue("consumer", 7, "p", "m", 258, (member,))
    assert group_key("g") == bytes.fromhex("0002 0001 67")
    assert group_value(value) == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000007 0001 70 0001 6d 0000000000000102 00000001"
        "0001 6d 0001 69 0001 63 0001 68 00000002 00000001 00000001 73 00000001 61"
    )
    empty = GroupValue("", 8, None, None, 258)
    assert group_value(empty) == bytes.fromhex("0003 0000 00000008 ffff ffff 0000000000000102 00000000")


# -- what Kafka wrote before, or may write ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("0000 0000000000000005 0001 6d 0000000000000102", OffsetValue(5, -1, "m", 258)),
        ("0002 0000000000000005 0001 6d 0000000000000102", OffsetValue(5, -1, "m", 258)),
        ("0004 0000000000000005 00000003 02 6d 0000000000000102 00", OffsetValue(5, 3, "m", 258)),
        ("0004 0000000000000005 00000003 02 6d 0000000000000102 01 09 02 ffff", OffsetValue(5, 3, "m", 258)),
    ],
)
def test_other_versions_of_an_offset_decode(raw: str, value: OffsetValue) -> None:
    assert read_offset(bytes.fromhex(raw)) == value


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (
            "0000 0001 63 00000007 0001 70 0001 6d 00000001 0001 6d 0001 63 0001 68 00000001 00000001 73 00000001 61",
            GroupValue("c", 7, "p", "m", NO_TIME, (MemberValue("m", None, "c", "h", 1, 1, b"s", b"a"),)),
        ),
        (
            "0001 0001 63 00000007 ffff ffff 00000001 0001 6d 0001 63 0001 68 00000002 00000001 00000000 00000000",
            GroupValue("c", 7, None, None, NO_TIME, (MemberValue("m", None, "c", "h", 2, 1, b"", b""),)),
        ),
        ("0002 0001 63 00000007 ffff ffff 0000000000000102 00000000", GroupValue("c", 7, None, None, 258)),
        (
            "0004 02 63 00000007 00 02 6d 0000000000000102 03"
            "02 6d 00 02 63 02 68 00000002 00000001 02 73 02 61 01 07 02 bbbb"
            "02 6e 00 02 63 02 68 00000002 00000001 02 73 02 61 00 01 05 01 aa",
            GroupValue(
                "c",
                7,
                None,
                "m",
                258,
                (
                    MemberValue("m", None, "c", "h", 2, 1, b"s", b"a"),
                    MemberValue("n", None, "c", "h", 2, 1, b"s", b"a"),
                ),
            ),
        ),
    ],
)
def test_other_versions_of_a_group_decode(raw: str, value: GroupValue) -> None:
    assert read_group(bytes.fromhex(raw)) == value


def test_oldest_key_of_an_offset_decodes() -> None:
    assert read_key(bytes.fromhex("0000 0001 67 0001 74 00000002")) == OffsetKey("g", "t", 2)


# -- all of them ------------------------------------------------------------------------------------------------------


@given(INT64, INT32, st.text(max_size=200), INT64, st.sampled_from(["", TOPIC_ID]))
@example(0, 0, "x" * 126, 0, TOPIC_ID)
@example(0, 0, "x" * 127, 0, TOPIC_ID)
@example(0, 0, "x" * 20_000, 0, TOPIC_ID)
def test_offset_decodes_to_what_was_encoded(offset: int, epoch: int, metadata: str, when: int, topic_id: str) -> None:
    value = OffsetValue(offset, epoch, metadata, when, NO_TIME, topic_id)
    assert read_offset(offset_value(value)) == value


@given(GROUPS)
def test_group_decodes_to_what_was_encoded(value: GroupValue) -> None:
    assert read_group(group_value(value)) == value


@given(TEXT, TEXT, INT32)
def test_key_decodes_to_what_was_encoded(group: str, topic: str, partition: int) -> None:
    assert read_key(offset_key(group, topic, partition)) == OffsetKey(group, topic, partition)
    assert read_key(group_key(group)) == GroupKey(group)


@pytest.mark.parametrize("raw", ["0005 00", "ffff", "0003", "0004 0000000000000005 00000003 00 0000000000000102 00"])
def test_invalid_values_are_corrupt(raw: str) -> None:
    for read in (read_offset, read_group):
        with pytest.raises(Corrupt):
            read(bytes.fromhex(raw))


@given(st.data())
def test_known_records_are_found_among_unknown_ones(data: st.DataObject) -> None:
    """Records of other kinds, of later versions, cut short or with a flipped byte are skipped and counted."""
    ours = [offset_record("g", "t", 0, OffsetValue(1, 2, "x", 3)), group_record("h", GroupValue("c", 1, None, None, 4))]
    strange = [
        CoordinatorRecord(bytes.fromhex("0003 0001 67"), b"\0\0"),
        CoordinatorRecord(b"", None),
        CoordinatorRecord(b"\0", b""),
    ]
    for record in ours:
        assert record.value is not None
        cut = data.draw(st.integers(0, len(record.value) - 1))
        strange.append(CoordinatorRecord(record.key, record.value[:cut]))
    strange += data.draw(
        st.lists(st.builds(CoordinatorRecord, st.binary(max_size=30), st.none() | st.binary(max_size=60)))
    )
    state = LogState()
    state.apply(strange)
    assert state.skipped_records >= 5
    state.apply(ours)
    assert state.committed_offset("g", "t", 0) == OffsetValue(1, 2, "x", 3)
    assert read_group(state.groups["h"]).generation == 1


@pytest.mark.parametrize(
    "raw",
    [
        "0004 0000000000000005 00000003 02 6d 0000000000000102 01 00 02 ffff",
        "0004 0000000000000005 00000003 ffffffffff 0000000000000102 00",
        "0004 0000000000000005 00000003 ffffffffffff01 6d 0000000000000102 00",
        "0003 0000000000000005 00000003 ffff 0000000000000102",
        "0003 0000000000000005 00000003 0001 ff 0000000000000102",
    ],
)
def test_invalid_offsets_are_refused(raw: str) -> None:
    with pytest.raises(Corrupt):
        read_offset(bytes.fromhex(raw))


def test_tombstone_removes_only_what_it_names() -> None:
    state = LogState()
    state.apply([offset_record("g", "t", p, OffsetValue(p, 0, "", 0)) for p in range(2)])
    state.apply([CoordinatorRecord(offset_key("g", "t", 0), None), CoordinatorRecord(offset_key("g", "u", 0), None)])
    assert list(state.iterate_offsets("g")) == [("t", 1, OffsetValue(1, 0, "", 0))]
    state.apply([CoordinatorRecord(offset_key("g", "t", 1), None), CoordinatorRecord(group_key("g"), None)])
    assert not state.offsets
    assert not list(state.snapshot())
