"""Records of consumer groups, byte for byte. Kafka 4.2's own serializer wrote the bytes here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.groups.consumer.rig import T, U, V, partitions
from tiered.errors import Corrupt
from tiered.groups.consumer import records
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.reconciliation import CurrentAssignment, MemberState
from tiered.groups.consumer.records import (
    ClassicMetadata,
    ConsumerKey,
    GroupEpoch,
    MemberMetadata,
    ResolvedRegex,
    encode_current,
    encode_group_epoch,
    encode_key,
    encode_member,
    encode_regex,
    encode_target,
    encode_target_epoch,
    read_current,
    read_group_epoch,
    read_key,
    read_member,
    read_regex,
    read_target,
    read_target_epoch,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=9)
NAMES = st.frozensets(TEXT, max_size=3)
ASSIGNMENTS = st.dictionaries(
    st.sampled_from([T, U, V]), st.frozensets(st.integers(0, 2**31 - 1), min_size=1, max_size=4), max_size=3
)
CLASSIC = st.builds(ClassicMetadata, INT32, st.lists(st.tuples(TEXT, st.binary(max_size=200)), max_size=2).map(tuple))

PLAIN = MemberMetadata(
    client_id="c", client_host="/127.0.0.1", topics=frozenset({"t", "u"}), rebalance_timeout_ms=300_000
)
FULL = MemberMetadata(
    "i", "r", "c", "h", frozenset({"t"}), "t.*", 1, "range", ClassicMetadata(45_000, (("range", b"\1\2"),))
)
CURRENT = CurrentAssignment(5, 4, MemberState.UNREVOKED_PARTITIONS, partitions(t={2}), partitions(u={0}))


@pytest.mark.parametrize(
    ("encode", "read", "value", "raw"),
    [
        (encode_member, read_member, PLAIN, "0000000002630b2f3132372e302e302e31030274027501000493e00001000100"),
        (
            encode_member,
            read_member,
            FULL,
            "0000026902720263026802027404742e2a000000010672616e6765010011010000afc8020672616e67650301020000",
        ),
        (encode_group_epoch, read_group_epoch, GroupEpoch(5), "00000000000500"),
        (encode_group_epoch, read_group_epoch, GroupEpoch(5, -2), "000000000005010008fffffffffffffffe"),
        (
            encode_target,
            read_target,
            partitions(t={0, 2}),
            "000002000000000000000000000000000000100300000000000000020000",
        ),
        (encode_target, read_target, {}, "00000100"),
        (encode_target_epoch, read_target_epoch, 7, "00000000000700"),
        (
            encode_current,
            read_current,
            CURRENT,
            "00000000000500000004010200000000000000000000000000000010020000000200020000000000000000000000000000001102000000000000",
        ),
        (
            encode_regex,
            read_regex,
            ResolvedRegex(frozenset({"t", "t2"}), 3, 258),
            "00000302740374320000000000000003000000000000010200",
        ),
    ],
)
def test_values_have_kafkas_bytes(
    encode: Callable[[Any], bytes], read: Callable[[bytes], Any], value: object, raw: str
) -> None:
    assert encode(value).hex() == raw
    assert read(bytes.fromhex(raw)) == value


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        (ConsumerKey(records.GROUP, "g"), "0003000167"),
        (ConsumerKey(records.MEMBER, "g", "m"), "000500016700016d"),
        (ConsumerKey(records.TARGET_EPOCH, "g"), "0006000167"),
        (ConsumerKey(records.TARGET, "g", "m"), "000700016700016d"),
        (ConsumerKey(records.CURRENT, "g", "m"), "000800016700016d"),
        (ConsumerKey(records.REGEX, "g", "t.*"), "00100001670003742e2a"),
    ],
)
def test_keys_have_kafkas_bytes(key: ConsumerKey, raw: str) -> None:
    assert encode_key(key).hex() == raw
    assert read_key(bytes.fromhex(raw)) == key


@given(ASSIGNMENTS, st.builds(CurrentAssignment, INT32, INT32, st.sampled_from(MemberState), ASSIGNMENTS, ASSIGNMENTS))
def test_assignments_are_read_as_they_were_written(target: Assignment, current: CurrentAssignment) -> None:
    assert read_target(encode_target(target)) == target
    assert read_current(encode_current(current)) == current


@given(
    st.builds(
        MemberMetadata, st.none() | TEXT, st.none() | TEXT, TEXT, TEXT, NAMES, TEXT, INT32, st.none() | TEXT,
        st.none() | CLASSIC,
    ),
    st.builds(GroupEpoch, INT32, INT64),
    st.builds(ResolvedRegex, NAMES, INT64, INT64),
)  # fmt: skip
def test_members_are_read_as_they_were_written(member: MemberMetadata, group: GroupEpoch, regex: ResolvedRegex) -> None:
    assert read_member(encode_member(member)) == member
    assert read_group_epoch(encode_group_epoch(group)) == group
    assert read_regex(encode_regex(regex)) == regex


def test_state_of_a_later_program_is_read_as_unknown() -> None:
    raw = bytearray(encode_current(CURRENT))
    raw[10] = 9
    assert read_current(bytes(raw)) == CURRENT._replace(state=MemberState.UNKNOWN)


def test_keys_of_other_kinds_are_none() -> None:
    assert [read_key(encode_key(ConsumerKey(kind, "g"))) for kind in (0, 1, 2, 9, 15, 17)] == [None] * 6


READERS = [read_key, read_member, read_group_epoch, read_target, read_target_epoch, read_current, read_regex]
WRITTEN = [
    encode_key(ConsumerKey(records.MEMBER, "g", "m")), encode_member(FULL), encode_group_epoch(GroupEpoch(5, -2)),
    encode_target(CURRENT.assigned), encode_target_epoch(7), encode_current(CURRENT),
    encode_regex(ResolvedRegex(frozenset({"t"}), 1, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("read", "raw"), list(zip(READERS, WRITTEN, strict=True)), ids=lambda each: str(each)[:20])
def test_torn_records_are_corrupt(read: Callable[[bytes], object], raw: bytes) -> None:
    for size in range(len(raw)):
        with pytest.raises(Corrupt):
            read(raw[:size])


@given(st.binary(max_size=60))
def test_no_bytes_break_a_reader(raw: bytes) -> None:
    for read in READERS:
        try:
            read(raw)
            read(b"\0\0" + raw)
        except Corrupt as corrupt:
            assert str(corrupt)


def test_unknown_version_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="unknown version 1"):
        read_target(b"\0\1\1\0")
