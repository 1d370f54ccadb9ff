"""Tests of idempotency keys in virtual time: replies are lost, leaders die before and after the copy of a record, and
each request is written once, whichever broker gets its next try."""

from __future__ import annotations

import pytest

from tests.sim.scenarios.test_http_away import AT, RemoteReader, run_with_reader
from tests.sim.scenarios.three import SESSION, SimBroker, ThreeBrokers
from tiered_api.http.exchange.errors import KAFKA_RETRIABLE_ERROR, KEY_REUSED, HttpError
from tiered_api.http.partitions.idempotency import IdempotencyKeys, make_key
from tiered_api.http.partitions.produce import RecordMetadata, append_many
from tiered_api.http.partitions.record_formats import ProducerRecord


class KeyedWriter:
    """Writes through the HTTP side of one broker, without its sockets."""

    def __init__(self, broker: SimBroker) -> None:
        self.site = RemoteReader(broker).site
        self.site.add_service(IdempotencyKeys(self.site))
        self.topic = broker.node.image.topics["t"]

    async def write(self, name: str, value: bytes) -> RecordMetadata | HttpError:
        """Writes one record as a request with this key."""
        key = make_key(self.topic.topic_id, name, "/topics/t", value)
        record = ProducerRecord(None, self.site.clock.wall_ms(), None, value, ())
        [outcome] = await append_many(self.site, self.topic, [record], key)
        return outcome


def offset_of(outcome: RecordMetadata | HttpError) -> int:
    assert isinstance(outcome, RecordMetadata), outcome
    return outcome.offset


async def wait_led_by(three: ThreeBrokers, broker: SimBroker) -> None:
    await three.wait_until(lambda: broker.node.hosted_replicas.find_leader(AT) is not None, 5 * SESSION)


def test_request_whose_reply_was_lost_is_found_in_the_log_by_every_broker() -> None:
    async def scenario(three: ThreeBrokers, reader: RemoteReader, held: list[SimBroker]) -> None:
        leader, successor = held
        [other] = [each for each in three.brokers.values() if each not in held]
        writer = KeyedWriter(other)
        assert offset_of(await writer.write("one", b"a")) == 0
        three.network.cut(leader.name, other.name)
        lost = await writer.write("two", b"b")
        assert isinstance(lost, HttpError) and lost.error_code == KAFKA_RETRIABLE_ERROR
        three.network.heal()
        assert offset_of(await KeyedWriter(leader).write("two", b"b")) == 1
        await leader.kill()
        await wait_led_by(three, successor)
        for broker in (other, successor):
            again = KeyedWriter(broker)
            assert [offset_of(await again.write(name, value)) for name, value in (("two", b"b"), ("one", b"a"))] == [
                1,
                0,
            ]
            with pytest.raises(HttpError) as refused:
                await again.write("two", b"c")
            assert refused.value.error_code == KEY_REUSED
        assert await reader.values() == [b"a", b"b"]

    run_with_reader(lambda controller, one, other: [one, controller], scenario)


def test_request_that_died_with_its_leader_is_written_by_the_next_try() -> None:
    async def scenario(three: ThreeBrokers, reader: RemoteReader, held: list[SimBroker]) -> None:
        leader, successor = held
        [other] = [each for each in three.brokers.values() if each not in held]
        writer = KeyedWriter(other)
        assert offset_of(await writer.write("one", b"a")) == 0
        three.network.cut(leader.name, successor.name)
        three.network.cut(successor.name, leader.name)
        parked = await writer.write("two", b"b")
        assert isinstance(parked, HttpError), "its leader has appended it, and nobody has a copy"
        three.network.heal()
        await wait_led_by(three, successor)
        for broker in (other, successor, leader):
            assert offset_of(await KeyedWriter(broker).write("two", b"b")) == 1
        assert await reader.values() == [b"a", b"b"]

    run_with_reader(lambda controller, one, other: [one, controller], scenario)


def test_brokers_that_start_again_still_know_the_key() -> None:
    async def scenario(three: ThreeBrokers, reader: RemoteReader, held: list[SimBroker]) -> None:
        [other] = [each for each in three.brokers.values() if each not in held]
        assert offset_of(await KeyedWriter(other).write("one", b"a")) == 0
        for broker in held:
            await broker.stop()
        for broker in held:
            await broker.start()
        await three.wait_until(lambda: any(each.node.hosted_replicas.find_leader(AT) for each in held), 5 * SESSION)
        for broker in three.brokers.values():
            assert offset_of(await KeyedWriter(broker).write("one", b"a")) == 0
        assert await reader.values() == [b"a"]

    run_with_reader(lambda controller, one, other: [one, other], scenario)
