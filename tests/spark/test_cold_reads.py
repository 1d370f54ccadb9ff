"""Tests of repeated reads of a cold topic: they get what has changed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tiered.log.bucket import ColdTopicReader
from tests.spark import filling
from tiered.errors import Refused
from tiered.ids import PartitionId
from tiered.records.batch import encode_batch

TOPIC = filling.topic_id(3)
PARTITIONS = 20


def add_records(store: str, partition: int, first: int, count: int = 5) -> None:
    rows = [(filling.BASE_MS, None, b"v", ())] * count
    filling.upload(store, "t", PartitionId(TOPIC, partition), list(filling.segments(rows, base_offset=first)))


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/store"
    filling.create_topic(url, "t", TOPIC, PARTITIONS)
    for partition in range(3):
        add_records(url, partition, 0)
    return url


@pytest.fixture
def reader(store: str) -> Iterator[ColdTopicReader]:
    found = ColdTopicReader(store)
    yield found
    found.close()


def ends(reader: ColdTopicReader) -> dict[int, int]:
    return {each.partition: each.cold_end_offset for each in reader.read("t", {}).partitions if each.cold_end_offset}


def test_second_read_gets_only_changed_manifests(store: str, reader: ColdTopicReader) -> None:
    assert ends(reader) == {0: 5, 1: 5, 2: 5}
    before = reader.count_requests()
    assert ends(reader) == {0: 5, 1: 5, 2: 5}
    after = reader.count_requests()
    assert (after["get"] - before["get"], after["list"]) == (2, 1), "the next slot and the boundary; one list"
    add_records(store, 1, 5)
    add_records(store, 7, 0)
    assert ends(reader) == {0: 5, 1: 10, 2: 5, 7: 5}
    assert reader.count_requests()["get"] - after["get"] == 4


def test_change_of_a_topic_shows_in_one_list(store: str, reader: ColdTopicReader) -> None:
    assert reader.has_changed(TOPIC), "it was never read"
    reader.read("t", {})
    before = reader.count_requests()
    assert not reader.has_changed(TOPIC)
    assert reader.count_requests() == {**before, "list": before.get("list", 0) + 1}
    add_records(store, 19, 0)
    assert reader.has_changed(TOPIC)
    ends(reader)
    assert not reader.has_changed(TOPIC)


def test_topics_that_come_and_go_are_seen_by_their_slots(store: str, reader: ColdTopicReader) -> None:
    assert reader.topic_id("t") == TOPIC
    filling.create_topic(store, "other", filling.topic_id(4), 1)
    assert reader.topic_names() == {"t": TOPIC, "other": filling.topic_id(4)}
    filling.delete_topic(store, TOPIC)
    with pytest.raises(Refused, match="there is no topic t"):
        reader.read("t", {})
    filling.create_topic(store, "t", filling.topic_id(5), 1)
    assert reader.read("t", {}).topic_id == filling.topic_id(5)


def test_first_segment_of_an_added_partition_shows_at_once(store: str, reader: ColdTopicReader) -> None:
    """Also if more partitions have no manifest than have been added."""
    identity = filling.topic_id(7)
    filling.create_topic(store, "added", identity, 4)
    for number in (0, 1):
        filling.upload(store, "added", PartitionId(identity, number), [filling.Segment(0, 1, ONE)])
    reader.read("added", {})
    assert not reader.has_changed(identity)
    filling.upload(store, "added", PartitionId(identity, 4), [filling.Segment(0, 1, ONE)])
    assert reader.has_changed(identity)


ONE = encode_batch([(filling.BASE_MS, b"k", b"v", ())], leader_epoch=filling.EPOCH)
