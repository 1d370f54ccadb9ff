"""Tests of transactions over real sockets: each client's versions, and bad input."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, kafka_broker, produce, run, wait_until
from tests.e2e.transaction_calls import (
    CLIENTS,
    JAVA_3_9,
    JAVA_4_2,
    TransactionalClient,
    Versions,
    read_decided,
    transactional_batch,
)
from tests.scenario import run_alone, run_by
from tiered.coordination.transaction_coordinators import PARTITIONS_AT_ONCE
from tiered.errors import Code, Refused
from tiered.metadata.topic_names import TRANSACTIONS_TOPIC
from tiered.records.batch import encode_batch
from tiered.transactions.metadata import EPOCH_EXHAUSTED, TransactionState
from tiered.transactions.records import transaction_key
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tiered_api.kafka.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tiered_api.kafka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tiered_api.kafka.protocol.messages.produce import ProduceResponse
from tiered_api.kafka.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tiered_api.kafka.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tiered_api.kafka.server.dispatch import SMALL_FRAME_BYTES
from tiered_api.kafka.server.handlers.write_txn_markers import WRITES_AT_ONCE

FEATURE = "transaction.version"
FEW_PARTITIONS = {"transaction_state_log_num_partitions": 2}
BY_CLIENT = pytest.mark.parametrize("versions", CLIENTS.values(), ids=CLIENTS.keys())


def run_transactions(directory: Path, scenario: Callable[[KafkaBroker], Awaitable[None]], **settings: Any) -> None:
    """Runs a scenario on a broker with few partitions of `__transaction_state`."""
    run(directory, scenario, **(FEW_PARTITIONS | settings))


@BY_CLIENT
@run_by(run_transactions, "tmp_path")
async def test_transactions_over_several_partitions_commit_and_abort(site: KafkaBroker, *, versions: Versions) -> None:
    first = await site.create("a", 2)
    replicas = [first, site.broker.leader_replica("a", 1), await site.create("b")]
    client = await site.client()
    producer = TransactionalClient(client, versions=versions)
    assert await producer.init() is Code.NONE
    for turn, commit in enumerate((True, False, True, False)):
        for replica in replicas:
            assert await producer.write(replica, b"%d-0" % turn, b"%d-1" % turn) is Code.NONE
            assert await producer.send(replica, b"%d-2" % turn) is Code.NONE
        assert await producer.end(commit) is Code.NONE
        if versions.end < 5:
            assert await producer.end(commit) is Code.NONE, "the same request, sent again"
    for replica in replicas:
        await wait_until(lambda replica=replica: replica.log.end_offset == 16)  # type: ignore[misc]
        values, stable = await read_decided(client, replica)
        assert values == [b"0-0", b"0-1", b"0-2", b"2-0", b"2-1", b"2-2"] and stable == 16


@BY_CLIENT
@run_by(run_transactions, "tmp_path")
async def test_transaction_of_one_broker_is_answered_without_a_task(
    site: KafkaBroker, *, versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[str] = []
    replica = await site.create("t")
    client = TransactionalClient(await site.client(), versions=versions)
    assert await client.init() is Code.NONE
    assert await client.write(replica, b"a") is await client.end(True) is Code.NONE  # handlers are imported now
    dispatch = site.server.dispatch
    spawn = dispatch.produce_handler._spawn

    def note(connection: Any, work: Any, what: str) -> None:
        tasks.append(what)
        spawn(connection, work, what)

    monkeypatch.setattr(dispatch, "spawn", note)
    monkeypatch.setattr(dispatch.produce_handler, "_spawn", note)
    for commit in (True, False):
        assert await client.write(replica, b"b") is await client.write(replica, b"c") is Code.NONE
        assert await client.end(commit) is Code.NONE
    assert tasks == []
    assert await read_decided(client.client, replica) == ([b"a", b"b", b"c"], replica.log.end_offset)


@run_by(run_transactions, "tmp_path")
async def test_request_waits_for_markers_that_are_not_written_yet(
    site: KafkaBroker, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, coordinators = await site.create("t"), site.broker.transaction_coordinators
    client = TransactionalClient(await site.client(), versions=JAVA_3_9)
    assert await client.init() is await client.write(replica, b"a") is Code.NONE
    held: list[tuple[Any, ...]] = []
    send = coordinators.markers.send
    monkeypatch.setattr(coordinators.markers, "send", lambda *due: held.append(due))
    assert await client.end(True) is Code.NONE
    adding = asyncio.ensure_future(client.add(replica))
    await wait_until(lambda: coordinators._waiting == 1)
    send(*held[0])
    assert await adding is Code.NONE


@run_by(run_transactions, "tmp_path")
async def test_end_at_the_last_epoch_gets_a_new_producer_id(site: KafkaBroker) -> None:
    replica, coordinators = await site.create("t"), site.broker.transaction_coordinators
    client = TransactionalClient(await site.client())
    assert await client.init() is await client.write(replica, b"0") is await client.end(True) is Code.NONE
    shard = coordinators.host.find_shard(client.name)
    assert shard is not None
    await wait_until(lambda: not shard.state.transactions[client.name].state.is_prepared)
    value = shard.state.transactions[client.name]
    shard.state.put(client.name, value._replace(producer_epoch=EPOCH_EXHAUSTED))
    before, client.epoch = client.producer_id, EPOCH_EXHAUSTED
    assert await client.write(replica, b"a") is await client.end(True) is Code.NONE
    assert client.producer_id != before and client.epoch == 0
    assert await client.write(replica, b"b") is await client.end(True) is Code.NONE
    assert (await read_decided(client.client, replica))[0] == [b"0", b"a", b"b"]


@run_by(run_transactions, "tmp_path")
async def test_end_of_many_partitions_lets_others_have_their_turn(
    site: KafkaBroker, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = PARTITIONS_AT_ONCE + 1
    await site.create("t", count)
    replicas = [site.broker.leader_replica("t", number) for number in range(count)]
    client = TransactionalClient(await site.client(), versions=JAVA_3_9)
    assert await client.init() is await client.write(replicas[0], b"a") is await client.end(True) is Code.NONE
    assert await client.add(*replicas) is Code.NONE
    tasks: list[str] = []
    spawn = site.server.dispatch.spawn

    def note(connection: Any, work: Any, what: str) -> None:
        tasks.append(what)
        spawn(connection, work, what)

    monkeypatch.setattr(site.server.dispatch, "spawn", note)
    assert await client.end(True) is Code.NONE and tasks == ["EndTxn"]


@run_by(run_transactions, "tmp_path")
async def test_requests_of_one_connection_are_decided_in_their_order(site: KafkaBroker) -> None:
    """A request that has to take a task once lost its place to the next one, which was answered at once."""
    count = SMALL_FRAME_BYTES // 4
    await site.create("t", count)
    client = TransactionalClient(await site.client(), versions=JAVA_3_9)
    replica = site.broker.leader_replica("t", 0)
    assert await client.init() is await client.write(replica, b"a") is await client.end(True) is Code.NONE
    assert await client.add(replica) is Code.NONE
    raw = client.client
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=client.name,
        v3_and_below_producer_id=client.producer_id,
        v3_and_below_producer_epoch=client.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic("t", list(range(1, count)))],
    )
    end = EndTxnRequest(client.name, client.producer_id, client.epoch, True)
    await raw.send(raw.frame(add, 3), raw.frame(end, 3))
    await raw.receive(AddPartitionsToTxnResponse, 3)
    assert (await raw.receive(EndTxnResponse, 3)).error_code == 0
    shard = site.broker.transaction_coordinators.host.find_shard(client.name)
    assert shard is not None
    assert shard.state.transactions[client.name].state is not TransactionState.ONGOING, "it has ended, none began"


@run_by(run_transactions, "tmp_path")
async def test_first_record_that_is_refused_leaves_no_guard(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = TransactionalClient(await site.client())
    assert await client.init() is await client.write(replica, b"a") is await client.end(True) is Code.NONE
    other = TransactionalClient(await site.client(), "u")
    assert await other.init() is Code.NONE
    for each in (client, other):
        assert await each.send(replica, b"third", sequence=2) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert not replica.log.producers.guards
        assert await each.send(replica, b"first", sequence=0) is await each.end(True) is Code.NONE


@BY_CLIENT
@run_by(run_transactions, "tmp_path")
async def test_next_producer_of_an_id_fences_the_one_before(site: KafkaBroker, *, versions: Versions) -> None:
    replica = await site.create("a")
    zombie = TransactionalClient(await site.client(), versions=versions)
    assert await zombie.init() is Code.NONE
    assert await zombie.write(replica, b"lost") is Code.NONE
    producer = TransactionalClient(await site.client(), versions=versions)
    assert await producer.init() is Code.NONE
    assert producer.producer_id == zombie.producer_id and producer.epoch > zombie.epoch
    knows = versions.end >= 2
    assert await zombie.end(True) is (Code.PRODUCER_FENCED if knows else Code.INVALID_PRODUCER_EPOCH)
    if versions.add >= 0:
        assert await zombie.add(replica) is (Code.PRODUCER_FENCED if knows else Code.INVALID_PRODUCER_EPOCH)
    assert await zombie.send(replica, b"late") is Code.INVALID_PRODUCER_EPOCH
    known = versions.init >= 3
    if known:
        refused = await zombie.init(zombie.producer_id, zombie.epoch)
        assert refused is (Code.PRODUCER_FENCED if versions.init >= 4 else Code.INVALID_PRODUCER_EPOCH)
    assert await producer.write(replica, b"kept") is Code.NONE
    assert await producer.end(True) is Code.NONE
    await wait_until(lambda: replica.log.end_offset == 4)
    assert await read_decided(await site.client(), replica) == ([b"kept"], 4)


@run_by(run_transactions, "tmp_path")
async def test_fenced_producer_gets_the_code_of_its_version_from_init(site: KafkaBroker) -> None:
    client = await site.client()
    for _ in range(3):
        assert await TransactionalClient(client).init() is Code.NONE
    for version, code in ((3, Code.INVALID_PRODUCER_EPOCH), (4, Code.PRODUCER_FENCED), (5, Code.PRODUCER_FENCED)):
        assert await TransactionalClient(client, versions=JAVA_4_2._replace(init=version)).init(0, 0) is code


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (InitProducerIdRequest("", 1_000), Code.INVALID_REQUEST),
        (InitProducerIdRequest("t", 0), Code.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest("t", -1), Code.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest("t", 5_001), Code.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest("t", 1_000, 5, -1), Code.INVALID_REQUEST),
        (InitProducerIdRequest("t", 1_000, -1, 5), Code.INVALID_REQUEST),
        (InitProducerIdRequest("t" * 4_097, 1_000), Code.INVALID_REQUEST),
        (InitProducerIdRequest("é" * 2_049, 1_000), Code.INVALID_REQUEST),
    ],
    ids=lambda each: each.name if isinstance(each, Code) else "",
)
@run_by(run_transactions, "tmp_path", transaction_max_timeout_ms=5_000)
async def test_bad_init_is_refused_and_leaves_nothing(
    site: KafkaBroker, *, request_: InitProducerIdRequest, code: Code
) -> None:
    client = await site.client()
    got = await client.ask(request_, 5, InitProducerIdResponse)
    assert (got.error_code, got.producer_id, got.producer_epoch) == (code.number, -1, -1)
    listed = await client.ask(ListTransactionsRequest(), 0, ListTransactionsResponse)
    assert (listed.error_code, listed.transaction_states) == (0, [])
    assert await TransactionalClient(client).init(timeout_ms=5_000) is Code.NONE


@run_by(run_transactions, "tmp_path")
async def test_producer_that_goes_on_after_an_error_gets_its_next_epoch(site: KafkaBroker) -> None:
    client = await site.client()
    producer, other = TransactionalClient(client), TransactionalClient(client, "other")
    assert await producer.init() is Code.NONE and await other.init() is Code.NONE
    before = producer.producer_id, producer.epoch
    assert await producer.init(*before) is Code.NONE
    assert (producer.producer_id, producer.epoch) == (before[0], before[1] + 1)
    assert await producer.init(*before) is Code.NONE, "the reply was lost, and the request comes again"
    assert producer.epoch == before[1] + 1
    assert await producer.init(other.producer_id, 0) is Code.PRODUCER_FENCED, "the id of another producer"


@pytest.mark.parametrize("version", range(6))
@run_by(run_transactions, "tmp_path")
async def test_end_that_ends_nothing_is_refused(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    producer = TransactionalClient(client, versions=JAVA_4_2._replace(end=version))
    producer.producer_id, producer.epoch = 0, 0
    assert await producer.end(True) is Code.INVALID_PRODUCER_ID_MAPPING, "an id that nobody has"
    assert await producer.init() is Code.NONE
    assert await producer.end(True) is Code.INVALID_TXN_STATE
    assert await producer.end(False) is (Code.NONE if version >= 5 else Code.INVALID_TXN_STATE)
    producer.epoch += 5
    assert await producer.end(True) is (Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH)
    producer.producer_id += 1
    assert await producer.end(True) is Code.INVALID_PRODUCER_ID_MAPPING
    producer.name = ""
    assert await producer.end(True) is Code.INVALID_REQUEST


@BY_CLIENT
@run_by(run_transactions, "tmp_path")
async def test_another_process_ends_the_transaction(site: KafkaBroker, *, versions: Versions) -> None:
    replica = await site.create("a")
    producer = TransactionalClient(await site.client(), versions=versions)
    assert await producer.init() is Code.NONE and await producer.write(replica, b"v") is Code.NONE
    producer.client.close()
    resumed = TransactionalClient(await site.client(), versions=versions)
    resumed.producer_id, resumed.epoch = producer.producer_id, producer.epoch
    assert await resumed.end(True) is Code.NONE
    await wait_until(lambda: replica.log.end_offset == 2)
    assert await read_decided(resumed.client, replica) == ([b"v"], 2)


@pytest.mark.parametrize("version", range(4))
@run_by(run_transactions, "tmp_path")
async def test_partition_that_does_not_exist_refuses_all_of_the_request(site: KafkaBroker, *, version: int) -> None:
    await site.create("a")
    client = await site.client()
    producer = TransactionalClient(client)
    assert await producer.init() is Code.NONE
    topics = [AddPartitionsToTxnTopic("a", [0, 7]), AddPartitionsToTxnTopic(TRANSACTIONS_TOPIC, [0])]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_topics=[*topics, AddPartitionsToTxnTopic("none", [0])],
    )
    got = await client.ask(request, version, AddPartitionsToTxnResponse)
    codes = {
        (topic.name, each.partition_index): code_from_number(each.partition_error_code)
        for topic in got.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }
    assert codes == {
        ("a", 0): Code.OPERATION_NOT_ATTEMPTED,
        ("a", 7): Code.UNKNOWN_TOPIC_OR_PARTITION,
        (TRANSACTIONS_TOPIC, 0): Code.TOPIC_AUTHORIZATION_FAILED,
        ("none", 0): Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert (await producer.describe()).transaction_state == "Empty"


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("is_broker", [True, False])
@run_by(run_transactions, "tmp_path")
async def test_partitions_of_many_transactions_are_added_and_verified(
    site: KafkaBroker, *, version: int, is_broker: bool
) -> None:
    """Brokers send their credential. Anyone may without an authorizer, as in Kafka: @platformatic/kafka sends v5."""
    await site.create("a", 2)
    client = await site.client()
    producers = [TransactionalClient(client, name) for name in ("t", "u", "v")]
    for each in producers:
        assert await each.init() is Code.NONE
    asked = [
        AddPartitionsToTxnTransaction(each.name, each.producer_id, 0, verify_only, [AddPartitionsToTxnTopic("a", [0])])
        for each, verify_only in zip(producers, (False, False, True), strict=True)
    ]
    other = await client.ask(AddPartitionsToTxnRequest(asked, credential=b"wrong"), version, AddPartitionsToTxnResponse)
    assert (other.error_code, other.results_by_transaction) == (Code.CLUSTER_AUTHORIZATION_FAILED.number, [])
    request = AddPartitionsToTxnRequest(asked, credential=site.broker.credential if is_broker else b"")
    for expected in ([Code.NONE, Code.NONE, Code.TRANSACTION_ABORTABLE],) * 2:
        got = await client.ask(request, version, AddPartitionsToTxnResponse)
        assert [each.transactional_id for each in got.results_by_transaction] == ["t", "u", "v"]
        assert [_only_code(each.topic_results) for each in got.results_by_transaction] == expected
    asked[0].verify_only = True
    asked[1].producer_epoch = 7
    got = await client.ask(request, version, AddPartitionsToTxnResponse)
    codes = [_only_code(each.topic_results) for each in got.results_by_transaction]
    assert codes == [Code.NONE, Code.PRODUCER_FENCED, Code.TRANSACTION_ABORTABLE]
    asked[1].topics.append(AddPartitionsToTxnTopic("none", [0]))
    got = await client.ask(request, version, AddPartitionsToTxnResponse)
    refused = [
        each.results_by_partition[0].partition_error_code for each in got.results_by_transaction[1].topic_results
    ]
    assert refused == [Code.OPERATION_NOT_ATTEMPTED.number, Code.UNKNOWN_TOPIC_OR_PARTITION.number]
    assert _only_code(got.results_by_transaction[0].topic_results) is Code.NONE


def _only_code(topics: list[AddPartitionsToTxnTopicResult]) -> Code:
    ((each,),) = (topic.results_by_partition for topic in topics)
    return code_from_number(each.partition_error_code)


@pytest.mark.parametrize("version", range(3, 14))
@run_by(run_transactions, "tmp_path")
async def test_record_of_a_partition_that_was_not_added_is_refused_or_adds_it(
    site: KafkaBroker, *, version: int
) -> None:
    replica = await site.create("a")
    producer = TransactionalClient(await site.client(), versions=JAVA_4_2._replace(produce=version))
    assert await producer.init() is Code.NONE
    expected = {11: Code.TRANSACTION_ABORTABLE, 12: Code.NONE, 13: Code.NONE}.get(version, Code.INVALID_TXN_STATE)
    assert await producer.send(replica, b"v") is expected
    assert replica.log.end_offset == (1 if version >= 12 else 0)
    failures = site.broker.metrics.counter("kafka_server_addpartitionstotxnmanager_verificationfailures_total", "")
    assert failures.value() == (0 if version >= 12 else 1)
    producer.epoch += 1
    assert await producer.send(replica, b"v", sequence=0) is Code.INVALID_PRODUCER_EPOCH


@run_by(run_transactions, "tmp_path", transaction_partition_verification_enable=False)
async def test_record_is_taken_unverified_if_the_setting_says_so(site: KafkaBroker) -> None:
    replica = await site.create("a")
    producer = TransactionalClient(await site.client(), versions=JAVA_3_9)
    assert await producer.init() is Code.NONE
    assert await producer.send(replica, b"v") is Code.NONE


@run_by(run_transactions, "tmp_path")
async def test_record_without_a_transactional_id_does_not_begin_a_transaction(site: KafkaBroker) -> None:
    replica = await site.create("a")
    client = await site.client()
    request = produce(replica, raw=transactional_batch(0, 0, 0, b"v"))
    got = await client.ask(request, 13, ProduceResponse)
    assert got.responses[0].partition_responses[0].error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED.number
    assert replica.log.end_offset == 0


@run_by(run_transactions, "tmp_path")
async def test_clients_do_not_write_to_the_topic_of_the_coordinators(site: KafkaBroker) -> None:
    client = await site.client()
    assert await TransactionalClient(client).init() is Code.NONE
    replica = site.broker.leader_replica(TRANSACTIONS_TOPIC, 0)
    got = await client.ask(produce(replica, b"v"), 13, ProduceResponse)
    assert got.responses[0].partition_responses[0].error_code == Code.INVALID_TOPIC_EXCEPTION.number


@pytest.mark.parametrize("version", [1, 2])
@run_by(run_transactions, "tmp_path")
async def test_markers_of_clients_abort_and_do_not_commit(site: KafkaBroker, *, version: int) -> None:
    replica = await site.create("a")
    client = await site.client()
    producer = TransactionalClient(client)
    assert await producer.init() is Code.NONE and await producer.write(replica, b"v") is Code.NONE

    async def write(commit: bool, credential: bytes, topic: str = "a", partition: int = 0) -> Code:
        topics = [WritableTxnMarkerTopic(topic, [partition])]
        marker = WritableTxnMarker(producer.producer_id, producer.epoch, commit, topics)
        request = WriteTxnMarkersRequest([marker], credential)
        got = await client.ask(request, version, WriteTxnMarkersResponse)
        ((result,),) = (each.partitions for each in got.markers[0].topics)
        assert (got.markers[0].producer_id, result.partition_index) == (producer.producer_id, partition)
        return code_from_number(result.error_code)

    assert await write(True, b"") is Code.CLUSTER_AUTHORIZATION_FAILED
    assert await write(False, b"no broker's") is Code.CLUSTER_AUTHORIZATION_FAILED
    assert await write(False, b"", "none") is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert await write(False, b"", "a", 9) is Code.UNKNOWN_TOPIC_OR_PARTITION
    other = await site.create("b")
    assert await write(False, b"", "b") is Code.INVALID_TXN_STATE, "it has no transaction there"
    assert (replica.log.end_offset, other.log.end_offset, len(other.log.producers)) == (1, 0, 0)
    assert await write(False, b"") is Code.NONE, "as kafka-transactions.sh abort does it"
    assert await write(False, site.broker.credential) is Code.NONE, "a second one changes nothing"
    assert await read_decided(client, replica) == ([], 2)


@run_by(run_transactions, "tmp_path")
async def test_markers_of_many_partitions_run_in_few_tasks(site: KafkaBroker) -> None:
    client = await site.client()
    topics = [WritableTxnMarkerTopic("none", list(range(4 * WRITES_AT_ONCE)))]
    request = WriteTxnMarkersRequest([WritableTxnMarker(number, 0, False, topics) for number in range(2)])
    asked = asyncio.create_task(client.ask(request, 1, WriteTxnMarkersResponse))
    before, most = len(asyncio.all_tasks()), 0
    while not asked.done():
        most = max(most, len(asyncio.all_tasks()))
        await asyncio.sleep(0)
    assert 1 < most <= before + WRITES_AT_ONCE + 1
    for marker in (await asked).markers:
        codes = [(each.partition_index, each.error_code) for each in marker.topics[0].partitions]
        assert codes == [(n, Code.UNKNOWN_TOPIC_OR_PARTITION.number) for n in range(4 * WRITES_AT_ONCE)]


@run_by(run_transactions, "tmp_path")
async def test_transaction_is_described_and_listed(site: KafkaBroker) -> None:
    replica = await site.create("a")
    client = await site.client()
    empty = await client.ask(ListTransactionsRequest(), 2, ListTransactionsResponse)
    assert (empty.error_code, empty.transaction_states) == (0, []) and not site.broker.image.topics.keys() - {"a"}
    first, second = TransactionalClient(client, "first"), TransactionalClient(client, "second")
    assert (await first.describe()).error_code == Code.TRANSACTIONAL_ID_NOT_FOUND.number
    assert await first.init() is Code.NONE and await second.init(timeout_ms=7_000) is Code.NONE
    assert await second.write(replica, b"v") is Code.NONE
    state = await second.describe()
    assert (state.error_code, state.transaction_state, state.transaction_timeout_ms) == (0, "Ongoing", 7_000)
    assert (state.producer_id, state.producer_epoch) == (second.producer_id, second.epoch)
    assert [(each.topic, each.partitions) for each in state.topics] == [("a", [0])]
    assert state.transaction_start_time_ms > 0 and (await first.describe()).transaction_start_time_ms == -1
    nameless = await client.ask(DescribeTransactionsRequest([""]), 0, DescribeTransactionsResponse)
    assert nameless.transaction_states[0].error_code == Code.INVALID_REQUEST.number

    async def list_ids(
        version: int, *states: str, producers: tuple[int, ...] = (), than_ms: int = -1, pattern: str = ""
    ) -> set[str]:
        request = ListTransactionsRequest(list(states), list(producers), than_ms, pattern)
        got = await client.ask(request, version, ListTransactionsResponse)
        assert got.error_code == 0 and got.unknown_state_filters == [each for each in states if each == "odd"]
        return {each.transactional_id for each in got.transaction_states}

    for version in range(3):
        assert await list_ids(version) == {"first", "second"}
        assert await list_ids(version, "Ongoing", "odd") == {"second"}
        assert await list_ids(version, "odd") == await list_ids(version, "Dead") == set()
        assert await list_ids(version, producers=(first.producer_id,)) == {"first"}
    for pattern, expected in (("f.*", {"first"}), ("first|second", {"first", "second"}), ("irs", set())):
        assert await list_ids(2, pattern=pattern) == expected
    bad = await client.ask(ListTransactionsRequest([], [], -1, "["), 2, ListTransactionsResponse)
    assert bad.error_code == Code.INVALID_REGULAR_EXPRESSION.number
    assert await list_ids(1, than_ms=100_000) == set() and await list_ids(2, than_ms=0) <= {"second"}


@run_by(run_transactions, "tmp_path")
async def test_transaction_is_aborted_at_its_timeout(site: KafkaBroker) -> None:
    replica = await site.create("a")
    producer = TransactionalClient(await site.client())
    assert await producer.init(timeout_ms=100) is Code.NONE and await producer.write(replica, b"v") is Code.NONE
    await wait_until(lambda: replica.log.end_offset == 2)
    assert await read_decided(producer.client, replica) == ([], 2)
    assert await producer.end(True) is Code.INVALID_TXN_STATE
    assert await producer.init() is Code.NONE and await producer.write(replica, b"w") is Code.NONE
    assert await producer.end(True) is Code.NONE


@run_by(
    run_transactions,
    "tmp_path",
    transactional_id_expiration_ms=1_000,
    transaction_remove_expired_transaction_cleanup_interval_ms=50,
)
async def test_id_that_nobody_uses_expires_by_its_own_setting(site: KafkaBroker) -> None:
    replica = await site.create("a")
    client = TransactionalClient(await site.client(), versions=JAVA_3_9)
    assert await client.init() is Code.NONE
    shard = site.broker.transaction_coordinators.host.find_shard(client.name)
    assert shard is not None
    await wait_until(lambda: client.name not in shard.state.transactions)
    assert await client.add(replica) is Code.INVALID_PRODUCER_ID_MAPPING


@run_by(run_alone)
async def test_restarted_broker_goes_on_with_the_transaction(*, tmp_path: Path) -> None:
    async with kafka_broker(tmp_path, transaction_state_log_num_partitions=2) as site:
        producer = TransactionalClient(await site.client())
        replica = await site.create("a")
        assert await producer.init() is Code.NONE and await producer.write(replica, b"v") is Code.NONE
    async with kafka_broker(tmp_path, transaction_state_log_num_partitions=2) as site:
        producer.client = await site.client()
        replica = site.broker.leader_replica("a", 0)
        assert await producer.send(replica, b"w") is Code.NONE
        assert await producer.end(True) is Code.NONE
        await wait_until(lambda: replica.log.end_offset == 3)
        assert await read_decided(producer.client, replica) == ([b"v", b"w"], 3)


def test_garbled_record_of_a_coordinator_harms_no_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(site: KafkaBroker) -> None:
        producer = TransactionalClient(await site.client())
        replica = await site.create("a")
        assert await producer.init() is Code.NONE and await producer.write(replica, b"v") is Code.NONE
        state, own = site.broker.leader_replica(TRANSACTIONS_TOPIC, 0), transaction_key("t")
        for key, value in ((own, b""), (own, b"\0\1torn"), (b"\0", b"v"), (b"\0\7", b"v"), (b"\0\0\x7f\xff", b"v")):
            await state.append(bytearray(encode_batch([(0, key, value, ())])))
        led = site.broker.transaction_coordinators.host.led_partitions[0]
        assert led.coordinator is not None
        led.coordinator.fail(Refused(Code.KAFKA_STORAGE_ERROR, "the coordinator is loaded again"))
        await wait_until(lambda: led.coordinator is not None)
        assert await producer.end(True) is Code.NONE
        await wait_until(lambda: replica.log.end_offset == 2)
        assert await read_decided(producer.client, replica) == ([b"v"], 2)

    run_transactions(tmp_path, scenario, transaction_state_log_num_partitions=1)
    assert "records of transactional ids cannot be read, the next snapshot lacks them" in caplog.text


# -- features ---------------------------------------------------------------------------------------------------------


async def transaction_version(client: RawClient, version: int) -> int:
    """Returns the level in force; 0 if there is none. Clients of version 3 do not see the levels to choose from."""
    got = await client.ask(ApiVersionsRequest("test", "1"), version, ApiVersionsResponse)
    supported = [(each.min_version, each.max_version) for each in got.supported_features if each.name == FEATURE]
    assert supported == ([(0, 2)] if version >= 4 else []) and got.finalized_features_epoch >= 0
    levels = {each.name: each.max_version_level for each in got.finalized_features}
    return levels.get(FEATURE, 0)


@pytest.mark.parametrize("version", range(3))
@run_by(run, "tmp_path")
async def test_level_of_transactions_is_shown_lowered_and_raised(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()

    async def update(level: int, *, down: bool = False, name: str = FEATURE, dry: bool = False) -> Code:
        key = FeatureUpdateKey(name, level, down, 2 if down else 1)
        got = await client.ask(UpdateFeaturesRequest(5_000, [key], dry), version, UpdateFeaturesResponse)
        if version < 2:
            assert [each.feature for each in got.results] == ([] if got.error_code else [name])
        assert bool(got.error_message) is bool(got.error_code)
        return code_from_number(got.error_code)

    assert await transaction_version(client, 3) == await transaction_version(client, 4) == 2
    for level, down, name in ((1, False, FEATURE), (3, False, FEATURE), (-1, True, FEATURE), (1, True, "no")):
        assert await update(level, down=down, name=name) is Code.INVALID_UPDATE_VERSION
    if version == 0:
        assert await update(1, down=True) is Code.INVALID_UPDATE_VERSION, "as Kafka 4, which does not read the flag"
        return
    assert await update(1, down=True) is Code.NONE
    assert await transaction_version(client, 4) == 1
    assert await update(2, down=True) is Code.INVALID_UPDATE_VERSION
    assert await update(0, down=True) is Code.NONE
    assert await transaction_version(client, 4) == 0
    assert await update(2, dry=True) is Code.NONE
    assert await transaction_version(client, 3) == 0
    assert await update(2) is Code.NONE
    assert await transaction_version(client, 3) == 2
    image = site.broker.image
    assert (image.features[FEATURE], image.features_epoch) == (2, 4), "the first change made the cluster"
