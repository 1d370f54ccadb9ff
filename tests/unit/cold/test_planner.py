"""Tests of the plans of uploads, expiry and garbage: one test for each known mistake of tiered retention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tests.unit.cold.rig import PID, entry, manifest
from tiered.cold.layout import manifest_key, segment_key
from tiered.cold.manifest import Manifest, SubmanifestNeeded
from tiered.cold.planner import Expiry, UploadPlan, find_dropped_keys, find_expiry, find_garbage, next_upload
from tiered.errors import Corrupt
from tiered.ports import ListedObject


@dataclass(frozen=True)
class Local:
    base_offset: int
    next_offset: int


@dataclass(frozen=True)
class Limits:
    retention_ms: int = -1
    retention_bytes: int = -1


LOCAL = [Local(0, 10), Local(10, 20), Local(20, 30)]


@pytest.mark.parametrize(
    ("cold_end", "stable", "plan"),
    [
        (0, 100, UploadPlan(0, 0)),
        (10, 100, UploadPlan(10, 10)),
        (15, 100, UploadPlan(10, 15)),
        (30, 100, None),
        (99, 100, None),
        (10, 19, None),
        (10, 20, UploadPlan(10, 10)),
    ],
)
def test_next_upload_is_the_oldest_closed_stable_segment_above_cold_end(
    cold_end: int, stable: int, plan: UploadPlan | None
) -> None:
    assert next_upload(LOCAL, replace(manifest(), cold_end_offset=cold_end), stable) == plan


def test_hole_between_cold_and_local_segments_stops_uploads() -> None:
    with pytest.raises(Corrupt, match="gap"):
        next_upload(LOCAL[1:], manifest(), 100)


def plan_expiry(
    made: Manifest | None, limits: Limits, *, epoch: int = 1, local: int = 0, now: int = 100_000
) -> Expiry | None:
    return find_expiry(made, epoch, limits, local_bytes_above_cold=local, now_ms=now, submanifests={})


THREE = manifest(entry(0, 10, newest=1000), entry(10, 20, newest=2000), entry(20, 30, newest=3000))


@pytest.mark.parametrize(("now", "start"), [(1500, None), (1501, 10), (2501, 20), (3501, 30), (10**15, 30), (0, None)])
def test_segments_expire_by_their_newest_record(now: int, start: int | None) -> None:
    found = plan_expiry(THREE, Limits(retention_ms=500), now=now)
    assert (None if found is None else found.start_offset) == start


@pytest.mark.parametrize(
    ("limit", "local", "start"),
    [(300, 0, None), (299, 0, None), (200, 0, 10), (200, 99, 10), (200, 100, 20), (0, 0, 30), (100, 10**9, 30)],
)
def test_segments_expire_by_size_of_cold_and_local_together(limit: int, local: int, start: int | None) -> None:
    found = plan_expiry(THREE, Limits(retention_bytes=limit), local=local)
    assert (None if found is None else found.start_offset) == start


def test_leader_without_a_manifest_of_its_epoch_expires_nothing() -> None:
    limits = Limits(retention_ms=0, retention_bytes=0)
    assert plan_expiry(None, limits, local=10**12) is None
    assert plan_expiry(THREE, limits, epoch=2) is None
    assert plan_expiry(THREE.adopt_epoch(2), limits, epoch=2) is not None


@pytest.mark.parametrize("infinite", [-1, -2, -(2**63)])
def test_any_negative_retention_keeps_everything(infinite: int) -> None:
    assert plan_expiry(THREE, Limits(infinite, infinite), local=10**15, now=10**15) is None


def test_topic_without_local_copies_expires_by_its_policy_only() -> None:
    assert plan_expiry(THREE, Limits(retention_bytes=1000), local=0) is None
    assert plan_expiry(THREE, Limits(retention_ms=500), local=0, now=1501) == Expiry(10, "retention.ms")


@pytest.mark.parametrize("newest", [-1, 10**14], ids=["no timestamp", "a timestamp of the future"])
def test_segment_without_a_credible_timestamp_ages_from_its_upload(newest: int) -> None:
    bare = manifest(entry(0, 10, newest=newest))
    assert plan_expiry(bare, Limits(retention_ms=500), now=5500) is None
    assert plan_expiry(bare, Limits(retention_ms=500), now=5501) == Expiry(10, "retention.ms")


def test_timestamp_of_the_future_does_not_keep_later_cold_segments() -> None:
    future = manifest(entry(0, 10, newest=10**14), entry(10, 20, newest=1))
    assert plan_expiry(future, Limits(retention_ms=500)) == Expiry(20, "retention.ms")


def test_only_finite_retention_needs_the_oldest_sub_manifest() -> None:
    run = THREE.find_pack_range(1)
    assert run is not None
    spilled = THREE.pack(run, "sub")
    assert plan_expiry(spilled, Limits()) is None
    with pytest.raises(SubmanifestNeeded):
        plan_expiry(spilled, Limits(retention_ms=500))
    found = find_expiry(
        spilled, 1, Limits(retention_ms=500), local_bytes_above_cold=0, now_ms=1501, submanifests={"sub": run.nodes}
    )
    assert found == Expiry(10, "retention.ms")


def test_dropped_objects_are_listed_once_and_before_their_sub_manifest() -> None:
    run = THREE.find_pack_range(1)
    assert run is not None
    spilled, opened = THREE.pack(run, "sub"), {"sub": run.nodes}
    keys = [node.key for node in THREE.nodes]
    assert find_dropped_keys(spilled.nodes, 0, 9, opened) == []
    assert find_dropped_keys(spilled.nodes, 0, 10, opened) == [keys[0], "sub"]
    assert find_dropped_keys(spilled.nodes, 0, 25, opened) == [keys[0], "sub", keys[1]]
    assert find_dropped_keys(spilled.nodes, 10, 30, {}) == keys[1:]


def listed_object(key: str) -> ListedObject:
    return ListedObject(key, 1, 0)


def test_garbage_is_every_object_that_no_manifest_can_name() -> None:
    named, orphan, own = (segment_key(PID, 0, epoch, f"{epoch:032x}") for epoch in (1, 2, 5))
    uploading, newer = segment_key(PID, 10, 5, "f" * 32), segment_key(PID, 10, 6, "e" * 32)
    there = [listed_object(key) for key in (named, orphan, own, uploading, newer, manifest_key(PID), "data/readme.txt")]
    found = find_garbage(there, {named}, {uploading}, 5)
    assert [item.key for item in found] == [orphan, own]
