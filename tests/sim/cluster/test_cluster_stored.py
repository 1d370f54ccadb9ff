"""Tests of the checks of stored bytes at the end: a run that would pass fails if the bytes are damaged there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.cluster import stored
from tests.sim.cluster.expiry import LogBatch
from tests.sim.cluster.observer import BrokenRules
from tests.sim.cluster.options import ClusterOptions, TopicShape
from tests.sim.cluster.run import ClusterRun, run
from tests.sim.harness.durable_bytes import Folder, Inode
from tiered.cold import collector
from tiered.object_store.memory import StoredObject

LOG = [LogBatch(number, number, 0, number) for number in range(4)]


def without_faults(drawn: ClusterOptions) -> ClusterOptions:
    """Returns options of a run without faults: one topic on all brokers that is uploaded and never expires."""
    topic = TopicShape("t0", 1, 3, 2, "none")
    return drawn.with_changes(
        topics=(topic,), troubles=(), worst_fault=0.0, retention_bytes=-1, retention_ms=-1, chaos_seconds=15.0,
        local_retention_bytes=4096, send_rate=4.0, segment_bytes=1024, manifest_fan=2, admin=False, moves=False,
        members=0, rebuild=False,
    )  # fmt: skip


def corrupt_log(of: ClusterRun) -> None:
    folder = of.world.hosts[3].machine.disk._find("log/t0-0")
    assert isinstance(folder, Folder)
    logs = [node for name, node in sorted(folder.names.items()) if name.endswith(".log")]
    inode = next(node for node in logs if isinstance(node, Inode) and node.data)
    inode.data[len(inode.data) - 1] ^= 1


def delete_object(of: ClusterRun) -> None:
    segment = next(of.model.segments(next(of.model.manifests())))
    of.world.bucket.memory._objects.pop(segment.key)


def corrupt_object(of: ClusterRun) -> None:
    segment = next(of.model.segments(next(of.model.manifests())))
    objects = of.world.bucket.memory._objects
    data = bytearray(objects[segment.key].data)
    data[segment.log_bytes - 1] ^= 1
    objects[segment.key] = StoredObject(bytes(data), "", 0)


@pytest.mark.parametrize(("spoil", "rule"), [(corrupt_log, "I5"), (delete_object, "I23"), (corrupt_object, "I20")])
def test_damage_at_the_end_is_found(
    spoil: Callable[[ClusterRun], None], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = stored.check_stored

    def everything(of: ClusterRun) -> object:
        assert not list(original(of)), "it was well"
        spoil(of)
        return original(of)

    monkeypatch.setattr(stored, "check_stored", everything)
    with pytest.raises(BrokenRules) as broken:
        run(1, without_faults)
    assert broken.value.rules[0] == rule


def test_expired_object_that_is_not_deleted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def brief(drawn: ClusterOptions) -> ClusterOptions:
        return without_faults(drawn).with_changes(retention_bytes=2048, local_retention_bytes=1, chaos_seconds=50.0)

    run(1, brief)
    monkeypatch.setattr(collector.Collector, "_delete_later", lambda self, keys: None)
    with pytest.raises(BrokenRules, match="has expired under the leader of today"):
        run(1, brief)


@pytest.mark.parametrize(
    ("batches", "what"),
    [
        (LOG, ""),
        (LOG[1:], ""),
        ([*LOG, LogBatch(4, 4, 1, 9)], ""),
        ([LOG[0], LOG[1]._replace(crc=7), *LOG[2:]], "differs"),
        ([LOG[0], *LOG[2:]], "is missing"),
    ],
)
def test_log_that_differs_is_reported_below_the_committed_end_only(batches: list[LogBatch], what: str) -> None:
    found = [each.what for each in stored.check_same_batches("log", "I5", batches, {each.base: each for each in LOG})]
    assert [each.partition(") ")[2] for each in found] == ([what] if what else [])
