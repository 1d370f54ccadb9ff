"""The rules over the bucket, each once kept and once broken: by objects made by hand, put there and deleted again."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.cluster.model import DECIDED_NS, Truth, batches_of
from tests.sim.cluster.options import COMMON
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.store import SimBucket
from tests.unit.cold.rig import PID, TOPIC, batch, entry, manifest
from tiered.cold.layout import manifest_key
from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.cold.manifest_codec import encode
from tiered.metadata.changes import (
    ALL_BROKERS,
    BrokerConfigChanged,
    BrokerRegistered,
    Change,
    ControllerElected,
    PartitionChanged,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from tiered.metadata.image import Image
from tiered.metadata.layout import BOUNDARY_KEY, Boundary, Entry, SnapshotRef, encode_boundary, encode_entry, slot_key

BEGINNING: tuple[Change, ...] = (
    ControllerElected(1, 1, "a"),
    BrokerRegistered(1, "a", "d", "b1:80", "", 0),
    TopicCreated(TOPIC, PID.topic_id, ((1,),) * (PID.partition + 1), {"retention.ms": "-1"}, 0),
    PartitionChanged(PID.topic_id, PID.partition, 1, 1, (1,), ()),
)
"""Slot 0: one broker, which leads the one partition that matters here."""


def at_once(call: Coroutine[Any, Any, Any]) -> None:
    """The bucket in memory gives up no loop."""
    with pytest.raises(StopIteration):
        call.send(None)


class Kept:
    """A bucket with slot 0 in it, and what was found wrong since."""

    def __init__(self) -> None:
        self.red: list[str] = []
        self.said: list[str] = []
        self.bucket = SimBucket(SimLoop(1))
        self.now = 0
        self.truth = Truth(self.bucket, COMMON, self._hear, lambda: self.now)
        self.slot(0, *BEGINNING)
        self.copies = self.truth.of(PID)
        self.copies.leads(1, "a", 1, 0)
        assert self.red == []

    def _hear(self, rule: str, what: str) -> None:
        self.red.append(rule)
        self.said.append(what)

    def put(self, key: str, data: bytes) -> None:
        at_once(self.bucket.memory.put(key, data))

    def delete(self, key: str) -> None:
        at_once(self.bucket.memory.delete([key]))

    def slot(self, slot: int, *changes: Change, epoch: int = 1, nonce: str = "n") -> None:
        self.put(slot_key(slot), encode_entry(Entry(slot, epoch, nonce, changes)))

    def bound(self, sequence: int, collected: int = -1, *snapshots: SnapshotRef) -> None:
        self.put(BOUNDARY_KEY, encode_boundary(Boundary(snapshots, collected, sequence)))

    def name(self, made: Manifest) -> None:
        """What the partition's manifest says from now on."""
        self.put(manifest_key(PID), encode(made))

    def write(self, base: int, *, records: int = 10, epoch: int = 1) -> SegmentEntry:
        """A batch that is committed, and cold: its segment is there, and nothing names it yet."""
        data = batch(base, records)
        for each in batches_of(data):
            self.copies.appended(1, each)
        self.copies.watermark(1, 1, base + records, (1,), 1)
        return self.upload(base, data, records=records, epoch=epoch)

    def upload(self, base: int, data: bytes, *, records: int = 10, epoch: int = 1) -> SegmentEntry:
        made = entry(base, base + records, epoch=epoch, size=len(data))
        self.put(made.key, data)
        return made


def cold() -> tuple[Kept, SegmentEntry, SegmentEntry]:
    """Two segments that are named."""
    kept = Kept()
    one, two = kept.write(0), kept.write(10)
    kept.name(manifest(one, two))
    assert kept.red == [] and kept.copies.cold_end == 20
    return kept, one, two


def test_i20_an_object_is_written_once() -> None:
    kept, one, _ = cold()
    kept.put(one.key, batch(0))
    assert kept.red == []
    kept.put(one.key, batch(0, size=50))
    assert kept.red == ["I20"]


def test_i20_what_goes_up_is_what_is_committed() -> None:
    kept, one, two = cold()
    three = kept.upload(20, batch(20))
    kept.name(manifest(one, two, three))
    assert kept.red == ["I20"], "nobody has committed it"
    kept, one, two = cold()
    kept.write(20)
    kept.name(manifest(one, two, kept.upload(20, batch(20, size=50))))
    assert kept.red == ["I20", "I20"], "the object is another one than that which went up, and holds something else"


def test_i20_an_offset_stays_in_its_object() -> None:
    kept, one, two = cold()
    again = replace(two, key=kept.upload(10, batch(10), epoch=2).key)
    kept.name(manifest(one, two))
    assert kept.red == []
    kept.name(manifest(one, again))
    assert kept.red == ["I20"]


def test_i21_what_is_cold_has_no_hole() -> None:
    kept, one, two = cold()
    for wrong in (
        replace(manifest(one, two), nodes=(one, replace(two, base_offset=11))),
        replace(manifest(one, two), nodes=(one, replace(two, base_offset=9))),
        replace(manifest(one, two), cold_end_offset=21),
        replace(manifest(two), log_start_offset=5),
    ):
        kept.red = []
        kept.name(wrong)
        assert kept.red == ["I21"]


def test_i21_what_is_cold_does_not_become_less() -> None:
    kept, one, two = cold()
    kept.name(manifest(one))
    assert kept.red == ["I21"]
    kept, one, two = cold()
    kept.truth.asked_to_go = lambda where: 10
    kept.name(replace(manifest(two), log_start_offset=10))
    assert kept.red == []
    kept.name(manifest(one, two))
    assert kept.red == ["I21"]


def test_i23_what_is_named_is_there_and_stays() -> None:
    kept, one, two = cold()
    unnamed = kept.write(20)
    kept.delete(unnamed.key)
    assert kept.red == []
    kept.delete(two.key)
    assert kept.red == ["I23"]
    kept, one, two = cold()
    kept.delete(manifest_key(PID))
    assert kept.red == ["I23"]
    kept, one, two = cold()
    kept.name(manifest(one, two, entry(20, 30)))
    assert kept.red == ["I23"]


def test_i23_of_a_deleted_topic_everything_may_go() -> None:
    kept, one, _ = cold()
    kept.slot(1, TopicDeleted(PID.topic_id, 0))
    kept.delete(one.key)
    assert kept.red == []


def test_i23_what_has_expired_may_go_and_what_made_it_so_is_known() -> None:
    kept, one, two = cold()
    kept.truth.asked_to_go = lambda where: 10
    assert kept.truth.gone_since(PID, 0, one.key) is None
    kept.name(replace(manifest(two), log_start_offset=10))
    gone = kept.truth.gone_since(PID, 0, one.key)
    assert gone is not None and gone.offset == 10 and kept.truth.unreferenced() == [one.key]
    kept.delete(one.key)
    assert kept.red == []


def test_i22_a_manifest_lets_nothing_go_early() -> None:
    kept, _, two = cold()
    kept.name(replace(manifest(two), log_start_offset=10))
    assert kept.red == ["I22"]


def test_i16_a_manifest_names_nothing_of_an_earlier_epoch() -> None:
    kept, one, two = cold()
    late, new = kept.write(20), kept.upload(20, batch(20), epoch=3)
    kept.name(replace(manifest(one, two), leader_epoch=3))
    assert kept.red == []
    kept.name(replace(manifest(one, two, new), leader_epoch=3))
    assert kept.red == [], "what was named under an earlier epoch stays"
    kept, one, two = cold()
    late = kept.write(20)
    kept.name(replace(manifest(one, two), leader_epoch=3))
    kept.name(replace(manifest(one, two, late), leader_epoch=3))
    assert kept.red == ["I16"] and "was under epoch 3" in kept.said[0]


def test_m3_no_slot_goes_above_the_boundary() -> None:
    kept = Kept()
    for slot in (1, 2):
        kept.slot(slot)
    kept.bound(1, 1)
    kept.delete(slot_key(1))
    assert kept.red == []
    kept.delete(slot_key(2))
    assert kept.red == ["M3"]


@pytest.mark.parametrize(("sequence", "collected", "red"), [(2, 1, []), (2, 0, ["M3"]), (1, 1, ["M3"])])
def test_m3_the_boundary_only_grows(sequence: int, collected: int, red: list[str]) -> None:
    kept = Kept()
    kept.bound(1, 1)
    kept.bound(sequence, collected)
    assert kept.red == red


def test_i23_the_boundary_names_what_is_there_and_stays() -> None:
    kept = Kept()
    snapshot = SnapshotRef(0, "meta/snap/0")
    kept.bound(1, -1, snapshot)
    assert kept.red == ["I23"]
    kept = Kept()
    kept.put(snapshot.key, b"")
    kept.bound(1, -1, snapshot)
    assert kept.red == []
    kept.delete(snapshot.key)
    assert kept.red == ["I23"]


def test_i24_slots_are_dense_written_once_and_fit() -> None:
    kept = Kept()
    kept.slot(1)
    assert kept.red == [] and kept.truth.image.slot == 1
    kept.slot(3)
    assert kept.red == ["I24"]
    kept.slot(2, ControllerElected(1, 1, "a"))
    assert kept.red == ["I24"] * 2, "it does not apply: that epoch is over"
    kept.put(slot_key(2), b"garbled")
    assert kept.red == ["I24"] * 3
    kept = Kept()
    kept.slot(0, nonce="another")
    assert kept.red[0] == "I20", "it was written twice"


def test_m3_a_slot_below_the_boundary_is_void() -> None:
    kept = Kept()
    kept.bound(1, 1)
    kept.slot(1, TopicDeleted(PID.topic_id, 0), epoch=0)
    assert kept.red == [] and kept.truth.image.slot == 0 and kept.truth.counts["void_slots"] == 1


def test_i25_epochs_of_controllers_never_go_back() -> None:
    kept = Kept()
    kept.slot(1, epoch=2)
    kept.slot(2, epoch=2)
    assert kept.red == []
    kept.slot(3, epoch=1)
    assert kept.red == ["I25"]


def test_m5_a_broker_goes_by_a_prefix_of_the_log() -> None:
    kept = Kept()
    before = kept.truth.image
    kept.slot(1)
    for image in (Image(), before, kept.truth.image, replace(kept.truth.image)):
        kept.truth.check_image("b1", image)
    assert kept.red == []
    kept.truth.check_image("b1", replace(before, next_producer_id=1000))
    assert kept.red == ["I24"]
    kept.truth.check_image("b1", replace(before, slot=2))
    assert kept.red == ["I24", "M5"]


def test_r3_a_leader_goes_by_what_the_log_says_or_said_when_it_acted_last() -> None:
    kept = Kept()
    acted = [0]
    kept.truth.acted = lambda node: acted[0]
    kept.slot(1, TopicConfigChanged(PID.topic_id, {"min.insync.replicas": "2"}))
    assert kept.truth.min_isr(PID, 1, 1, 3) == 1 and kept.truth.min_isr(PID, 1, 2, 3) == 2
    assert kept.red == [], "it has not acted on the change yet, or is about to"
    assert kept.truth.min_isr(PID, 1, 2, 1) == 1, "of one replica"
    kept.now = 5
    kept.slot(2, BrokerConfigChanged(ALL_BROKERS, {"log.flush": "ack"}))
    acted[0] = 1
    kept.truth.min_isr(PID, 1, 1, 3)
    assert kept.red == ["R3"]


def test_what_a_topic_goes_by_follows_the_log() -> None:
    kept = Kept()
    assert kept.truth.flush(PID) == {"none"}
    kept.now = 5
    kept.slot(1, BrokerConfigChanged(ALL_BROKERS, {"log.flush": "ack", "min.insync.replicas": "2"}))
    assert kept.truth.flush(PID) == {"none", "ack"}
    assert kept.truth.config(PID.topic_id).min_insync_replicas == 2
    kept.slot(2, TopicConfigChanged(PID.topic_id, {"min.insync.replicas": "1"}))
    assert kept.truth.config(PID.topic_id).min_insync_replicas == 1
    assert [each.flush for each in kept.truth.configs_since(PID.topic_id, 5)] == ["none", "ack", "ack"]
    assert [each.flush for each in kept.truth.configs_since(PID.topic_id, 6)] == ["ack"]


def test_i22_what_a_topic_kept_until_lately_may_still_go() -> None:
    for later, red in ((1, []), (DECIDED_NS + 1, ["I22"])):
        kept, _, two = cold()
        kept.slot(1, TopicConfigChanged(PID.topic_id, {"retention.bytes": "1"}))
        kept.now = 5
        kept.slot(2, TopicConfigChanged(PID.topic_id, {"retention.bytes": "-1"}))
        kept.now = 5 + later
        kept.name(replace(manifest(two), log_start_offset=10))
        assert kept.red == red


def test_i21_a_log_on_a_disk_starts_no_higher_than_its_manifest() -> None:
    kept = Kept()
    kept.truth.starts_here(PID, 0)
    kept.name(manifest())
    kept.truth.starts_here(PID, 5)
    assert kept.red == [], "nothing is named: it became tiered when it had lost its beginning"
    kept, _, _ = cold()
    start = kept.truth._reach[PID][0]
    kept.truth.starts_here(PID, start)
    assert kept.red == []
    kept.truth.starts_here(PID, start + 1)
    assert kept.red[0] == "I21"
