"""Snapshots of coordinators in the bucket: where they are, and what is counted of them."""

from __future__ import annotations

from tiered.coordinator.snapshot import SnapshotKind
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore, SnapshotMetrics
from tiered.metadata.topic_names import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from tiered.metrics import Metrics
from tiered.ports import Clock, ObjectStore

GROUP_SNAPSHOTS = SnapshotKind("groups/", b"TIEREDGI")
TRANSACTION_SNAPSHOTS = SnapshotKind("transactions/", b"TIEREDTI")
SHARE_SNAPSHOTS = SnapshotKind("shares/", b"TIEREDSI")


def make_group_snapshot_store(store: ObjectStore, clock: Clock, metrics: Metrics) -> CoordinatorSnapshotStore:
    """Returns the store of the snapshots of `__consumer_offsets`."""
    counters = _make_counters(metrics, "tiered_group", "groups")
    return CoordinatorSnapshotStore(OFFSETS_TOPIC, GROUP_SNAPSHOTS, store, clock, counters)


def make_transaction_snapshot_store(store: ObjectStore, clock: Clock, metrics: Metrics) -> CoordinatorSnapshotStore:
    """Returns the store of the snapshots of `__transaction_state`."""
    counters = _make_counters(metrics, "tiered_transaction", "transactional ids")
    return CoordinatorSnapshotStore(TRANSACTIONS_TOPIC, TRANSACTION_SNAPSHOTS, store, clock, counters)


def make_share_snapshot_store(store: ObjectStore, clock: Clock, metrics: Metrics) -> CoordinatorSnapshotStore:
    """Returns the store of the snapshots of `__share_group_state`."""
    counters = _make_counters(metrics, "tiered_share", "share partitions")
    return CoordinatorSnapshotStore(SHARE_STATE_TOPIC, SHARE_SNAPSHOTS, store, clock, counters)


def _make_counters(metrics: Metrics, prefix: str, noun: str) -> SnapshotMetrics:
    return SnapshotMetrics(
        metrics.counter(f"{prefix}_images_total", f"Images of {noun} by outcome.", ("outcome",)),
        metrics.counter(f"{prefix}_image_bytes_total", f"Bytes of images of {noun}."),
    )
