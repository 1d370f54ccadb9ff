"""aiokafka as a driver for tests: see `lines`."""

from __future__ import annotations

import asyncio
import ssl
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.structs import OffsetAndMetadata

from tests.compat.drivers.lines import FAILED, fetch_token, headers_of, read_login, record, requests, say, unpack

LARGEST = 2_000_000
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "round-robin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


def places(partitions: list[list[Any]]) -> list[TopicPartition]:
    """Returns `[topic, partition]` as the client's types."""
    return [TopicPartition(*each[:2]) for each in partitions]


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Gets a new token for each login."""

    def __init__(self, login: dict[str, str]) -> None:
        self.login = login

    async def token(self) -> str:
        return await asyncio.to_thread(fetch_token, self.login)


def login_settings() -> dict[str, Any]:
    """Returns the settings of the login."""
    login = read_login()
    if login is None:
        return {}
    settings = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": login["mechanism"],
        "ssl_context": ssl.create_default_context(cafile=login["authority"]),
    }
    if login["token_url"]:
        return {**settings, "sasl_oauth_token_provider": TokenProvider(login)}
    return {**settings, "sasl_plain_username": login["user"], "sasl_plain_password": login["password"]}


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Reports the assignment after each rebalance."""

    async def on_partitions_revoked(self, revoked: Any) -> None:
        say(revoked=sorted(list(each) for each in revoked))

    async def on_partitions_assigned(self, assigned: Any) -> None:
        say(assigned=sorted(list(each) for each in assigned))


class AiokafkaDriver:
    """One client: producers by their settings, a consumer, an admin."""

    def __init__(self, address: str) -> None:
        self.reach = {"bootstrap_servers": address, **login_settings()}
        self.producers: dict[str, AIOKafkaProducer] = {}
        self.transactional: dict[str, AIOKafkaProducer] = {}
        self.consumer: AIOKafkaConsumer | None = None
        self._admin: AIOKafkaAdminClient | None = None
        self._reader: asyncio.Task[None] | None = None

    async def admin(self) -> AIOKafkaAdminClient:
        if self._admin is None:
            self._admin = AIOKafkaAdminClient(**self.reach)
            await self._admin.start()
        return self._admin

    async def _producer(self, acks: str, codec: str, idempotent: bool, linger_ms: int) -> AIOKafkaProducer:
        name = f"{acks}/{codec}/{idempotent}/{linger_ms}"
        if name not in self.producers:
            producer = AIOKafkaProducer(
                **self.reach,
                acks=acks if acks == "all" else int(acks),
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                linger_ms=linger_ms,
                max_request_size=LARGEST,
            )
            await producer.start()
            self.producers[name] = producer
        return self.producers[name]

    async def do_send(
        self,
        topic: str,
        records: list[dict[str, Any]],
        acks: str = "all",
        codec: str = "none",
        idempotent: bool = False,
        linger_ms: int = 5,
        producer: str = "",
    ) -> list[Any]:
        sender = self.transactional.get(producer) or await self._producer(acks, codec, idempotent, linger_ms)
        futures = [
            await sender.send(
                topic,
                value=unpack(each.get("v")),
                key=unpack(each.get("k")),
                partition=each.get("p", 0),
                timestamp_ms=each.get("ts"),
                headers=headers_of(each),
            )
            for each in records
        ]
        placed = await asyncio.gather(*futures)
        return [[each.partition, each.offset] if each else None for each in placed]

    async def do_open(
        self,
        group: str,
        assignor: str = "range",
        instance: str = "",
        session_ms: int = 6000,
        reset: str = "earliest",
        isolation: str = "read_uncommitted",
    ) -> None:
        self.consumer = AIOKafkaConsumer(
            **self.reach,
            group_id=group,
            group_instance_id=instance or None,
            partition_assignment_strategy=[ASSIGNORS[assignor]],
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=session_ms // 4,
            auto_offset_reset=reset,
            enable_auto_commit=False,
            max_partition_fetch_bytes=LARGEST,
            fetch_max_wait_ms=100,
            metadata_max_age_ms=1000,
            isolation_level=isolation,
        )
        await self.consumer.start()

    def _open(self) -> AIOKafkaConsumer:
        assert self.consumer is not None, "no consumer is open"
        self._reader = self._reader or asyncio.create_task(self._read(self.consumer))
        return self.consumer

    async def do_subscribe(self, topics: list[str]) -> None:
        self._open().subscribe(topics, listener=Listener())

    async def do_assign(self, partitions: list[list[Any]]) -> None:
        self._open().assign(places(partitions))
        for topic, partition, *offset in partitions:
            if offset:
                await self.do_seek(topic, partition, offset[0])

    async def do_seek(self, topic: str, partition: int, offset: int) -> None:
        self._open().seek(TopicPartition(topic, partition), offset)

    async def do_pause(self, partitions: list[list[Any]]) -> None:
        self._open().pause(*places(partitions))

    async def do_resume(self, partitions: list[list[Any]]) -> None:
        self._open().resume(*places(partitions))

    async def do_commit(self, offsets: list[list[Any]] | None = None) -> None:
        wanted = {TopicPartition(each[0], each[1]): OffsetAndMetadata(each[2], each[3]) for each in offsets or ()}
        await self._open().commit(wanted or None)

    async def do_committed(self, partitions: list[list[Any]]) -> list[list[Any]]:
        asked = await self.admin()
        group = self._open()._group_id
        found = await asked.list_consumer_group_offsets(group, partitions=places(partitions))
        return [[*each, found[each].offset, found[each].metadata or ""] for each in places(partitions)]

    async def do_times(self, partitions: list[list[Any]]) -> list[list[Any]]:
        asked = {TopicPartition(topic, partition): time for topic, partition, time in partitions}
        found = await self._open().offsets_for_times(asked)
        return [[*each, found[each].offset if found[each] else -1] for each in asked]

    async def do_ends(self, partitions: list[list[Any]]) -> list[list[Any]]:
        asked = places(partitions)
        first, last = await self._open().beginning_offsets(asked), await self._open().end_offsets(asked)
        return [[*each, first[each], last[each]] for each in asked]

    async def do_leave(self) -> None:
        reader, self._reader = self._reader, None
        if reader:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        await self._open().stop()
        self.consumer, self._reader = None, None

    async def do_txn_init(self, producer: str, name: str = "", timeout_ms: int = 60_000) -> None:
        self.transactional[producer] = AIOKafkaProducer(
            **self.reach, transactional_id=name or producer, transaction_timeout_ms=timeout_ms
        )
        await self.transactional[producer].start()

    async def do_txn_begin(self, producer: str) -> None:
        await self.transactional[producer].begin_transaction()

    async def do_txn_offsets(self, producer: str, offsets: list[list[Any]]) -> None:
        wanted = {TopicPartition(each[0], each[1]): each[2] for each in offsets}
        await self.transactional[producer].send_offsets_to_transaction(wanted, self._open()._group_id)

    async def do_txn_commit(self, producer: str) -> None:
        await self.transactional[producer].commit_transaction()

    async def do_txn_abort(self, producer: str) -> None:
        await self.transactional[producer].abort_transaction()

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            if not consumer.subscription() and not consumer.assignment():
                await asyncio.sleep(0.02)
                continue
            got = [
                record(each.topic, each.partition, each.offset, each.timestamp, each.key, each.value, each.headers)
                for batch in (await consumer.getmany(timeout_ms=50)).values()
                for each in batch
            ]
            if got:
                say(records=got)

    async def do_create(self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        done = await (await self.admin()).create_topics([NewTopic(topic, partitions, 1, topic_configs=configs or {})])
        _check(done.topic_errors)

    async def do_delete(self, topic: str) -> None:
        done = await (await self.admin()).delete_topics([topic])
        _check(done.topic_error_codes)

    async def do_add_partitions(self, topic: str, total: int) -> None:
        done = await (await self.admin()).create_partitions({topic: NewPartitions(total)})
        _check(done.topic_errors)

    async def do_topics(self) -> dict[str, int]:
        found = await (await self.admin()).describe_topics()
        return {each["topic"]: len(each["partitions"]) for each in found}

    async def do_delete_records(self, partitions: list[list[Any]]) -> list[int]:
        asked = {TopicPartition(each[0], each[1]): RecordsToDelete(each[2]) for each in partitions}
        done = await (await self.admin()).delete_records(asked)
        return [done[each] for each in asked]

    async def do_groups(self) -> dict[str, str]:
        return {each[0]: "" for each in await (await self.admin()).list_consumer_groups()}


def _check(answers: Any) -> None:
    for topic, code, *text in answers:
        assert code == 0, f"{topic}: error {code} {text}"


async def main(address: str) -> None:
    """Runs the requests one after the other, as in the other drivers."""
    driver, lines = AiokafkaDriver(address), requests()
    while (request := await asyncio.to_thread(lines.get)) is not None:
        number, do = request.pop("id"), request.pop("do")
        try:
            say(id=number, value=await getattr(driver, f"do_{do}")(**request))
        except FAILED as error:
            say(id=number, error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
