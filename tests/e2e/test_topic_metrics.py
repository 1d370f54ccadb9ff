"""Tests of metrics by topic: records that clients wrote and read, and sizes of topics, for as many topics as the
setting allows."""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path

import tiered
from tests.e2e import kafka_site
from tests.e2e.kafka_site import KafkaBroker, fetch, produce
from tests.e2e.serving import ServeProcess
from tests.metric_samples import samples
from tests.scenario import run_by
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, fill, run
from tiered.controller.requests import DeleteTopic
from tiered.metrics import OTHERS
from tiered_api.kafka.protocol.messages.fetch import FetchResponse
from tiered_api.kafka.protocol.messages.produce import ProduceResponse

TOTAL = "kafka_server_brokertopicmetrics_{}_total"


def total(site: SimBrokerRig | KafkaBroker, name: str) -> dict[tuple[str, ...], float]:
    return samples(site.broker.metrics.render(), TOTAL.format(name))


@run_by(kafka_site.run, "tmp_path")
async def test_kafka_clients_are_counted_in_metrics_of_their_topics(site: KafkaBroker) -> None:
    first, other = await site.create("t", 2), await site.create("u")
    second = site.broker.leader_replica("t", 1)
    client = await site.client()
    sizes = []
    for replica, values in ((first, (b"a", b"b")), (second, (b"c",)), (other, (b"d", b"e", b"f"))):
        request = produce(replica, *values)
        sizes.append(len(request.topic_data[0].partition_data[0].records))
        for _ in range(2):  # the second one the short way
            await client.ask(request, 9, ProduceResponse)
    assert total(site, "messagesin") == {("t",): 6, ("u",): 6}
    assert total(site, "bytesin") == {("t",): 2 * (sizes[0] + sizes[1]), ("u",): 2 * sizes[2]}
    assert total(site, "bytesout") == {("t",): 0, ("u",): 0}
    both = fetch((first, 0), (second, 0))
    for _ in range(2):
        await client.ask(both, 12, FetchResponse)
    await client.ask(fetch((second, 1)), 12, FetchResponse)
    read = 4 * (sizes[0] + sizes[1]) + sizes[1]
    assert total(site, "bytesout") == {("t",): read, ("u",): 0}
    waits = asyncio.ensure_future(client.ask(fetch((other, 6), wait_ms=10_000), 12, FetchResponse))
    await kafka_site.wait_until(lambda: bool(site.server.dispatch.fetch_handler.fetches.parked.fetches))
    await other.append(batch([b"g"]))
    await waits
    assert total(site, "bytesout")["u",] == len(batch([b"g"]))
    (fetched,) = samples(site.broker.metrics.render(), "tiered_kafka_fetched_bytes_total").values()
    assert fetched == sum(total(site, "bytesout").values())


@run_by(run)
async def test_sizes_on_disk_and_in_the_bucket_are_metrics_by_topic(site: SimBrokerRig) -> None:
    await site.start()
    replica = await site.create("t", 2, internal_segment_bytes="4096", retention_ms="-1", local_retention_bytes="1")
    await fill(replica, 10)
    await site.wait_until(lambda: replica.local_start_offset == 9)
    text = site.broker.metrics.render()
    cold = samples(text, "kafka_server_brokertopicmetrics_remotelogsizebytes")
    assert (
        samples(text, "kafka_log_log_size") == {("t",): replica.log.segments.size_bytes}
        and 0 < replica.log.segments.size_bytes < 2000
    )
    assert cold == {("t",): replica.unified_log.cold_bytes} and replica.unified_log.cold_bytes > 9000
    await site.stop()


@run_by(run)
async def test_topics_above_the_limit_share_a_label_and_totals_never_shrink(site: SimBrokerRig) -> None:
    await site.start(replace(QUICK, tiered_metrics_max_topics=2))
    for count, name in enumerate(("a", "b", "c", "d"), 1):
        replica = await site.create(name)
        for _ in range(count):
            await replica.append(batch([b"v"]))
        assert len(total(site, "messagesin")) <= 3
    assert total(site, "messagesin") == {("a",): 1, ("b",): 2, (OTHERS,): 7}
    await site.broker.submit(DeleteTopic("c"))
    await site.wait_until(lambda: len(site.broker.leader_replicas()) == 3)
    assert total(site, "messagesin") == {("a",): 1, ("b",): 2, (OTHERS,): 7}
    await site.broker.submit(DeleteTopic("a"))
    await site.wait_until(lambda: len(site.broker.leader_replicas()) == 2)
    assert total(site, "messagesin") == {("b",): 2, ("d",): 0, (OTHERS,): 7}, "the place is free, and taken"
    await site.broker.leader_replica("d", 0).append(batch([b"v"]))
    assert total(site, "messagesin") == {("b",): 2, ("d",): 1, (OTHERS,): 7}
    await site.stop()


@run_by(kafka_site.run, "tmp_path")
async def test_request_times_are_metrics_by_api(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    for _ in range(3):
        await client.ask(produce(replica, b"a"), 9, ProduceResponse)
    await client.ask(fetch((replica, 0)), 12, FetchResponse)
    await client.ask(fetch((replica, 3), wait_ms=300), 12, FetchResponse)
    text = site.broker.metrics.render()
    assert samples(text, "tiered_kafka_request_seconds_count") == {("Produce",): 3, ("FetchConsumer",): 2}
    took = samples(text, "tiered_kafka_request_seconds_sum")
    assert 0 < took["Produce",] < took["FetchConsumer",] and took["FetchConsumer",] >= 0.3
    slow = samples(text, "tiered_kafka_request_seconds_bucket")
    assert slow["FetchConsumer", "0.25"] == 1, "the one that waited is above it"


def test_broker_metrics_have_version_and_resources(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        status, text = broker.ask("GET", "/metrics")
        assert status == 200
        (build,) = samples(text, "tiered_build_info")
        assert build == (tiered.__version__, platform.python_version())
        (began,) = samples(text, "process_start_time_seconds").values()
        assert abs(time.time() - began) < 60
        (cpu,) = samples(text, "process_cpu_seconds_total").values()
        assert 0 < cpu < 60
        if sys.platform == "linux":
            (resident,) = samples(text, "process_resident_memory_bytes").values()
            (virtual,) = samples(text, "process_virtual_memory_bytes").values()
            assert 10 << 20 < resident < 1 << 30 and resident < virtual
            (opened,) = samples(text, "process_open_fds").values()
            (most,) = samples(text, "process_max_fds").values()
            assert 3 < opened < most
        assert samples(broker.ask("GET", "/metrics")[1], "tiered_http_request_seconds_count")["metrics",] == 1


@run_by(run)
async def test_topics_with_the_most_lag_are_named(site: SimBrokerRig) -> None:
    await site.start(replace(QUICK, tiered_metrics_max_topics=2))
    for name in ("a", "b", "c", "d"):
        replica = await site.create(name, segment_bytes="1048576")
        await replica.append(batch([b"v"]))
        await asyncio.sleep(10)
    lag = samples(site.broker.metrics.render(), "tiered_remote_copy_lag_seconds")
    assert lag.keys() == {("a",), ("b",), (OTHERS,)}
    assert lag["a",] > lag["b",] > lag[OTHERS,] > 15, "the others are as late as the latest of them"
    await site.stop()
