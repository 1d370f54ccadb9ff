"""A topic is deleted and created again while its leader is cut off from the controller, so that it knows the first one.

Another broker knows the second topic and asks that leader for offsets. Both topics have leader epoch 0 there. The
leader's offsets are of the first topic, and none of them may be taken for one of the second.
"""

from __future__ import annotations

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.recreated_topic import AT, OLD, RecreatedTopic, run_recreated
from tiered.errors import Code, Refused
from tiered.replication.leader_replica import ACKS_ALL
from tiered.security.principal import ANONYMOUS, Caller
from tiered_api.http.consumers.instance import ConsumerConfig, ConsumerInstance
from tiered_api.http.consumers.subscriptions import PatternCache, TopicCatalog
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.limits import HttpLimits
from tiered_api.http.group_lags import GroupLags
from tiered_api.http.groups import fetch_end_offsets
from tiered_api.http.partitions.remote_partition import RemotePartition, fetch_bounds

NEW = 8


def http_context(again: RecreatedTopic) -> HttpContext:
    return HttpContext(again.quick.node, HttpLimits(leader_lookup_seconds=1.0))


@run_by(run_recreated)
async def test_leader_that_knows_the_first_topic_refuses_offsets_of_the_second(again: RecreatedTopic) -> None:
    await again.recreate_without_slow()
    context = http_context(again)
    remote = RemotePartition(context, AT, again.new_id)
    for request in (remote.fetch_bounds(), remote.offset_for_timestamp(0), remote.read(0, 1 << 20)):
        with refuses(Code.UNKNOWN_TOPIC_ID):
            await request
    await again.reconnect_slow()
    assert await remote.fetch_bounds() == (0, 0)
    assert await remote.offset_for_timestamp(0) is None
    await context.close()


@run_by(run_recreated)
async def test_offsets_of_the_first_topic_are_still_found(again: RecreatedTopic) -> None:
    context = http_context(again)
    remote = RemotePartition(context, AT, again.old_replica.topic_id)
    assert await remote.fetch_bounds() == (0, OLD)
    assert await remote.offset_for_timestamp(0) == (0, -1, -1)
    assert await fetch_end_offsets(context, [AT]) == {AT: OLD}
    await context.close()


@run_by(run_recreated)
async def test_rest_consumer_from_the_end_reads_all_records_of_a_second_topic(again: RecreatedTopic) -> None:
    await again.recreate_without_slow()
    context = http_context(again)
    catalog = TopicCatalog(context.broker, PatternCache(context.run_job, context.clock))
    config = ConsumerConfig(reset="latest", auto_commit=False)
    consumer = ConsumerInstance(context, catalog, "g", "c", config, Caller(ANONYMOUS, "far"))
    await consumer.assign([AT])
    remote = RemotePartition(context, AT, again.new_id)
    with pytest.raises(Refused):
        await consumer.reset_position(AT, remote, 0)
    new = await again.reconnect_slow()
    await consumer.reset_position(AT, remote, 0)
    for number in range(NEW):
        await new.append(batch([b"new-%d" % number]), acks=ACKS_ALL)
    assert await consumer.resolve_position(AT, remote) == 0
    await context.close()


@run_by(run_recreated)
async def test_offset_of_the_first_topic_is_no_position_in_the_second(again: RecreatedTopic) -> None:
    context = http_context(again)
    catalog = TopicCatalog(context.broker, PatternCache(context.run_job, context.clock))
    config = ConsumerConfig(reset="earliest", auto_commit=False)
    consumer = ConsumerInstance(context, catalog, "g", "c", config, Caller(ANONYMOUS, "far"))
    await consumer.assign([AT])
    first = consumer.open_partition(AT)
    end = (await fetch_bounds(first))[1]
    assert end == OLD
    await again.recreate_without_slow()
    new = await again.reconnect_slow()
    for number in range(NEW):
        await new.append(batch([b"new-%d" % number]), acks=ACKS_ALL)
    consumer.seek(AT, first.topic_id, end)
    assert consumer.open_partition(AT).topic_id == again.new_id
    assert consumer.find_read_topic_id(AT) == first.topic_id
    await context.close()


@run_by(run_recreated)
async def test_lag_in_the_second_topic_is_not_counted_to_the_end_of_the_first(again: RecreatedTopic) -> None:
    await again.recreate_without_slow()
    context = http_context(again)
    assert await fetch_end_offsets(context, [AT]) == {}
    assert await GroupLags(context)._end_offsets([AT]) == {}
    new = await again.reconnect_slow()
    await new.append(batch([b"new"]), acks=ACKS_ALL)
    assert await fetch_end_offsets(context, [AT]) == {AT: 1}
    assert await GroupLags(context)._end_offsets([AT]) == {AT: 1}
    await context.close()
