"""Snapshots of groups in the bucket: where they are, and what is counted of them."""

from __future__ import annotations

from tiered.coordinator.snapshot import SnapshotKind
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore, SnapshotMetrics
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.metrics import Metrics
from tiered.ports import Clock, ObjectStore

GROUP_SNAPSHOTS = SnapshotKind("groups/", b"TIEREDGI")


def make_group_snapshot_store(store: ObjectStore, clock: Clock, metrics: Metrics) -> CoordinatorSnapshotStore:
    """Returns the store of the snapshots of `__consumer_offsets`."""
    counters = SnapshotMetrics(
        metrics.counter("tiered_group_images_total", "Images of groups by outcome.", ("outcome",)),
        metrics.counter("tiered_group_image_bytes_total", "Bytes of images of groups."),
    )
    return CoordinatorSnapshotStore(OFFSETS_TOPIC, GROUP_SNAPSHOTS, store, clock, counters)
