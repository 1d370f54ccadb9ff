"""What is stored at the end is looked at past all brokers: a run that ends well ends badly when it is spoilt there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.cluster import stored
from tests.sim.cluster.expiry import Batch
from tests.sim.cluster.observer import Broken
from tests.sim.cluster.options import Options, TopicShape
from tests.sim.cluster.run import Run, run
from tests.sim.harness.durable_bytes import Folder, Inode
from tiered.cold import collector
from tiered.object_store.memory import StoredObject

LOG = [Batch(number, number, 0, number) for number in range(4)]


def peace(drawn: Options) -> Options:
    """One topic on all brokers, all of which goes up and nothing of which expires; no trouble."""
    topic = TopicShape("t0", 1, 3, 2, "none")
    return drawn.but(
        topics=(topic,), troubles=(), worst_fault=0.0, retention_bytes=-1, retention_ms=-1, chaos_seconds=15.0,
        local_retention_bytes=4096, send_rate=4.0, segment_bytes=1024, manifest_fan=2, admin=False, moves=False,
        members=0, rebuild=False,
    )  # fmt: skip


def a_byte_of_a_log(of: Run) -> None:
    folder = of.world.hosts[3].machine.disk._find("log/t0-0")
    assert isinstance(folder, Folder)
    logs = [node for name, node in sorted(folder.names.items()) if name.endswith(".log")]
    inode = next(node for node in logs if isinstance(node, Inode) and node.data)
    inode.data[len(inode.data) - 1] ^= 1


def an_object(of: Run) -> None:
    segment = next(of.truth.segments(next(of.truth.manifests())))
    of.world.bucket.memory._objects.pop(segment.key)


def a_byte_of_an_object(of: Run) -> None:
    segment = next(of.truth.segments(next(of.truth.manifests())))
    objects = of.world.bucket.memory._objects
    data = bytearray(objects[segment.key].data)
    data[segment.log_bytes - 1] ^= 1
    objects[segment.key] = StoredObject(bytes(data), "", 0)


@pytest.mark.parametrize(("spoil", "rule"), [(a_byte_of_a_log, "I5"), (an_object, "I23"), (a_byte_of_an_object, "I20")])
def test_what_is_spoilt_at_the_end_is_found(
    spoil: Callable[[Run], None], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = stored.everything

    def everything(of: Run) -> object:
        assert not list(original(of)), "it was well"
        spoil(of)
        return original(of)

    monkeypatch.setattr(stored, "everything", everything)
    with pytest.raises(Broken) as broken:
        run(1, peace)
    assert broken.value.rules[0] == rule


def test_an_expired_object_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def brief(drawn: Options) -> Options:
        return peace(drawn).but(retention_bytes=2048, local_retention_bytes=1, chaos_seconds=50.0)

    run(1, brief)
    monkeypatch.setattr(collector.Collector, "_delete_later", lambda self, keys: None)
    with pytest.raises(Broken, match="has expired under the leader of today"):
        run(1, brief)


@pytest.mark.parametrize(
    ("batches", "what"),
    [
        (LOG, ""),
        (LOG[1:], ""),
        ([*LOG, Batch(4, 4, 1, 9)], ""),
        ([LOG[0], LOG[1]._replace(crc=7), *LOG[2:]], "differs"),
        ([LOG[0], *LOG[2:]], "is missing"),
    ],
)
def test_a_log_differs_below_what_is_committed_or_not_at_all(batches: list[Batch], what: str) -> None:
    found = [each.what for each in stored.differs("log", "I5", batches, {each.base: each for each in LOG})]
    assert [each.partition(") ")[2] for each in found] == ([what] if what else [])
