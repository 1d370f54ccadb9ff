"""Tests of batches whose headers state other timestamps than their records have, over Kafka's protocol and over HTTP.
Look-ups by time find each record all the same."""

from __future__ import annotations

import pytest

from tests.e2e import http_site
from tests.e2e.http_site import HttpBroker
from tests.e2e.kafka_site import KafkaBroker, RawClient, produce, run
from tests.scenario import run_by
from tests.unit.hot.test_validation_of_timestamps import made, overflowing
from tiered.records.batch import decode_header
from tiered.records.model import Codec
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tiered_api.kafka.protocol.messages.produce import ProduceResponse

NOW = 1_700_000_000_000
TIMES = [NOW, NOW + 9, NOW + 5]
OCTETS = "application/octet-stream"
LATEST_RECORD = -3


async def find(client: RawClient, replica: LeaderReplica, timestamp: int) -> tuple[int, int]:
    """Returns offset and timestamp of ListOffsets."""
    part = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    asked = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=replica.topic, partitions=[part])])
    reply = await client.ask(asked, 8, ListOffsetsResponse)
    found = reply.topics[0].partitions[0]
    assert found.error_code == 0
    return found.offset, found.timestamp


def stored_newest(replica: LeaderReplica) -> int:
    found = replica.log.read(0, 1 << 20, end_offset=replica.log.end_offset)
    assert found is not None
    return decode_header(found.file.pread(found.start, found.length)).max_timestamp


@pytest.mark.parametrize("codec", Codec)
@run_by(run, "tmp_path")
async def test_produced_batch_with_an_unset_header_is_found_by_time(site: KafkaBroker, *, codec: Codec) -> None:
    replica, client = await site.create("t"), await site.client()
    reply = await client.ask(produce(replica, raw=made(TIMES, codec, newest=-1)), 9, ProduceResponse)
    assert reply.responses[0].partition_responses[0].error_code == 0
    assert stored_newest(replica) == NOW + 9
    for timestamp, wanted in ((NOW, 0), (NOW + 1, 1), (NOW + 9, 1), (LATEST_RECORD, 1)):
        assert await find(client, replica, timestamp) == (wanted, TIMES[wanted])
    assert await find(client, replica, NOW + 10) == (-1, -1)


@pytest.mark.parametrize("newest", [-1, NOW - 1, NOW + 5, NOW + 99])
@pytest.mark.parametrize("codec", Codec)
@run_by(http_site.run, "tmp_path")
async def test_batch_over_http_gets_the_timestamp_of_its_records(
    site: HttpBroker, *, codec: Codec, newest: int
) -> None:
    """A compressed batch is not opened if its header may be true (docs/reference/compatibility.md): it is believed."""
    data = bytes(made(TIMES, codec, newest=newest))
    stored = newest if codec and newest >= NOW else NOW + 9
    await site.create("t")
    reply = await site.ask("POST", "/topics/t/partitions/0/records", data, kind=OCTETS)
    assert reply.status == 200, reply
    assert stored_newest(site.broker.leader_replica("t", 0)) == stored
    for timestamp, wanted in ((NOW + 1, [1, 2]), (NOW + 9, [1, 2] if stored >= NOW + 9 else []), (NOW + 10, [])):
        found = await site.get(f"/topics/t/partitions/0/records?timestamp={timestamp}")
        assert [row["offset"] for row in found.json["records"]] == wanted


@pytest.mark.parametrize("newest", [-1, NOW], ids=["unset", "as now"])
@pytest.mark.parametrize("codec", Codec)
@run_by(http_site.run, "tmp_path")
async def test_timestamp_beyond_64_bits_is_refused_over_http(site: HttpBroker, *, codec: Codec, newest: int) -> None:
    await site.create("t")
    data = bytes(overflowing(codec, newest))
    reply = await site.ask("POST", "/topics/t/partitions/0/records", data, kind=OCTETS)
    assert reply.status == 400 and "record 1 has a timestamp beyond 64 bits" in reply.json["message"], reply
    assert site.broker.leader_replica("t", 0).log.end_offset == 0
