"""Tests of the small files in Kafka's formats: a file is parsed or refused, never guessed."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.hot.fixtures import TOPIC_ID, disk
from tiered.errors import Corrupt
from tiered.hot import checkpoints
from tiered.ids import TopicPartition


def test_leader_epochs_decode_to_what_was_encoded() -> None:
    data = checkpoints.encode_lineage(((0, 0), (3, 17)))
    assert data == b"0\n2\n0 0\n3 17\n"
    assert checkpoints.parse_lineage(data) == ((0, 0), (3, 17))


@pytest.mark.parametrize(
    "data",
    [b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0 x\n", b"0\n2\n3 0\n1 5\n", b"0\n1\n0 0", b"\0" * 12, b"\xff\xfe\n0\n", b"0"],
)
def test_leader_epochs_out_of_order_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        checkpoints.parse_lineage(data)


def test_offsets_by_partition_decode_to_what_was_encoded() -> None:
    offsets = {TopicPartition("b", 1): 7, TopicPartition("a-b", 0): 2**40}
    data = checkpoints.encode_rows(checkpoints.encode_offset_rows(sorted(offsets.items())))
    assert data == b"0\n2\na-b 0 1099511627776\nb 1 7\n"
    assert checkpoints.parse_offsets(data) == offsets
    assert checkpoints.parse_offsets(b"") == {}
    with pytest.raises(Corrupt):
        checkpoints.parse_offsets(b"0\n1\na b c\n")


def test_partition_metadata_decodes_to_the_topic_id() -> None:
    data = checkpoints.encode_metadata(TOPIC_ID)
    assert checkpoints.parse_metadata(data) == TOPIC_ID
    for torn in (data[:-1], data[:-4] + bytes(4), b"", b"version: 1\ntopic_id: " + TOPIC_ID.encode()):
        with pytest.raises(Corrupt):
            checkpoints.parse_metadata(torn)


def test_saved_file_is_whole_after_a_power_cut() -> None:
    async def run() -> None:
        on = disk()
        on.make_dirs("log")
        await checkpoints.save(on, ".", "first", b"")
        await checkpoints.save(on, "log", "name", b"old")
        await checkpoints.save(on, "log", "name", b"new")
        assert checkpoints.load(on.after_power_cut(), "log", "name") == b"new"

    asyncio.run(run())
    assert checkpoints.load(disk(), "log", "name") is None


def test_invalid_lineage_checkpoint_is_corrupt_with_its_file_name() -> None:
    with pytest.raises(Corrupt, match="t-0/leader-epoch-checkpoint"):
        checkpoints.parse_lineage(b"7\n0\n", where="t-0/leader-epoch-checkpoint")
