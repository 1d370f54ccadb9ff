"""Tests of the rules over the bucket, each once kept and once broken, with objects that the test puts and deletes."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.cluster.disk_logs import batches_of
from tests.sim.cluster.expiry import LogBatch
from tests.sim.cluster.model import DECISION_DELAY_NS, ClusterModel
from tests.sim.cluster.options import COMMON_SETTINGS
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.store import SimBucket
from tests.unit.cold.rig import PID, TOPIC, batch, entry, manifest
from tiered.cold.layout import manifest_key
from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.cold.manifest_codec import encode
from tiered.ids import PartitionId, TopicId
from tiered.metadata.changes import (
    ALL_BROKERS,
    NO_LEADER,
    BrokerConfigChanged,
    BrokerRegistered,
    Change,
    ControllerElected,
    LossReported,
    PartitionChanged,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from tiered.metadata.image import Image
from tiered.metadata.layout import BOUNDARY_KEY, Boundary, Entry, SnapshotRef, encode_boundary, encode_entry, slot_key
from tiered.metadata.parts.producer_ids import ProducerIdsImage

BEGINNING: tuple[Change, ...] = (
    ControllerElected(1, 1, "a"),
    BrokerRegistered(1, "a", "d", "b1:80", "", 0),
    TopicCreated(TOPIC, PID.topic_id, ((1,),) * (PID.partition + 1), {"retention.ms": "-1"}, 0),
    PartitionChanged(PID.topic_id, PID.partition, 1, 1, (1,), ()),
)
"""Slot 0: one broker, which leads the only partition of the test."""


def at_once(call: Coroutine[Any, Any, Any]) -> None:
    """Runs a coroutine to its end: the bucket in memory never waits."""
    with pytest.raises(StopIteration):
        call.send(None)


class ModelledBucket:
    """A bucket with slot 0 in it, and the findings since."""

    def __init__(self) -> None:
        self.broken_rules: list[str] = []
        self.messages: list[str] = []
        self.bucket = SimBucket(SimLoop(1))
        self.now = 0
        self.model = ClusterModel(self.bucket, COMMON_SETTINGS, self._on_finding, lambda: self.now)
        self.put_slot(0, *BEGINNING)
        self.copies = self.model.copies_of(PID)
        self.copies.on_leader(1, "a", 1, 0)
        assert self.broken_rules == []

    def _on_finding(self, rule: str, what: str) -> None:
        self.broken_rules.append(rule)
        self.messages.append(what)

    def put(self, key: str, data: bytes) -> None:
        at_once(self.bucket.memory.put(key, data))

    def delete(self, key: str) -> None:
        at_once(self.bucket.memory.delete([key]))

    def put_slot(self, slot: int, *changes: Change, epoch: int = 1, nonce: str = "n") -> None:
        self.put(slot_key(slot), encode_entry(Entry(slot, epoch, nonce, changes)))

    def put_boundary(self, sequence: int, collected: int = -1, *snapshots: SnapshotRef) -> None:
        self.put(BOUNDARY_KEY, encode_boundary(Boundary(snapshots, collected, sequence)))

    def put_manifest(self, made: Manifest) -> None:
        """Sets the manifest of the partition from now on."""
        self.put(manifest_key(PID), encode(made))

    def write(self, base: int, *, records: int = 10, epoch: int = 1) -> SegmentEntry:
        """Writes a committed batch and its segment object, which no manifest names yet."""
        data = batch(base, records)
        for each in batches_of(data):
            self.copies.on_append(1, each)
        self.copies.on_high_watermark(1, 1, base + records, (1,), 1)
        return self.upload(base, data, records=records, epoch=epoch)

    def upload(self, base: int, data: bytes, *, records: int = 10, epoch: int = 1) -> SegmentEntry:
        made = entry(base, base + records, epoch=epoch, size=len(data))
        self.put(made.key, data)
        return made


def make_cold() -> tuple[ModelledBucket, SegmentEntry, SegmentEntry]:
    """Returns a bucket with two named segments."""
    kept = ModelledBucket()
    one, two = kept.write(0), kept.write(10)
    kept.put_manifest(manifest(one, two))
    assert kept.broken_rules == [] and kept.copies.cold_end == 20
    return kept, one, two


def test_i20_object_written_twice_is_reported() -> None:
    kept, one, _ = make_cold()
    kept.put(one.key, batch(0))
    assert kept.broken_rules == []
    kept.put(one.key, batch(0, size=50))
    assert kept.broken_rules == ["I20"]


def test_i20_upload_of_uncommitted_records_is_reported() -> None:
    kept, one, two = make_cold()
    three = kept.upload(20, batch(20))
    kept.put_manifest(manifest(one, two, three))
    assert kept.broken_rules == ["I20"], "nobody has committed it"
    kept, one, two = make_cold()
    kept.write(20)
    kept.put_manifest(manifest(one, two, kept.upload(20, batch(20, size=50))))
    assert kept.broken_rules == ["I20", "I20"], (
        "the object is another one than that which went up, and holds something else"
    )


def test_i20_offset_that_moves_to_another_object_is_reported() -> None:
    kept, one, two = make_cold()
    again = replace(two, key=kept.upload(10, batch(10), epoch=2).key)
    kept.put_manifest(manifest(one, two))
    assert kept.broken_rules == []
    kept.put_manifest(manifest(one, again))
    assert kept.broken_rules == ["I20"]


def test_i21_hole_in_the_cold_range_is_reported() -> None:
    kept, one, two = make_cold()
    for wrong in (
        replace(manifest(one, two), nodes=(one, replace(two, base_offset=11))),
        replace(manifest(one, two), nodes=(one, replace(two, base_offset=9))),
        replace(manifest(one, two), cold_end_offset=21),
        replace(manifest(two), log_start_offset=5),
    ):
        kept.broken_rules = []
        kept.put_manifest(wrong)
        assert kept.broken_rules == ["I21"]


def test_i21_cold_range_that_shrinks_is_reported() -> None:
    kept, one, two = make_cold()
    kept.put_manifest(manifest(one))
    assert kept.broken_rules == ["I21"]
    kept, one, two = make_cold()
    kept.model.requested_start = lambda tp: 10
    kept.put_manifest(replace(manifest(two), log_start_offset=10))
    assert kept.broken_rules == []
    kept.put_manifest(manifest(one, two))
    assert kept.broken_rules == ["I21"]


def test_i23_missing_or_deleted_named_object_is_reported() -> None:
    kept, one, two = make_cold()
    unnamed = kept.write(20)
    kept.delete(unnamed.key)
    assert kept.broken_rules == []
    kept.delete(two.key)
    assert kept.broken_rules == ["I23"]
    kept, one, two = make_cold()
    kept.delete(manifest_key(PID))
    assert kept.broken_rules == ["I23"]
    kept, one, two = make_cold()
    kept.put_manifest(manifest(one, two, entry(20, 30)))
    assert kept.broken_rules == ["I23"]


def test_i23_all_objects_of_a_deleted_topic_may_go() -> None:
    kept, one, _ = make_cold()
    kept.put_slot(1, TopicDeleted(PID.topic_id, 0))
    kept.delete(one.key)
    assert kept.broken_rules == []


def test_i23_expired_object_may_go_and_its_expiry_is_known() -> None:
    kept, one, two = make_cold()
    kept.model.requested_start = lambda tp: 10
    assert kept.model.expiry_of(PID, 0, one.key) is None
    kept.put_manifest(replace(manifest(two), log_start_offset=10))
    gone = kept.model.expiry_of(PID, 0, one.key)
    assert gone is not None and gone.offset == 10 and kept.model.unreferenced() == [one.key]
    kept.delete(one.key)
    assert kept.broken_rules == []


def test_i22_early_expiry_in_a_manifest_is_reported() -> None:
    kept, _, two = make_cold()
    kept.put_manifest(replace(manifest(two), log_start_offset=10))
    assert kept.broken_rules == ["I22"]


def test_i16_manifest_change_of_an_earlier_epoch_is_reported() -> None:
    kept, one, two = make_cold()
    late, new = kept.write(20), kept.upload(20, batch(20), epoch=3)
    kept.put_manifest(replace(manifest(one, two), leader_epoch=3))
    assert kept.broken_rules == []
    kept.put_manifest(replace(manifest(one, two, new), leader_epoch=3))
    assert kept.broken_rules == [], "what was named under an earlier epoch stays"
    kept, one, two = make_cold()
    late = kept.write(20)
    kept.put_manifest(replace(manifest(one, two), leader_epoch=3))
    kept.put_manifest(replace(manifest(one, two, late), leader_epoch=3))
    assert kept.broken_rules == ["I16"] and "was under epoch 3" in kept.messages[0]


def test_m3_deleted_slot_above_the_boundary_is_reported() -> None:
    kept = ModelledBucket()
    for slot in (1, 2):
        kept.put_slot(slot)
    kept.put_boundary(1, 1)
    kept.delete(slot_key(1))
    assert kept.broken_rules == []
    kept.delete(slot_key(2))
    assert kept.broken_rules == ["M3"]


@pytest.mark.parametrize(("sequence", "collected", "red"), [(2, 1, []), (2, 0, ["M3"]), (1, 1, ["M3"])])
def test_m3_boundary_that_goes_back_is_reported(sequence: int, collected: int, red: list[str]) -> None:
    kept = ModelledBucket()
    kept.put_boundary(1, 1)
    kept.put_boundary(sequence, collected)
    assert kept.broken_rules == red


def test_i23_missing_or_deleted_snapshot_of_the_boundary_is_reported() -> None:
    kept = ModelledBucket()
    snapshot = SnapshotRef(0, "meta/snap/0")
    kept.put_boundary(1, -1, snapshot)
    assert kept.broken_rules == ["I23"]
    kept = ModelledBucket()
    kept.put(snapshot.key, b"")
    kept.put_boundary(1, -1, snapshot)
    assert kept.broken_rules == []
    kept.delete(snapshot.key)
    assert kept.broken_rules == ["I23"]


def test_i24_slots_are_dense_written_once_and_apply() -> None:
    kept = ModelledBucket()
    kept.put_slot(1)
    assert kept.broken_rules == [] and kept.model.image.slot == 1
    kept.put_slot(3)
    assert kept.broken_rules == ["I24"]
    kept.put_slot(2, ControllerElected(1, 1, "a"))
    assert kept.broken_rules == ["I24"] * 2, "it does not apply: that epoch is over"
    kept.put(slot_key(2), b"garbled")
    assert kept.broken_rules == ["I24"] * 3
    kept = ModelledBucket()
    kept.put_slot(0, nonce="another")
    assert kept.broken_rules[0] == "I20", "it was written twice"


def test_m3_slot_below_the_boundary_is_void() -> None:
    kept = ModelledBucket()
    kept.put_boundary(1, 1)
    kept.put_slot(1, TopicDeleted(PID.topic_id, 0), epoch=0)
    assert kept.broken_rules == [] and kept.model.image.slot == 0 and kept.model.counts["void_slots"] == 1


def test_i25_controller_epoch_that_goes_back_is_reported() -> None:
    kept = ModelledBucket()
    kept.put_slot(1, epoch=2)
    kept.put_slot(2, epoch=2)
    assert kept.broken_rules == []
    kept.put_slot(3, epoch=1)
    assert kept.broken_rules == ["I25"]


def test_m5_image_that_is_no_prefix_of_the_log_is_reported() -> None:
    kept = ModelledBucket()
    before = kept.model.image
    kept.put_slot(1)
    for image in (Image(), before, kept.model.image, replace(kept.model.image)):
        kept.model.check_image("b1", image)
    assert kept.broken_rules == []
    kept.model.check_image("b1", replace(before, producer_ids_image=ProducerIdsImage(1000)))
    assert kept.broken_rules == ["I24"]
    kept.model.check_image("b1", replace(before, slot=2))
    assert kept.broken_rules == ["I24", "M5"]


def test_r3_leader_uses_the_min_isr_of_the_log_or_of_its_last_applied_slot() -> None:
    kept = ModelledBucket()
    acted = [0]
    kept.model.applied_slot = lambda node: acted[0]
    kept.put_slot(1, TopicConfigChanged(PID.topic_id, {"min.insync.replicas": "2"}))
    assert kept.model.min_isr(PID, 1, 1, 3) == 1 and kept.model.min_isr(PID, 1, 2, 3) == 2
    assert kept.broken_rules == [], "it has not acted on the change yet, or is about to"
    assert kept.model.min_isr(PID, 1, 2, 1) == 1, "of one replica"
    kept.now = 5
    kept.put_slot(2, BrokerConfigChanged(ALL_BROKERS, {"log.flush": "ack"}))
    acted[0] = 1
    kept.model.min_isr(PID, 1, 1, 3)
    assert kept.broken_rules == ["R3"]


def test_configuration_of_a_topic_follows_the_log() -> None:
    kept = ModelledBucket()
    assert kept.model.flush(PID) == {"none"}
    kept.now = 5
    kept.put_slot(1, BrokerConfigChanged(ALL_BROKERS, {"log.flush": "ack", "min.insync.replicas": "2"}))
    assert kept.model.flush(PID) == {"none", "ack"}
    assert kept.model.config(PID.topic_id).min_insync_replicas == 2
    kept.put_slot(2, TopicConfigChanged(PID.topic_id, {"min.insync.replicas": "1"}))
    assert kept.model.config(PID.topic_id).min_insync_replicas == 1
    assert [each.flush for each in kept.model.configs_since(PID.topic_id, 5)] == ["none", "ack", "ack"]
    assert [each.flush for each in kept.model.configs_since(PID.topic_id, 6)] == ["ack"]


@pytest.mark.parametrize(("allowed", "red"), [("true", []), ("false", ["R4"])])
def test_unclean_election_may_be_allowed_within_a_slot_only(allowed: str, red: list[str]) -> None:
    """One slot allows it, elects a leader with less, and forbids it again."""
    kept, topic_id, name = ModelledBucket(), TopicId("B" * 22), "unclean.leader.election.enable"
    kept.model.lives["b"] = 1  # the damage below ended the life before
    kept.put_slot(
        1,
        BrokerRegistered(2, "b", "e", "b2:80", "", 0),
        TopicCreated("u", topic_id, ((1, 2),), {}, 0),
        PartitionChanged(topic_id, 0, 1, 0, (1, 2), ()),
    )
    copies = kept.model.copies_of(PartitionId(topic_id, 0))
    copies.on_leader(1, "a", 0, 0)
    for node in (1, 2):
        copies.on_append(node, LogBatch(0, 9, 0, 1))
    copies.on_high_watermark(1, 0, 10, (1, 2), 1)
    for node, lives in ((1, [LogBatch(0, 9, 0, 1)]), (2, [])):
        copies.on_damage(node, 0, lives, 0, is_provable=False)
    kept.put_slot(2, PartitionChanged(topic_id, 0, NO_LEADER, 0, (), (), (1, 2)))
    kept.put_slot(
        3,
        BrokerConfigChanged(ALL_BROKERS, {name: allowed}),
        PartitionChanged(topic_id, 0, 2, 1, (2,), ()),
        LossReported(topic_id, 0, 1, 0, 0),
        TopicConfigChanged(topic_id, {name: "false"}),
    )
    assert [rule for rule in kept.broken_rules if rule == "R4"] == red


def test_i22_expiry_by_a_recent_configuration_is_allowed() -> None:
    for later, red in ((1, []), (DECISION_DELAY_NS + 1, ["I22"])):
        kept, _, two = make_cold()
        kept.put_slot(1, TopicConfigChanged(PID.topic_id, {"retention.bytes": "1"}))
        kept.now = 5
        kept.put_slot(2, TopicConfigChanged(PID.topic_id, {"retention.bytes": "-1"}))
        kept.now = 5 + later
        kept.put_manifest(replace(manifest(two), log_start_offset=10))
        assert kept.broken_rules == red


def test_i21_local_log_that_starts_above_its_manifest_is_reported() -> None:
    kept = ModelledBucket()
    kept.model.on_local_log_start(PID, 0)
    kept.put_manifest(manifest())
    kept.model.on_local_log_start(PID, 5)
    assert kept.broken_rules == [], "nothing is named: it became tiered when it had lost its beginning"
    kept, _, _ = make_cold()
    start = kept.model._cold_bounds[PID][0]
    kept.model.on_local_log_start(PID, start)
    assert kept.broken_rules == []
    kept.model.on_local_log_start(PID, start + 1)
    assert kept.broken_rules[0] == "I21"
