"""Tests of idempotency keys of transactions in virtual time: brokers die at each step of a try, and the request is
written once, whichever broker gets its next try."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.harness.loop import process_context
from tests.sim.scenarios.test_transactions import SETTINGS
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tests.sim.scenarios.transactions import SimProducer, ask, create_topic, find_coordinator, read_markers
from tiered.errors import Code, Unavailable
from tiered.ids import TopicPartition
from tiered.records.batch import encode_batch
from tiered.transactions.requests import AddPartitions, InitProducerId
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import (
    EXPECTED_ERRORS,
    KEY_IN_USE,
    KEY_REUSED,
    NOT_AUTHENTICATED,
    HttpError,
    to_http_error,
)
from tiered_api.http.exchange.limits import HttpLimits
from tiered_api.http.partitions.idempotency import IdempotencyKeys, make_key
from tiered_api.http.partitions.record_formats import ProducerRecord
from tiered_api.http.transactions.body import TopicRecord, TransactionBody
from tiered_api.http.transactions.commit import KEY_HASH, NO_TOPIC, commit_once
from tiered_api.http.transactions.producer import PartitionWrite, TransactionalProducer
from tiered_api.http.transactions.transactional_ids import TransactionalIds
from tiered_api.kafka.protocol.messages.end_txn import EndTxnRequest

APPEND_MS = 5_000
WAIT_SECONDS = 60.0
Places = dict[TopicPartition, int]


class KeyedClient:
    """Sends one request with a key, a record in each of two partitions, through the HTTP side of a broker."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker
        self._site = HttpContext(broker.node, HttpLimits(append_ms=APPEND_MS))
        self._site.add_service(IdempotencyKeys(self._site))
        self._site.add_service(TransactionalIds(self._site))

    async def send(self, name: str, value: bytes, require_rights: Callable[[], None] = lambda: None) -> Places:
        """Sends it once. Returns the first offset in each partition. Raises `HttpError`."""
        records = (ProducerRecord(partition, 0, None, value, ()) for partition in range(2))
        body = TransactionBody(tuple(TopicRecord("t", record) for record in records), None)
        key = make_key(NO_TOPIC, name, "/tiered/v1/transactions", value)
        try:
            with self._site.service(IdempotencyKeys).use(key):
                written = await commit_once(self._site, body, key, require_rights)
        except EXPECTED_ERRORS as error:
            raise to_http_error(error) from None
        return {each.tp: each.places[0].base_offset for each in written}

    def start(self, name: str, value: bytes) -> asyncio.Task[Places]:
        """Begins to send it, in the process of the broker."""
        process = self.broker.process
        return self.broker.loop.create_task(self.send(name, value), name=process, context=process_context(process))


async def send_until_replied(three: ThreeBrokers, broker: SimBroker, name: str, value: bytes) -> Places:
    start, client = three.now, KeyedClient(broker)
    while True:
        assert three.now - start < WAIT_SECONDS
        try:
            return await client.send(name, value)
        except HttpError as error:
            assert error.status in (404, 409, 500), error.message
        await asyncio.sleep(0.1)


def commits(three: ThreeBrokers, partition: int) -> set[tuple[int, int]]:
    """Returns the committed transactions of a partition: a coordinator that moved may write a marker again."""
    return {(each.producer_id, each.producer_epoch) for each in read_markers(three, partition) if each.commit}


def id_of(name: str) -> str:
    """Returns the transactional id of a key."""
    return f"tiered-key-{make_key(NO_TOPIC, name, '', b'').producer_id:x}"


@pytest.mark.parametrize("victim", ["server", "coordinator"])
@run_by(run_scenario, **SETTINGS)
async def test_request_whose_broker_dies_at_any_step_is_written_once(three: ThreeBrokers, *, victim: str) -> None:
    await create_topic(three, (1, 2, 3), (2, 3, 1))
    await send_until_replied(three, three.brokers[1], "first", b"first")
    for number, delay in enumerate((0.004, 0.008, 0.012, 0.016, 0.02, 0.03)):
        name, value = f"key {number}", b"%d" % number
        server = three.brokers[1 + number % 3]
        attempt = KeyedClient(server).start(name, value)
        await asyncio.sleep(delay)
        dying = server
        if victim == "coordinator":
            dying = find_coordinator(three, id_of(name)) or server
        await dying.kill()
        await asyncio.gather(attempt, return_exceptions=True)
        first = None if attempt.cancelled() or attempt.exception() else attempt.result()
        others = [each for each in three.brokers.values() if each is not dying]
        places = await send_until_replied(three, others[0], name, value)
        assert first in (None, places)
        assert await send_until_replied(three, others[1], name, value) == places
        await dying.start()
        await three.wait_until(three.is_everyone_known, 30)
    for partition in range(2):
        await three.wait_until(lambda partition=partition: len(commits(three, partition)) >= 7, 60)  # type: ignore[misc]
        assert len(commits(three, partition)) == 7


@pytest.mark.parametrize("waits", range(3), ids=["its turn", "the first write", "the commit"])
@run_by(run_scenario, **SETTINGS)
async def test_rights_that_end_before_a_step_leave_nothing_committed(three: ThreeBrokers, *, waits: int) -> None:
    """The same key then writes once, for a user that has its rights again."""
    await create_topic(three, (1, 2, 3), (2, 3, 1))
    await send_until_replied(three, three.brokers[1], "first", b"first")
    client, left = KeyedClient(three.brokers[1]), iter(range(waits))

    def require_rights() -> None:
        if next(left, None) is None:
            raise HttpError(NOT_AUTHENTICATED, "the login has ended")

    with pytest.raises(HttpError) as refused:
        await client.send("key", b"value", require_rights)
    assert refused.value.error_code == NOT_AUTHENTICATED
    assert [len(commits(three, partition)) for partition in range(2)] == [1, 1]
    await send_until_replied(three, three.brokers[2], "key", b"value")
    for partition in range(2):
        await three.wait_until(lambda partition=partition: len(commits(three, partition)) == 2, 60)  # type: ignore[misc]


@run_by(run_scenario, **SETTINGS)
async def test_key_in_use_and_key_of_another_request_are_refused(three: ThreeBrokers) -> None:
    await create_topic(three, (1, 2, 3), (2, 3, 1))
    key = make_key(NO_TOPIC, "key", "/tiered/v1/transactions", b"a")
    name, request_hash = id_of("key"), KEY_HASH.pack(key.producer_epoch, key.base_sequence)
    begun = await ask(three, name, InitProducerId(name, APPEND_MS, request_hash=request_hash))
    add = AddPartitions(name, begun.producer_id, begun.producer_epoch, frozenset((TopicPartition("t", 0),)), 2)
    assert (await ask(three, name, add)).code is Code.NONE
    clients = [KeyedClient(each) for each in three.brokers.values()]
    for client in clients:
        for value in (b"a", b"b"):
            with pytest.raises(HttpError) as refused:
                await client.send("key", value)
            assert refused.value.error_code == KEY_IN_USE
    places = await send_until_replied(three, three.brokers[2], "key", b"a")
    assert await clients[0].send("key", b"a") == places
    with pytest.raises(HttpError) as refused:
        await clients[2].send("key", b"b")
    assert refused.value.error_code == KEY_REUSED


@pytest.mark.parametrize(
    ("lost_replies", "code"), [(0, Code.TRANSACTION_ABORTABLE), (1, Code.REQUEST_TIMED_OUT)], ids=["first", "second"]
)
@run_by(run_scenario, **SETTINGS)
async def test_fenced_commit_is_aborted_only_if_no_earlier_try_has_committed(
    three: ThreeBrokers, *, lost_replies: int, code: Code
) -> None:
    await create_topic(three, (1, 2, 3))
    site = HttpContext(three.brokers[1].node, HttpLimits(append_ms=APPEND_MS))
    send, ends = site.remote_brokers.send_request, 0

    async def send_with_faults(node_id: int, request: Any, *more: Any, **given: Any) -> Any:
        nonlocal ends
        if not isinstance(request, EndTxnRequest):
            return await send(node_id, request, *more, **given)
        ends += 1
        if ends > lost_replies:
            await SimProducer(three, "http").init()
        reply = await send(node_id, request, *more, **given)
        if ends <= lost_replies:
            raise Unavailable("the reply is lost")
        return reply

    site.remote_brokers.send_request = send_with_faults  # type: ignore[method-assign]
    tp, image = TopicPartition("t", 0), three.brokers[1].node.image
    write = PartitionWrite(tp, image.topics["t"].topic_id, [(1, encode_one)])
    with refuses(code):
        await TransactionalProducer(site, "http").commit([write], None, APPEND_MS / 1000)
    await three.wait_until(lambda: len(read_markers(three, 0)) == 1, 30)
    assert read_markers(three, 0)[0].commit is bool(lost_replies)


@run_by(run_scenario, **SETTINGS)
async def test_transaction_whose_commit_is_refused_is_aborted_at_once(three: ThreeBrokers) -> None:
    """Only the id of an idempotency key may keep a reply, so the coordinator refuses this commit."""
    await create_topic(three, (1, 2, 3))
    site = HttpContext(three.brokers[1].node, HttpLimits(append_ms=APPEND_MS))
    write = PartitionWrite(TopicPartition("t", 0), site.broker.image.topics["t"].topic_id, [(1, encode_one)])
    with refuses(Code.TRANSACTION_ABORTABLE):
        await TransactionalProducer(site, "http").commit([write], None, APPEND_MS / 1000, lambda _: b"reply")
    await three.wait_until(lambda: [each.commit for each in read_markers(three, 0)] == [False], 2)


async def encode_one(producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    return encode_batch(
        [(0, None, b"v", ())], producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence,
        transactional=True,
    )  # fmt: skip
