"""Records of share groups: Kafka's bytes, and back."""

from __future__ import annotations

import pytest

from tests.unit.groups.consumer.rig import T, U, partitions
from tiered.errors import Corrupt
from tiered.groups.consumer.reconciliation import CurrentAssignment, MemberState
from tiered.groups.consumer.records import GroupEpoch
from tiered.groups.share import records
from tiered.groups.share.records import ShareGroupKey, ShareMemberMetadata, StatePartitions, StateTopic

T_BYTES = bytes(15) + b"\x10"
MEMBER = ShareMemberMetadata("r", "c", "/h", frozenset({"u", "t"}))
CURRENT = CurrentAssignment(3, 2, MemberState.STABLE, partitions(t={0, 1}))
STATE = StatePartitions({T: StateTopic("t", frozenset({2}), 5)}, {U: StateTopic("u", frozenset({0, 1}), 4)}, {T: "t"})


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (records.encode_group_epoch(GroupEpoch(7, 9)), "0000 00000007 0000000000000009 00"),
        (records.encode_target_epoch(7), "0000 00000007 00"),
        (records.encode_target(partitions(t={1})), f"0000 02 {T_BYTES.hex()} 02 00000001 00 00"),
        (records.encode_current(CURRENT), f"0000 00000003 00000002 00 02 {T_BYTES.hex()} 03 00000000 00000001 00 00"),
        (records.encode_member(MEMBER), "0000 0272 0263 032f68 03 0274 0275 00"),
        (records.encode_member(ShareMemberMetadata()), "0000 00 01 01 01 00"),
        (
            records.encode_state(StatePartitions({T: StateTopic("t", frozenset({2}), 5)}, {}, {T: "t"})),
            f"0000 02 {T_BYTES.hex()} 0274 02 00000002 0000000000000005 00 01 02 {T_BYTES.hex()} 0274 00 00",
        ),
        (records.encode_key(ShareGroupKey(records.MEMBER, "g", "m")), "000a 000167 00016d"),
        (records.encode_key(ShareGroupKey(records.GROUP, "g")), "000b 000167"),
        (records.encode_key(ShareGroupKey(records.STATE, "g")), "000f 000167"),
    ],
)
def test_bytes_are_those_of_kafka(found: bytes, wanted: str) -> None:
    assert found.hex() == wanted.replace(" ", "")


def test_values_are_read_back() -> None:
    assert records.read_group_epoch(records.encode_group_epoch(GroupEpoch(7, -9))) == GroupEpoch(7, -9)
    assert records.read_member(records.encode_member(MEMBER)) == MEMBER
    assert records.read_current(records.encode_current(CURRENT)) == CURRENT
    assert records.read_state(records.encode_state(STATE)) == STATE
    for kind in range(records.MEMBER, records.STATE + 1):
        key = ShareGroupKey(kind, "g", "m" if kind in (records.MEMBER, records.TARGET, records.CURRENT) else "")
        assert records.read_key(records.encode_key(key)) == key
    assert records.read_key(b"\0\x09\0\1g") is None


@pytest.mark.parametrize("read", [records.read_group_epoch, records.read_member, records.read_state])
def test_torn_value_or_newer_version_is_corrupt(read: object) -> None:
    assert callable(read)
    for raw in (b"\0\1", b"\0\0\0", b"\0\0\xff\xff\xff\xff\x0f"):
        with pytest.raises(Corrupt):
            read(raw)
