"""Tests of groups of real clients: they share partitions, join and leave, and survive deaths of the broker
unnoticed."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as Place
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer, KafkaProducer

from tests.e2e.kafka_site import KafkaBroker, run
from tests.e2e.serving import ServeProcess
from tests.ports import free_port
from tests.scenario import run_by
from tiered.errors import Code
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

QUICK = "group.initial.rebalance.delay.ms=0"
TEST_SECONDS = 240.0


class LibrdkafkaMember:
    """A consumer of librdkafka that records its assignments and its records."""

    def __init__(self, address: str, group: str, topic: str, **settings: str) -> None:
        self.partitions: set[int] = set()
        self.rebalances = 0
        self.read: list[str] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest",
                "enable.auto.commit": "false", "session.timeout.ms": "6000", "heartbeat.interval.ms": "200",
                "reconnect.backoff.max.ms": "200", "log_level": "0",
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )  # fmt: skip
        self.consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.rebalances += 1
        self.partitions = {place.partition for place in places}

    def _on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.partitions = set()

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            self.read.append(value.decode())

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)


def poll_until(members: Sequence[LibrdkafkaMember], condition: Callable[[], bool]) -> None:
    """Polls all members until the condition holds."""
    deadline = time.monotonic() + TEST_SECONDS
    while not condition():
        assert time.monotonic() < deadline, [(member.partitions, member.read) for member in members]
        for member in members:
            member.poll()


def is_shared_out(members: Sequence[LibrdkafkaMember], count: int) -> bool:
    """True if every partition has one owner and every member has a partition."""
    owned = sorted(p for member in members for p in member.partitions)
    return owned == list(range(count)) and all(member.partitions for member in members)


def produce(address: str, topic: str, values: Sequence[str], partitions: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % partitions)
    assert producer.flush(TEST_SECONDS) == 0


class RestartableBroker:
    """`tiered serve` at one address through any number of deaths; its bucket is apart from its disk."""

    def __init__(self, directory: Path) -> None:
        self.data, self.bucket = directory / "data", directory / "bucket"
        self.address = f"127.0.0.1:{free_port()}"
        self.start()

    def start(self) -> None:
        self.served = ServeProcess(
            self.data, "--kafka", self.address, "--store", f"file://{self.bucket}", "-c", QUICK,
            "-c", "num.partitions=6",
        )  # fmt: skip

    def __enter__(self) -> RestartableBroker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.served.process.poll() is None:
            self.served.stop()


def test_members_survive_a_killed_broker(tmp_path: Path) -> None:
    """No commit is lost, and no member has to join again."""
    with RestartableBroker(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("t", 6)])["t"].result(TEST_SECONDS)
        # However long a busy machine takes to start a broker again, nobody's session ends meanwhile.
        members = [LibrdkafkaMember(broker.address, "g", "t", session_timeout_ms="60000") for _ in range(3)]
        poll_until(members, lambda: is_shared_out(members, 6))
        produce(broker.address, "t", [f"{n}" for n in range(30)], 6)
        poll_until(members, lambda: sum(len(member.read) for member in members) >= 30)
        for member in members:
            member.commit()
        seen, rebalances = [len(member.read) for member in members], [member.rebalances for member in members]
        broker.served.stop(signal.SIGKILL)
        broker.start()
        produce(broker.address, "t", [f"{n}" for n in range(30, 60)], 6)
        poll_until(members, lambda: sum(len(member.read) for member in members) >= 60)
        assert [member.rebalances for member in members] == rebalances
        assert sorted(int(value) for member in members for value in member.read) == list(range(60))
        for member, count in zip(members, seen, strict=True):
            assert len(member.read) > count
            member.commit()
        broker.served.stop(signal.SIGKILL)
        broker.start()
        for member in members:
            held = member.consumer.committed([TopicPartition("t", p) for p in member.partitions], timeout=TEST_SECONDS)
            assert [place.offset for place in held] == [10] * len(member.partitions)
            member.consumer.close()


def test_group_is_restored_from_the_bucket_without_the_disk(tmp_path: Path) -> None:
    with RestartableBroker(tmp_path) as broker:
        produce(broker.address, "t", [f"{n}" for n in range(12)], 6)
        member = LibrdkafkaMember(broker.address, "g", "t")
        poll_until([member], lambda: len(member.read) == 12)
        member.consumer.commit(offsets=[TopicPartition("t", p, 1) for p in range(6)], asynchronous=False)
        member.consumer.close()
        broker.served.stop()
        assert list((broker.bucket / "groups").rglob("*-*"))
        shutil.rmtree(broker.data / "log")
        broker.start()
        again = LibrdkafkaMember(broker.address, "g", "t")
        poll_until([again], lambda: is_shared_out([again], 6))
        held = again.consumer.committed([TopicPartition("t", p) for p in range(6)], timeout=TEST_SECONDS)
        ends = [again.consumer.get_watermark_offsets(TopicPartition("t", p), timeout=TEST_SECONDS)[1] for p in range(6)]
        assert [place.offset for place in held] == [min(1, end) for end in ends]
        again.consumer.close()


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_restarted_static_member_causes_no_rebalance(site: KafkaBroker) -> None:
    await site.create("t", 4)

    def run_clients() -> None:
        first = LibrdkafkaMember(site.address, "g", "t", group_instance_id="one")
        second = LibrdkafkaMember(site.address, "g", "t", group_instance_id="two")
        poll_until([first, second], lambda: is_shared_out([first, second], 4))
        held, rebalances = set(first.partitions), second.rebalances
        first.consumer.close()  # a static member does not leave when it closes
        again = LibrdkafkaMember(site.address, "g", "t", group_instance_id="one")
        poll_until([again, second], lambda: again.partitions == held)
        assert second.rebalances == rebalances
        for member in (again, second):
            member.consumer.close()

    await asyncio.to_thread(run_clients)


@pytest.mark.also("tests/compat/test_groups.py::test_partitions_are_owned_once_while_members_join_leave_and_die")
@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=1000)
async def test_partitions_are_shared_while_members_come_and_go(site: KafkaBroker) -> None:
    """Up to five members share ten partitions. A member that leaves or disappears leaves its share to the others."""
    await site.create("t", 10)
    members: list[AIOKafkaConsumer] = []

    async def even() -> None:
        """True if every member has a share and every partition one owner."""
        while True:
            owned = sorted(place.partition for member in members for place in member.assignment())
            if owned == list(range(10)) and all(member.assignment() for member in members):
                return
            await asyncio.sleep(0.01)

    for _ in range(5):
        member = AIOKafkaConsumer(
            "t", bootstrap_servers=site.address, group_id="g", session_timeout_ms=8000, heartbeat_interval_ms=100,
            enable_auto_commit=False, metadata_max_age_ms=60_000,
        )  # fmt: skip
        await member.start()
        members.append(member)
        await even()
    await members.pop(0).stop()
    await even()
    lost = members.pop()
    while lost._coordinator._heartbeat_task is None:  # a member that joins again has none for a moment
        await asyncio.sleep(0.01)
    lost._coordinator._heartbeat_task.cancel()  # no word any more: its session has to run out
    lost._coordinator._coordination_task.cancel()
    await even()
    place = Place("t", 3)
    holder = next(member for member in members if place in member.assignment())
    await holder.commit({place: 5})
    assert await holder.committed(place) == 5
    for member in members:
        await member.stop()
    await lost.stop()


async def commit_until_refused(site: KafkaBroker, address: str) -> int:
    """Commits in ever more groups, and returns how many commits were accepted before the first refusal. Asks again
    while the coordinator of a group still starts."""
    client = await site.client(address)
    topics = [OffsetCommitRequestTopic("t", "", [OffsetCommitRequestPartition(0, 1, committed_metadata="x" * 4096)])]
    for number in range(1_000):
        request = OffsetCommitRequest(f"{address}-{number}", topics=topics)
        async with asyncio.timeout(TEST_SECONDS):
            while True:
                code = (await client.ask(request, 8, OffsetCommitResponse)).topics[0].partitions[0].error_code
                if code not in (Code.NOT_COORDINATOR.number, Code.COORDINATOR_LOAD_IN_PROGRESS.number):
                    break
                await asyncio.sleep(0.05)
        if code:
            assert code == Code.COORDINATOR_NOT_AVAILABLE.number
            return number
    return 1_000


@run_by(run, "tmp_path", tiered_groups_max_bytes=1 << 20, group_initial_rebalance_delay_ms=0)
async def test_greedy_address_leaves_memory_of_groups_to_others(site: KafkaBroker) -> None:
    """One address filled all of it with offsets in half a minute: nobody else could join a group for a week."""
    await site.create("t", 1)

    def run_client() -> None:
        member = LibrdkafkaMember(site.address, "g", "t")
        poll_until([member], lambda: is_shared_out([member], 1))
        member.consumer.close()

    await asyncio.to_thread(run_client)  # the coordinator is there now: a refusal has another reason
    assert 150 < await commit_until_refused(site, "127.0.0.2") < 200
    await asyncio.to_thread(run_client)
    assert 0 < await commit_until_refused(site, "127.0.0.3") < 20
    (found,) = [each for each in site.broker.health().problems if "bytes of groups are taken" in each]
    assert "of them by 127.0.0.2" in found


@run_by(run, "tmp_path", group_initial_rebalance_delay_ms=0)
async def test_later_member_continues_at_the_committed_offset(site: KafkaBroker) -> None:
    await site.create("t", 2)

    def run_clients() -> None:
        producer = KafkaProducer(bootstrap_servers=site.address)
        for number in range(20):
            producer.send("t", b"%d" % number, partition=number % 2).get(TEST_SECONDS)
        producer.close()
        read: list[int] = []
        for count in (8, 12):
            consumer = KafkaConsumer(
                "t", bootstrap_servers=site.address, group_id="g", auto_offset_reset="earliest",
                enable_auto_commit=False, max_poll_records=1,
            )  # fmt: skip
            for _ in range(count):
                read.append(int(next(consumer).value))
                consumer.commit()
            consumer.close()
        assert sorted(read) == list(range(20))

    await asyncio.to_thread(run_clients)
