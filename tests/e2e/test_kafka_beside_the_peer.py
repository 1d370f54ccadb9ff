"""Test of the same well-formed requests to Kafka and to us: the same errors at the same positions, in every version.

Requests are valid (no partition is named twice, waits are short) and name existing and missing objects. An invalid
request could be refused for one of several reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kafka_site import RawClient, batch, kafka_broker
from tests.e2e.test_kafka_any_request import SOUND_VALUES, PlausibleRequests
from tests.peer.kafka import Peer
from tests.unit.kafka.values import Drawn
from tiered.ids import TopicId
from tiered_api.kafka.protocol import apis
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tiered_api.kafka.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tiered_api.kafka.protocol.schema import FieldSpec, FieldType, Message, field_specs

pytestmark = [pytest.mark.java, pytest.mark.slow]

REQUESTS = 3
ANSWER_SECONDS = 120.0
WAKE_SECONDS = 60.0

NOT_YET = (": 6", ": 14", ": 15", ": 75")
"""Errors of a topic or coordinator that starts: leaders, their epochs, coordinators."""

VALID_VALUES: dict[str, tuple[Any, ...]] = {
    "acks": (-1, 1),
    "committed_metadata": ("", "note"),
    "current_leader_epoch": (-1, 0),
    "election_type": (0, 1),
    "endpoint_type": (1,),
    "fetch_offset": (0, 1, 5),
    "isolation_level": (0, 1),
    "key_type": (0,),
    "last_fetched_epoch": (-1,),
    "leader_epoch": (0, 1),
    "log_start_offset": (-1,),
    "max_bytes": (1 << 20,),
    "max_wait_ms": (0, 10),
    "min_bytes": (0, 1),
    "partition_max_bytes": (1 << 20,),
    "num_partitions": (-1, 1, 2),
    "replica_id": (-1,),
    "replication_factor": (-1, 1),
    "resource_type": (2, 4),
    "session_epoch": (-1,),
    "session_id": (0,),
    "timeout_ms": (5000,),
    "timestamp": (-1, -2, 0, 1 << 41),
    "transaction_timeout_ms": (1000,),
}
EMPTY: dict[str, Any] = {"transactional_id": None, "assignments": [], "forgotten_topics_data": []}
NAMES = ("topic", "name", "topic_name", "topic_id", "group_id", "resource_name", "key", "member_id")
PLACES = ("partition", "partition_index", "index", *NAMES)


class ValidRequests(PlausibleRequests):
    """Requests that a correct client might send."""

    def __init__(self, seed: int, topic: str, topic_id: str) -> None:
        Drawn.__init__(self, seed)
        self._topic, self._topic_id = topic, TopicId(topic_id)

    def message(self, table: type[Any], version: int) -> Any:
        if table.__name__ in ("AlterableConfig", "CreatableTopicConfig"):
            return table(name="retention.ms", value=self.random.choice(("60000", "-1")))
        return super().message(table, version)

    def field(self, row: FieldSpec, version: int) -> Any:
        if row.name in EMPTY and (EMPTY[row.name] is not None or version in row.nullable):
            return EMPTY[row.name]
        # Kafka never answers a producer that sends null for records.
        value = self.value(row, version) if row.kind is FieldType.RECORDS else super().field(row, version)
        return list({_place(each): each for each in value}.values()) if isinstance(value, list) else value

    def value(self, row: FieldSpec, version: int) -> Any:
        if row.kind is FieldType.RECORDS:
            return batch([b"a", b"b"])
        if row.kind is FieldType.STRING and row.name not in VALID_VALUES:
            return self.random.choice((self._topic, self._topic, "readers", "missing", "a"))
        values = VALID_VALUES.get(row.name, SOUND_VALUES.get(row.name))
        return self.random.choice(values) if values else super().value(row, version)


def _place(element: Any) -> Any:
    """Returns the object that one element of an array is about."""
    named = [(name, getattr(element, name)) for name in PLACES if hasattr(element, name)]
    return repr(named or element)


def find_errors(table: type[Any], answer: Any, version: int, path: str = "") -> Iterator[str]:
    """Returns every error of a reply, with its position."""
    here = path + "/" + table.__name__
    for row in field_specs(table):
        value = getattr(answer, row.name)
        if version not in row.versions or value is None:
            continue
        if row.name in PLACES and row.kind is not FieldType.UUID:
            here += f" {value}"
        if row.kind is FieldType.STRUCT and row.of is not None:
            for each in value if row.is_array else [value]:
                yield from find_errors(row.of, each, version, here)
        elif row.name.endswith("error_code"):
            yield f"{here}: {value}"


async def ask_broker(address: str, api: apis.Api, version: int, message: Message) -> Any:
    """Returns a broker's reply, or a word for what comes instead."""
    host, port = address.rsplit(":", 1)
    client = RawClient(*await asyncio.open_connection(host, int(port), limit=1 << 27))
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await client.ask(message, version, api.response_type)
    except (asyncio.IncompleteReadError, ConnectionError):
        return "closed"
    except TimeoutError:
        return "silent"
    finally:
        client.close()


async def fetch_errors(address: str, api: apis.Api, version: int, message: Message) -> set[str]:
    """Returns the errors of a broker's reply. Repeats the request while Kafka denies leaders that its own metadata
    names."""
    while True:
        answer = await ask_broker(address, api, version, message)
        found = {answer} if isinstance(answer, str) else set(find_errors(api.response_type, answer, version))
        if not any(each.endswith(NOT_YET) for each in found):
            return found
        await asyncio.sleep(0.05)


async def create_topic(address: str, topic: str) -> str:
    """Creates a topic of two partitions; returns its id once it has leaders."""
    wanted = CreateTopicsRequest(topics=[CreatableTopic(topic, 2, 1)], timeout_ms=10_000)
    await ask_broker(address, apis.APIS[19], 7, wanted)
    look = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    while True:
        (found,) = (await ask_broker(address, apis.APIS[3], 12, look)).topics
        if not found.error_code and not any(part.error_code for part in found.partitions):
            return str(found.topic_id)
        await asyncio.sleep(0.05)


async def wait_ready(address: str) -> None:
    """Waits until coordinators are loaded and producer ids are allocated."""
    while True:
        found = await ask_broker(address, apis.APIS[10], 4, FindCoordinatorRequest(coordinator_keys=["g"]))
        ids = await ask_broker(address, apis.APIS[22], 4, InitProducerIdRequest(None, 1000))
        groups = [OffsetFetchRequestGroup(group_id="g", topics=None)]
        offsets = await ask_broker(address, apis.APIS[9], 8, OffsetFetchRequest(groups=groups))
        if not (found.coordinators[0].error_code or ids.error_code or offsets.groups[0].error_code):
            return
        await asyncio.sleep(0.1)


async def compare(ours: str, theirs: str) -> list[str]:
    """Returns the differences."""
    found = []
    for api in apis.APIS.values():
        if api.key == apis.API_VERSIONS:
            continue
        for version in api.served_versions:
            for seed in range(REQUESTS):
                topic = f"t{api.key}-{version}-{seed}"
                answers = []
                for address in (ours, theirs):
                    draw = ValidRequests(seed * 100 + version, topic, await create_topic(address, topic))
                    message = draw.message(api.request_type, version)
                    answers.append(await fetch_errors(address, api, version, message))
                we, kafka = answers
                if we != kafka:
                    said = f"{api.name} v{version}: we {sorted(we - kafka)[:3]}, Kafka {sorted(kafka - we)[:3]}"
                    found.append(f"{said}\n    {str(message)[:900]}")
    return found


@pytest.mark.also("kafka")
def test_requests_get_the_same_errors_as_from_kafka(tmp_path: Path) -> None:
    async def scenario(theirs: str) -> list[str]:
        async with kafka_broker(
            tmp_path,
            auto_create_topics_enable=False,
            group_initial_rebalance_delay_ms=0,
            max_connection_creation_rate=100_000,
        ) as site:
            async with asyncio.timeout(WAKE_SECONDS):
                await asyncio.gather(wait_ready(site.address), wait_ready(theirs))
            return await compare(site.address, theirs)

    with Peer({"auto.create.topics.enable": "false", "offsets.topic.num.partitions": "1"}) as peer:
        found = asyncio.run(scenario(peer.address))
    assert not found, "\n".join(found)
