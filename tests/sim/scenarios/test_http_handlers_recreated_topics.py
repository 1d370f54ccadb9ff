"""Tests of the HTTP side of a broker that knows of a recreated topic and has not acted on it yet.

The handlers are called directly, with one replica and with two; `tests/e2e/test_http_recreated_topics.py` uses sockets.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.recreated_topic import OLD, RecreatedTopic, run_recreated
from tiered.errors import Code, Refused
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.limits import HttpLimits
from tiered_api.http.partitions.produce import append_locally, append_many, find_partition
from tiered_api.http.partitions.record_formats import ProducerRecord
from tiered_api.http.partitions.remote_partition import RemotePartition, resolve_leader


def incoming(value: bytes) -> ProducerRecord:
    return ProducerRecord(0, 1_000, None, value, ())


@pytest.mark.parametrize("replicas", [1, 2])
def test_http_writes_only_to_the_topic_that_was_named(replicas: int) -> None:
    async def scenario(again: RecreatedTopic) -> None:
        node = again.slow.node
        site = HttpContext(node, HttpLimits(append_ms=2_000))
        before = node.image.topics["t"]
        if replicas == 1:
            assert append_locally(site, before, incoming(b"old")) is not None
        end = again.old_replica.log.end_offset
        await again.recreate()
        after = node.image.topics["t"]
        for topic in (before, after):
            with pytest.raises(Refused):
                append_locally(site, topic, incoming(b"lost"))
        for topic in (before, after):
            (outcome,) = await append_many(site, topic, [incoming(b"lost")])
            assert isinstance(outcome, Exception)
        assert again.old_replica.log.end_offset == end
        new = await again.release_slow()
        assert new.log.end_offset == 0
        assert append_locally(site, before, incoming(b"lost")) is None
        (outcome,) = await append_many(site, before, [incoming(b"lost")])
        assert isinstance(outcome, Exception) and new.log.end_offset == 0
        (outcome,) = await append_many(site, after, [incoming(b"new")])
        assert not isinstance(outcome, Exception) and outcome.offset == 0

    run_recreated(scenario, replicas)


@run_by(run_recreated)
async def test_http_reads_only_the_topic_that_was_named(again: RecreatedTopic) -> None:
    node = again.slow.node
    site = HttpContext(node, HttpLimits(leader_lookup_seconds=1.0))
    before = node.image.topics["t"]
    source = find_partition(site, before, 0)
    assert isinstance(source, LeaderReplica)
    waiting = asyncio.create_task(source.reads.read(OLD, 1 << 20, max_wait_ms=20_000))
    await asyncio.sleep(0.1)
    await again.recreate()
    with pytest.raises(Refused):
        await waiting
    with refuses(Code.UNKNOWN_TOPIC_OR_PARTITION):
        find_partition(site, before, 0)
    stream = resolve_leader(site, source)  # as an event stream goes on
    assert isinstance(stream, RemotePartition)
    with pytest.raises(Refused):
        await stream.read(0, 1 << 20)
    fresh = find_partition(site, node.image.topics["t"], 0)
    assert isinstance(fresh, RemotePartition)
    with pytest.raises(Refused):
        await fresh.read(0, 1 << 20)
    new = await again.release_slow()
    await new.append(batch([b"new"]), acks=ACKS_ALL)
    with pytest.raises(Refused):
        await stream.read(0, 1 << 20)
    with pytest.raises(Refused):
        find_partition(site, before, 0)
    assert (await fresh.read(0, 1 << 20)).size > 0
