"""`python -m tests.counts.requests`: counts the work of each hot request, and prints it as JSON.

With `--functions` it prints the calls and bytecodes of each function. With `--mark` it marks each piece of work in the
list of its system calls (`tests/counts/system_calls.py`).
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.http_load import post
from tests.counts.brokers import HeldBroker, start_broker
from tests.counts.clients import HttpConnection, KafkaConnection, codes
from tests.counts.held_loop import HeldClock, HeldLoop
from tests.counts.meter import COUNTED, BlockMeter, BytecodeMeter, CallMeter, MarkMeter, Meter, NativeMeter, NoMeter
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import AlterClientQuotas, AlterScramCredentials, CreateAcls, QuotaAlteration
from tiered.metadata.changes import AclAdded, ScramCredentialSet
from tiered.object_store.memory import MemoryStore
from tiered.quotas.validation import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from tiered.records.batch import encode_batch
from tiered.replication.leader_replica import LeaderReplica
from tiered.security.scram import ScramMechanism, make_credential, salt_password
from tiered_api.kafka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tiered_api.kafka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tiered_api.kafka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tiered_api.kafka.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tiered_api.kafka.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

PREPARING, WARMING = 3, 3
WALL_MS = 1_700_000_000_000
VALUE = b"x" * 100
RECORD = json.dumps({"value": {"type": "JSON", "data": {"n": 1, "text": "x" * 80}}}).encode()
USER, PASSWORD = "alice", "wonderland"
NO_LIMIT = 1e12


METERS: dict[str, Callable[[str], Meter]] = {
    "calls": lambda name: CallMeter(),
    "bytecodes": lambda name: BytecodeMeter(),
    "blocks": lambda name: BlockMeter(),
    "calls in C": lambda name: NativeMeter(),
}


class Step(NamedTuple):
    """One request of a round, with the connections that get a reply after it. Without a name it is not counted."""

    name: str
    connection: KafkaConnection | HttpConnection
    request: bytes
    replied: Sequence[KafkaConnection | HttpConnection]


Round = Callable[[int], Iterator[Step]]
"""Yields the steps of the round with this number. A step begins when the one before it has its replies."""


def batch(count: int, **fields: Any) -> bytes:
    return encode_batch([(WALL_MS, b"k", VALUE, ()) for _ in range(count)], **fields)


def produce(replica: LeaderReplica, data: bytes, transactional_id: str | None = None) -> ProduceRequest:
    part = PartitionProduceData(replica.partition, data)
    topic = TopicProduceData(replica.topic, replica.topic_id, [part])
    return ProduceRequest(transactional_id, -1, 10_000, [topic])


def fetch(replica: LeaderReplica, offset: int, wait_ms: int = 0) -> FetchRequest:
    part = FetchPartition(replica.partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(replica.topic, replica.topic_id, [part])
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 24, topics=[topic])


def check(connection: KafkaConnection) -> None:
    """Fails if the last reply has an error."""
    assert not codes(connection.reply), connection.reply


# -- the rounds -------------------------------------------------------------------------------------------------------


def produces(site: HeldBroker, name: str, records: int, *assignments: Sequence[int]) -> Round:
    client, replica = site.connect(), site.create(f"produced-{records}", *assignments)

    def steps(number: int) -> Iterator[Step]:
        request = client.frame(produce(replica, batch(records)), ProduceResponse, 13)
        yield Step(name, client, request, [client])
        check(client)

    return steps


def fetches(site: HeldBroker) -> Round:
    client, replica = site.connect(), site.create("fetched")
    site.ask(client, produce(replica, batch(100)), ProduceResponse, 13)

    def steps(number: int) -> Iterator[Step]:
        yield Step("Fetch of 100 records", client, client.frame(fetch(replica, 0), FetchResponse, 18), [client])
        check(client)
        assert client.reply.responses[0].partitions[0].records

    return steps


def waiting_fetches(site: HeldBroker) -> Round:
    reader, writer, replica = site.connect(), site.connect(), site.create("awaited")

    def steps(number: int) -> Iterator[Step]:
        request = reader.frame(fetch(replica, replica.high_watermark, 60_000), FetchResponse, 18)
        yield Step("Fetch that waits", reader, request, [])
        request = writer.frame(produce(replica, batch(1)), ProduceResponse, 13)
        yield Step("Produce that ends the wait of a Fetch", writer, request, [writer, reader])
        check(writer)
        check(reader)
        assert reader.reply.responses[0].partitions[0].records

    return steps


def member_requests(site: HeldBroker) -> Round:
    client, replica = site.connect(), site.create("consumed")
    join = JoinGroupRequest("g", 600_000, 600_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"topics")])
    join.member_id = site.ask(client, join, JoinGroupResponse, 9).member_id
    joined = site.ask(client, join, JoinGroupResponse, 9)
    parts = [SyncGroupRequestAssignment(joined.member_id, b"parts")]
    sync = SyncGroupRequest("g", joined.generation_id, joined.member_id, None, "consumer", "range", parts)
    site.ask(client, sync, SyncGroupResponse, 5)
    check(client)
    member = "g", joined.generation_id, joined.member_id

    def steps(number: int) -> Iterator[Step]:
        request = client.frame(HeartbeatRequest(*member), HeartbeatResponse, 4)
        yield Step("Heartbeat", client, request, [client])
        check(client)
        part = OffsetCommitRequestPartition(0, number, -1, "")
        topic = OffsetCommitRequestTopic(replica.topic, replica.topic_id, [part])
        commit = OffsetCommitRequest(*member, None, topics=[topic])
        yield Step("OffsetCommit", client, client.frame(commit, OffsetCommitResponse, 10), [client])
        check(client)

    return steps


def transactions(site: HeldBroker) -> Round:
    client, replica = site.connect(), site.create("transactional")
    init = InitProducerIdRequest("t", 600_000)
    reply = site.ask(client, init, InitProducerIdResponse, 4)
    check(client)
    producer = "t", reply.producer_id, reply.producer_epoch

    def steps(number: int) -> Iterator[Step]:
        add = AddPartitionsToTxnRequest([], *producer, [AddPartitionsToTxnTopic(replica.topic, [0])])
        yield Step("AddPartitionsToTxn", client, client.frame(add, AddPartitionsToTxnResponse, 3), [client])
        check(client)
        data = batch(1, producer_id=producer[1], producer_epoch=producer[2], base_sequence=number, transactional=True)
        request = client.frame(produce(replica, data, "t"), ProduceResponse, 11)
        yield Step("Produce in a transaction", client, request, [client])
        check(client)
        end = client.frame(EndTxnRequest(*producer, True), EndTxnResponse, 4)
        yield Step("EndTxn", client, end, [client])
        check(client)

    return steps


def posts(site: HeldBroker, name: str, login: str = "", *, has_key: bool = False) -> Round:
    client, replica = site.connect_http(), site.create(f"posted-{has_key}")
    path = f"/v3/clusters/{site.broker.cluster_id}/topics/{replica.topic}/records"

    def steps(number: int) -> Iterator[Step]:
        request = post(path, RECORD, key=f"order-{number:08}" if has_key else "", login=login)
        yield Step(name, client, request, [client])

    return steps


def reads(site: HeldBroker) -> Round:
    client, replica = site.connect_http(), site.create("read")
    site.ask(site.connect(), produce(replica, batch(100)), ProduceResponse, 13)
    head = f"GET /topics/{replica.topic}/partitions/0/records?offset=0 HTTP/1.1\r\nHost: localhost\r\n"
    request = f"{head}Accept: application/json\r\n\r\n".encode()

    def steps(number: int) -> Iterator[Step]:
        yield Step("JSON read of 100 records", client, request, [client])

    return steps


def add_login(site: HeldBroker) -> str:
    """Adds a user who may write. Returns the value of its header Authorization."""
    kind = ScramMechanism.SHA_512
    salt = b"0123456789"
    made = make_credential(kind, salt_password(kind, PASSWORD, salt, 4096), salt, 4096)
    salt_text, stored_key, server_key = (b64encode(each).decode() for each in made[:3])
    change = ScramCredentialSet(USER, kind.mechanism_name, salt_text, stored_key, server_key, made.iterations)
    site.loop.run_until_complete(site.broker.submit(AlterScramCredentials((), (change,))))
    rule = AclAdded("TOPIC", "LITERAL", "*", f"User:{USER}", "*", "WRITE", "ALLOW")
    site.loop.run_until_complete(site.broker.submit(CreateAcls((rule,))))
    return "Basic " + b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def add_rules(site: HeldBroker) -> None:
    """Lets anonymous clients write within quotas."""
    rule = AclAdded("TOPIC", "LITERAL", "*", "User:ANONYMOUS", "*", "WRITE", "ALLOW")
    site.loop.run_until_complete(site.broker.submit(CreateAcls((rule,))))
    quotas = ((PRODUCER_BYTE_RATE, NO_LIMIT), (CONSUMER_BYTE_RATE, NO_LIMIT))
    altered = QuotaAlteration((("user", "ANONYMOUS"),), quotas)
    site.loop.run_until_complete(site.broker.submit(AlterClientQuotas((altered,))))


@contextmanager
def all_rounds(loop: HeldLoop, directory: Path) -> Iterator[list[Round]]:
    """Yields the rounds of all measured requests, on brokers that serve meanwhile."""
    alone = start_broker(loop, directory / "alone", MemoryStore(HeldClock(loop)))
    closed = start_broker(
        loop, directory / "closed", MemoryStore(HeldClock(loop)), authentication_method=("BASIC",),
        authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:root",
    )  # fmt: skip
    ruled = start_broker(
        loop, directory / "ruled", MemoryStore(HeldClock(loop)), authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:root",
    )  # fmt: skip
    add_rules(ruled)
    shared = MemoryStore(HeldClock(loop))
    pair = [start_broker(loop, directory / f"pair-{number}", shared, node_id=number) for number in (1, 2)]
    while len([each for each in pair[0].broker.image.brokers.values() if each.live and each.http]) < len(pair):
        loop.run_turn(NoMeter())
    yield [
        produces(alone, "Produce of 1 record", 1),
        produces(alone, "Produce of 100 records", 100),
        fetches(alone),
        waiting_fetches(alone),
        member_requests(alone),
        transactions(alone),
        posts(alone, "POST"),
        posts(alone, "POST with a key", has_key=True),
        posts(closed, "POST with a login", add_login(closed)),
        produces(ruled, "Produce with rules and quotas", 1),
        reads(alone),
        produces(pair[0], "Produce that a follower copies", 1, (1, 2)),
    ]
    for each in (alone, closed, ruled, *reversed(pair)):
        loop.run_until_complete(each.close())


# -- the counts -------------------------------------------------------------------------------------------------------


def serve(loop: HeldLoop, step: Step, meter: Meter) -> None:
    """Serves a step until its replies are there and nothing is ready."""
    step.connection.send(step.request)
    loop.wait()
    loop.run_turns(meter)
    for each in step.replied:
        while not each.take_reply():
            loop.wait(each.fileno())
            loop.run_turns(meter)


def prepare(loop: HeldLoop, step: Step) -> None:
    """Serves a step while timers may fall due."""
    step.connection.send(step.request)
    for each in step.replied:
        while not each.take_reply():
            loop.run_turn(NoMeter())


class RequestCounter:
    """Plays the rounds of one group of requests; each has a number of its own."""

    def __init__(self, loop: HeldLoop, steps: Round) -> None:
        self._loop = loop
        self._steps = steps
        self._rounds = 0

    def prepare(self) -> None:
        for step in self._next_round():
            prepare(self._loop, step)

    def play(self, new_meter: Callable[[str], Meter]) -> dict[str, int]:
        """Returns the count of each request of a round."""
        counts = {}
        for step in self._next_round():
            meter = new_meter(step.name)
            serve(self._loop, step, meter)
            counts[step.name] = meter.total
        return counts

    def count_middle(self, new_meter: Callable[[str], Meter]) -> dict[str, int]:
        """Returns the median of some rounds: the end of other work, such as an fsync of before, may fall into one."""
        for _ in range(WARMING):
            self.play(new_meter)
        played = [self.play(new_meter) for _ in range(COUNTED)]
        return {name: int(median(each[name] for each in played)) for name in played[0]}

    def _next_round(self) -> Iterator[Step]:
        self._rounds += 1
        return self._steps(self._rounds - 1)


def count(counters: Sequence[RequestCounter]) -> None:
    """Prints the counts of each request as JSON."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for counter in counters:
        for kind, meter in METERS.items():
            for name, number in counter.count_middle(meter).items():
                found[name][kind] = number
    print(json.dumps(found))


def mark(counters: Sequence[RequestCounter]) -> None:
    """Marks the pieces of work of each request in the list of system calls."""
    for counter in counters:
        counter.count_middle(MarkMeter)


def list_functions(counters: Sequence[RequestCounter]) -> None:
    """Prints the calls and the bytecodes of each function in each request."""
    calls: dict[str, CallMeter] = defaultdict(CallMeter)
    bytecodes: dict[str, BytecodeMeter] = defaultdict(BytecodeMeter)
    for counter in counters:
        for _ in range(WARMING):
            counter.play(lambda name: NoMeter())
        counter.play(calls.__getitem__)
        counter.play(bytecodes.__getitem__)
    for name, meter in bytecodes.items():
        print(f"{name}: {calls[name].total} calls, {meter.total} bytecodes")
        for code, number in meter.functions.most_common():
            times = calls[name].functions[code]
            print(f"{times:6} {number:6} {code.co_qualname} {code.co_filename}:{code.co_firstlineno}")


def main(task: Callable[[Sequence[RequestCounter]], None]) -> None:
    loop = HeldLoop()
    with tempfile.TemporaryDirectory(prefix="tiered-counts-") as directory, all_rounds(loop, Path(directory)) as rounds:
        counters = [RequestCounter(loop, each) for each in rounds]
        for counter in counters:
            for _ in range(PREPARING):
                counter.prepare()
        gc.collect()
        gc.disable()
        loop.hold()
        task(counters)
        loop.release()


TASKS = {"--mark": mark, "--functions": list_functions}

if __name__ == "__main__":
    main(TASKS[sys.argv[1]] if sys.argv[1:] else count)
