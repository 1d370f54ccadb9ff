"""Tests of `__consumer_offsets`, the broker's own topic: clients may read it, and do nothing else to it."""

from __future__ import annotations

import pytest

from tests.e2e.group_calls import QUICK, fetch_committed, make_commit
from tests.e2e.http_site import HttpBroker
from tests.e2e.http_site import run as run_http
from tests.e2e.kafka_site import KafkaBroker, run
from tests.refusal import refuses
from tests.scenario import run_by
from tiered.controller.requests import AlterTopicConfigs, CreatePartitions, CreateTopic, DeleteTopic
from tiered.errors import Code
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.records.batch import encode_batch
from tiered_api.kafka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tiered_api.kafka.protocol.messages.offset_commit import OffsetCommitResponse
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

OTHER = {"retention.ms": "1000", "remote.storage.enable": "true", "message.timestamp.type": "LogAppendTime"}


@run_by(run, "tmp_path", **QUICK)
async def test_clients_cannot_write_cut_grow_or_delete_it(site: KafkaBroker) -> None:
    client = await site.client()
    await site.create("t")
    await client.ask(make_commit("g", 7), 9, OffsetCommitResponse)
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=OFFSETS_TOPIC)])
    shown = await client.ask(asked, 12, MetadataResponse)
    assert shown.topics[0].is_internal and len(shown.topics[0].partitions) == 3
    records = encode_batch([(1, b"k", b"v", ())])
    produce = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(OFFSETS_TOPIC, partition_data=[PartitionProduceData(0, records)])],
    )
    told = await client.ask(produce, 9, ProduceResponse)
    assert told.responses[0].partition_responses[0].error_code == Code.INVALID_TOPIC_EXCEPTION.number
    cut = DeleteRecordsRequest([DeleteRecordsTopic(OFFSETS_TOPIC, [DeleteRecordsPartition(0, -1)])], 1000)
    answer = await client.ask(cut, 2, DeleteRecordsResponse)
    assert answer.topics[0].partitions[0].error_code == Code.INVALID_TOPIC_EXCEPTION.number
    for request in (DeleteTopic(OFFSETS_TOPIC), CreatePartitions(OFFSETS_TOPIC, 9)):
        with refuses(Code.INVALID_TOPIC_EXCEPTION):
            await site.broker.submit(request)
    assert await fetch_committed(client, "g") == 7


@pytest.mark.parametrize("key", OTHER)
@run_by(run, "tmp_path", **QUICK)
async def test_it_keeps_the_settings_that_groups_depend_on(site: KafkaBroker, *, key: str) -> None:
    await site.broker.group_coordinators.ensure_topic()
    other = {"retention.ms": "1000", "remote.storage.enable": "true", "message.timestamp.type": "LogAppendTime"}[key]
    for value in (other, None):
        with refuses(Code.INVALID_CONFIG):
            await site.broker.submit(AlterTopicConfigs(OFFSETS_TOPIC, {key: value}))
    await site.broker.submit(AlterTopicConfigs(OFFSETS_TOPIC, {"segment.bytes": "1048576"}))


@run_by(run, "tmp_path", **QUICK)
async def test_topic_created_by_a_client_has_the_form_that_groups_need(site: KafkaBroker) -> None:
    await site.broker.submit(CreateTopic(OFFSETS_TOPIC, 5, configs={"retention.ms": "1000"}))
    topic = site.broker.image.topics[OFFSETS_TOPIC]
    assert (topic.configs["retention.ms"], topic.configs["remote.storage.enable"]) == ("-1", "false")
    await site.create("t")
    client = await site.client()
    await client.ask(make_commit("g", 7), 9, OffsetCommitResponse)
    assert await fetch_committed(client, "g") == 7


@run_by(run_http, "tmp_path")
async def test_http_cannot_write_the_offsets_topic(site: HttpBroker) -> None:
    await site.broker.group_coordinators.ensure_topic()
    end = [replica.log.end_offset for replica in site.broker.leader_replicas()]
    one = await site.ask(
        "POST", f"{site.cluster}/topics/{OFFSETS_TOPIC}/records", {"value": {"type": "STRING", "data": "x"}}
    )
    kind = "application/vnd.kafka.json.v2+json"
    many = await site.ask("POST", f"/topics/{OFFSETS_TOPIC}", {"records": [{"value": 1}]}, kind=kind)
    assert one.status >= 400 and many.status >= 400, (one, many)
    assert [replica.log.end_offset for replica in site.broker.leader_replicas()] == end
