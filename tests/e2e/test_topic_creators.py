"""Topics count for the client that created them: it has a share of the partitions, and no more."""

from __future__ import annotations

from tests.e2e.kafka_site import KafkaBroker, run
from tests.e2e.test_kafka_acls import ADMIN, GUEST, grant
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.errors import Code
from tiered_api.kafka.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tiered_api.kafka.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

OTHER = "127.0.0.3"
THROTTLED = Code.THROTTLING_QUOTA_EXCEEDED.number


async def create(site: KafkaBroker, address: str, *names: str) -> list[int]:
    """Creates topics of one partition. Returns the code of each."""
    client = await site.client(address)
    request = CreateTopicsRequest([CreatableTopic(name, 1, 1) for name in names], 60_000)
    return [each.error_code for each in (await client.ask(request, 7, CreateTopicsResponse)).topics]


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER, tiered_partitions_max=16)
async def test_creator_of_many_topics_leaves_room_to_others(site: KafkaBroker) -> None:
    await grant(site, ("CLUSTER", "kafka-cluster", "ALL"), ("TOPIC", "*", "ALL"), host=ADMIN)
    for host in (GUEST, OTHER):
        await grant(site, ("TOPIC", "*", "ALL"), host=host)
    names = [f"greedy-{number}" for number in range(20)]
    assert await create(site, GUEST, *names) == [0] * 12 + [THROTTLED] * 8, "three quarters"
    creators = {name: topic.creator for name, topic in site.broker.image.topics.items()}
    assert creators == dict.fromkeys(names[:12], GUEST)
    assert site.broker.metrics.counter("tiered_pot_refusals_total", "", ("pot",)).value("partitions") == 8
    client = await site.client(GUEST)
    grown = CreatePartitionsRequest([CreatePartitionsTopic("greedy-0", 2, None)], 60_000)
    answer = await client.ask(grown, 3, CreatePartitionsResponse)
    assert answer.results[0].error_code == THROTTLED, "new partitions count for the creator of the topic"
    assert await create(site, OTHER, "new") == [0]
    assert await create(site, ADMIN, "a", "b") == [0, 0], "an administrator creates for others"
    assert site.broker.image.topics["a"].creator == ""
    assert any("tiered.partitions.max" in each and GUEST in each for each in site.broker.health().problems)
    deletion = DeleteTopicsRequest(topic_names=names[:8], timeout_ms=60_000)
    await client.ask(deletion, 5, DeleteTopicsResponse)
    assert await create(site, GUEST, "again") == [0], "what is deleted is given back"


@run_by(run, "tmp_path", tiered_partitions_max=16)
async def test_topics_count_for_nobody_without_an_authorizer(site: KafkaBroker) -> None:
    names = [f"t{number}" for number in range(16)]
    assert await create(site, GUEST, *names) == [0] * 16
    assert {topic.creator for topic in site.broker.image.topics.values()} == {""}
