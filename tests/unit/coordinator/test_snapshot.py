"""Choice of the snapshot to start from, and checks of a snapshot's bytes."""

from __future__ import annotations

import pytest

from tests.refusal import refuses
from tiered.coordination.snapshot_stores import GROUP_SNAPSHOTS
from tiered.coordinator.log_records import BATCH_BYTES, decode_batch, encode_batches
from tiered.coordinator.snapshot import (
    SnapshotChoice,
    SnapshotName,
    choose_snapshot,
    decode_snapshot,
    encode_snapshot,
)
from tiered.errors import Code, Corrupt
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.ids import PartitionId, TopicId
from tiered.shard import CoordinatorRecord, ProducerIdAndEpoch

PID = PartitionId(TopicId("AAAAAAAAAAAAAAAAAAAAAA"), 7)


def name(epoch: int, offset: int) -> SnapshotName:
    return SnapshotName(GROUP_SNAPSHOTS, PID, epoch, offset)


OLD, NEW = name(1, 50), name(1, 100)


@pytest.mark.parametrize(
    ("names", "log", "epochs", "found", "what"),
    [
        ([], (0, 10), [(0, 0)], SnapshotChoice(None, False), "a log that was never cut"),
        ([OLD, NEW], (0, 120), [(1, 0)], SnapshotChoice(NEW, False), "the newest in the log saves most of the replay"),
        ([OLD, NEW], (100, 120), [(1, 0)], SnapshotChoice(NEW, False), "the one that the log was cut at"),
        ([OLD, NEW], (0, 0), [], SnapshotChoice(NEW, True), "the log is lost: it starts over at the snapshot"),
        ([OLD, NEW], (0, 80), [(1, 0)], SnapshotChoice(NEW, True), "the log's end is lost: the snapshot has it"),
        ([OLD, NEW], (0, 80), [(1, 0), (2, 60)], SnapshotChoice(OLD, False), "the leader of 1 was fenced at 60"),
        ([OLD, NEW], (0, 120), [(1, 0), (2, 60)], SnapshotChoice(OLD, False), "as before, and the log is longer"),
        ([OLD, NEW], (0, 120), [(1, 0), (2, 40)], SnapshotChoice(None, False), "both diverged from the log at 40"),
        ([OLD, name(2, 40)], (40, 80), [(2, 40)], SnapshotChoice(name(2, 40), False), "the higher epoch is newer"),
        ([NEW, name(2, 40)], (0, 0), [], SnapshotChoice(name(2, 40), True), "also where the log is lost"),
        ([name(3, 60)], (50, 80), [(2, 50)], SnapshotChoice(name(3, 60), False), "that leader wrote only its snapshot"),
        ([OLD], (60, 80), [(1, 60)], SnapshotChoice(OLD, False), "what lies between is lost"),
        ([name(0, 50)], (50, 50), [], SnapshotChoice(name(0, 50), False), "cut to its end, and nothing written since"),
    ],
)  # fmt: skip
def test_newest_usable_snapshot_is_chosen(
    names: list[SnapshotName], log: tuple[int, int], epochs: list[tuple[int, int]], found: SnapshotChoice, what: str
) -> None:
    assert choose_snapshot(names, *log, LeaderEpochs(epochs)) == found, what
    assert choose_snapshot(names[::-1], *log, LeaderEpochs(epochs)) == found, what


def test_key_has_epoch_and_offset_and_sorts_like_snapshots() -> None:
    names = [name(9, 5), name(10, 4), name(10, 40)]
    assert [GROUP_SNAPSHOTS.parse_key(each.key) for each in names] == names
    assert sorted(each.key for each in names) == [each.key for each in names]
    for key in ("groups/x", NEW.key + "x", NEW.key.removeprefix("groups/")):
        assert GROUP_SNAPSHOTS.parse_key(key) is None


RECORDS = [CoordinatorRecord(b"k%d" % n, b"v%d" % n) for n in range(2500)]


def sealed(records: list[CoordinatorRecord]) -> bytes:
    return encode_snapshot(NEW, encode_batches(records, 5), len(records), 5)


def test_large_records_share_no_batch() -> None:
    large = [CoordinatorRecord(b"k%d" % n, bytes(BATCH_BYTES)) for n in range(3)] + RECORDS[:5]
    assert [len(decode_batch(each)) for each in encode_batches(large, 5)] == [1, 1, 1, 5]
    assert [record for each in decode_snapshot(NEW, sealed(large)) for record in decode_batch(each)] == large


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_snapshot_is_read_as_it_was_written(count: int) -> None:
    found = [record for each in decode_snapshot(NEW, sealed(RECORDS[:count])) for record in decode_batch(each)]
    assert found == RECORDS[:count]


def test_records_of_transactions_keep_their_producers_and_their_order() -> None:
    one, two = ProducerIdAndEpoch(7, 1), ProducerIdAndEpoch(8, 0)
    records = [RECORDS[n]._replace(producer=producer) for n, producer in enumerate((one, None, None, two, one, one))]
    body = sealed(records)
    batches = decode_snapshot(NEW, body)
    assert [len(decode_batch(each)) for each in batches] == [1, 2, 1, 2]
    assert [record for each in batches for record in decode_batch(each)] == records
    assert (body[9], sealed(RECORDS[:3])[9]) == (2, 1), "older programs refuse what they would misread"


def test_changed_byte_anywhere_is_corrupt() -> None:
    body = sealed(RECORDS[:2])
    for at in range(len(body)):
        if at in (8, 9, 10, 11):  # version, and two bytes that mean nothing
            continue
        broken = bytearray(body)
        broken[at] ^= 1
        with pytest.raises(Corrupt):
            decode_snapshot(NEW, bytes(broken))
    for end in range(len(body)):
        with pytest.raises(Corrupt):
            decode_snapshot(NEW, body[:end])
    with pytest.raises(Corrupt):
        decode_snapshot(OLD, body)


def test_snapshot_of_a_newer_version_is_refused() -> None:
    body = bytearray(sealed(RECORDS[:2]))
    body[9] = 3
    with refuses(Code.UNSUPPORTED_VERSION):
        decode_snapshot(NEW, bytes(body))
