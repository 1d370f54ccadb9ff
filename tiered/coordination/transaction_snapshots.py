"""Snapshots of transactional ids in the bucket: where they are, and what is counted of them."""

from __future__ import annotations

from tiered.coordinator.snapshot import SnapshotKind
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore, SnapshotMetrics
from tiered.metadata.topic_names import TRANSACTIONS_TOPIC
from tiered.metrics import Metrics
from tiered.ports import Clock, ObjectStore

TRANSACTION_SNAPSHOTS = SnapshotKind("transactions/", b"TIEREDTI")


def make_transaction_snapshot_store(store: ObjectStore, clock: Clock, metrics: Metrics) -> CoordinatorSnapshotStore:
    """Returns the store of the snapshots of `__transaction_state`."""
    counters = SnapshotMetrics(
        metrics.counter("tiered_transaction_images_total", "Images of transactional ids by outcome.", ("outcome",)),
        metrics.counter("tiered_transaction_image_bytes_total", "Bytes of images of transactional ids."),
    )
    return CoordinatorSnapshotStore(TRANSACTIONS_TOPIC, TRANSACTION_SNAPSHOTS, store, clock, counters)
