"""Each pot that clients share, under a greedy holder, and then under a crowd of them: a newcomer always finds room.

`ATTACKS` says for each line of `POTS` how one unit of it is taken. A pot without a line there fails, and so does a
setting that bounds something without a line in `POTS` or a reason in `NO_POTS`.
"""

from __future__ import annotations

import ast
import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from tests.e2e.http_site import TEST_SECONDS, http_broker, wait_until
from tests.e2e.kafka_site import kafka_broker
from tests.scenario import run_alone, run_by
from tests.sources import modules, nodes
from tests.unit.groups.rig import Rig
from tests.unit.hot.fixtures import NOW
from tests.unit.producers.builders import walked_batch
from tests.unit.transactions.rig import ShardRig
from tiered.config.settings import Settings, broker_rows
from tiered.controller import delegation_tokens
from tiered.controller.controller import Controller
from tiered.controller.delegation_tokens import create_token
from tiered.controller.requests import CreateDelegationToken, CreateTopic, RegisterBroker
from tiered.errors import Code, Refused
from tiered.groups.limits import GroupSettings
from tiered.groups.pending_offsets import OFFSET_BYTES
from tiered.ids import KEYED_FROM, encode_uuid
from tiered.metadata.image import Image
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates
from tiered.quotas.shares import POTS, PotRefused
from tiered.security.principal import Caller, Principal
from tiered.transactions.decision import ID_BYTES
from tiered.transactions.limits import TransactionSettings
from tiered_api.http.consumers import instances
from tiered_api.http.consumers.instance import ConsumerConfig
from tiered_api.http.consumers.instances import ConsumerInstances, InstanceKey
from tiered_api.http.exchange.context import INLINE_BYTES
from tiered_api.http.exchange.limits import Exhausted, MemoryBudget
from tiered_api.http.transactions.transactional_ids import TransactionalIds
from tiered_api.kafka.server.fetch import cold_reads

Take = Callable[[str], Awaitable[None]]
"""Takes one unit of a pot for the holder of this name. Raises `Refused`."""


class Attack(NamedTuple):
    """A pot of `bound` units in a running part of a broker. `open` yields the function that takes one."""

    bound: int
    open: Callable[[Path, pytest.MonkeyPatch], AbstractAsyncContextManager[Take]]


def caller_of(name: str) -> Caller:
    """Returns the caller of a user of this name."""
    return Caller(Principal("User", name), "10.0.0.7")


@asynccontextmanager
async def open_rest_consumers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Take]:
    """Creates REST consumers."""
    monkeypatch.setattr(instances, "INSTANCES_MAX", 32)
    async with http_broker(directory) as site:
        consumers, numbers = site.http._listener.context.service(ConsumerInstances), count()

        async def take(name: str) -> None:
            key = InstanceKey(f"group-{name}", f"consumer-{next(numbers)}")
            await consumers.create(key, ConsumerConfig(), caller_of(name), lambda: True)

        yield take


def write_new_producer(states: ProducerStates, name: str, producer: int) -> None:
    """Writes the first batch of a producer."""
    batch = walked_batch(0, offset=states.end_offset, producer=producer)
    states.check_batches([batch], NOW, holder=name)
    states.apply(batch, NOW)


@asynccontextmanager
async def open_producer_ids(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Take]:
    """Invents producer ids, in four partitions in turn."""
    limits, numbers = ProducerLimits(total=32), count()
    partitions = [ProducerStates(0, limits) for _ in range(4)]

    async def take(name: str) -> None:
        number = next(numbers)
        write_new_producer(partitions[number % 4], name, number)

    yield take


@asynccontextmanager
async def open_partition_producer_ids(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Take]:
    """Invents producer ids in one partition."""
    states, numbers = ProducerStates(0, ProducerLimits(per_partition=32)), count()

    async def take(name: str) -> None:
        write_new_producer(states, name, next(numbers))

    yield take


@asynccontextmanager
async def open_idempotency_keys(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Take]:
    """Uses new idempotency keys in one partition."""
    states, numbers = ProducerStates(0, ProducerLimits(per_partition=64)), count(KEYED_FROM)

    async def take(name: str) -> None:
        write_new_producer(states, name, next(numbers))

    yield take


@asynccontextmanager
async def open_groups(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Take]:
    """Commits an offset in ever more groups."""
    rig, numbers = Rig(GroupSettings(bytes_max=100 * OFFSET_BYTES)), count()

    async def take(name: str) -> None:
        code = rig.commit(group=f"{name}-{next(numbers)}", holder=name)
        if code is not Code.NONE:
            raise PotRefused(code, rig.refused[-1][1])

    yield take


@asynccontextmanager
async def open_http_transactions(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Take]:
    """Begins transactions over HTTP that do not end."""
    async with http_broker(directory) as site, AsyncExitStack() as begun:
        ids = site.http._listener.context.service(TransactionalIds)

        async def take(name: str) -> None:
            await begun.enter_async_context(ids.admit(0.01, name))

        yield take


@asynccontextmanager
async def open_http_memory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Take]:
    """Declares bodies that do not come."""
    budget = MemoryBudget(32)

    async def take(name: str) -> None:
        try:
            await budget.acquire(1, 0.001, name)
        except Exhausted:
            raise budget.holdings.refuse(name) from None

    yield take


@asynccontextmanager
async def open_delegation_tokens(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Take]:
    """Creates delegation tokens."""
    monkeypatch.setattr(delegation_tokens, "TOKENS_MAX", 32)
    image, settings, numbers = Image(), Settings(), count()

    async def take(name: str) -> None:
        nonlocal image
        wanted = CreateDelegationToken(f"User:{name}", f"User:{name}")
        image = image.apply(create_token(image, settings, wanted, f"t{next(numbers)}", 0).changes)

    yield take


@asynccontextmanager
async def open_event_streams(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Take]:
    """Opens event streams, each from another address."""
    async with http_broker(directory, tiered_http_connections_max=32) as site, AsyncExitStack() as opened:
        context, numbers = site.http._listener.context, count(1)

        async def take(name: str) -> None:
            caller = Caller(Principal("User", name), f"10.0.0.{next(numbers)}")
            opened.enter_context(context.admit_stream(caller, object()))

        yield take


@asynccontextmanager
async def open_transactional_ids(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Take]:
    """Begins with ever more transactional ids."""
    rig, refused, numbers = ShardRig(TransactionSettings(bytes_max=100 * (ID_BYTES + 20))), list[str](), count()
    rig.shard.state.on_refused = lambda _, holder, why: refused.append(why)

    async def take(name: str) -> None:
        code = rig.init(name=f"{next(numbers):10}", holder=name).code
        if code is not Code.NONE:
            raise PotRefused(code, refused[-1])

    yield take


def open_partitions_under(
    settings: Settings,
) -> Callable[[Path, pytest.MonkeyPatch], AbstractAsyncContextManager[Take]]:
    """Returns what creates topics of one partition, under limits of a cluster of one broker."""

    @asynccontextmanager
    async def open_partitions(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Take]:
        numbers = count(1)
        shard = Controller(Image(), settings, lambda: encode_uuid(UUID(int=next(numbers))))
        shard.apply(shard.decide(RegisterBroker(1, "i", "d", "", whole=True), NOW).changes)

        async def take(name: str) -> None:
            shard.apply(shard.decide(CreateTopic(f"{name}-{next(numbers)}", creator=name), NOW).changes)

        yield take

    return open_partitions


def open_cold_reads_of(size: int) -> Callable[[Path, pytest.MonkeyPatch], AbstractAsyncContextManager[Take]]:
    """Returns what starts cold reads of so many bytes, whose outcomes nobody takes."""

    @asynccontextmanager
    async def open_cold_reads(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Take]:
        monkeypatch.setattr(cold_reads, "READS_MAX", 32 if size == 1 else 1_000)
        monkeypatch.setattr(cold_reads, "LOADED_BYTES_MAX", 100 * cold_reads.LEAST_BYTES)
        async with kafka_broker(directory) as site:
            reads, offsets = (await site.create("t")).reads, count(1_000)
            loads = cold_reads.ColdReads(site.server.context)

            async def take(name: str) -> None:
                if loads.get_or_start(reads, next(offsets), size, False, name) is None:
                    holdings = loads._holdings if size == 1 else loads._byte_holdings
                    raise holdings.refuse(name, size)

            yield take
            await loads.close()

    return open_cold_reads


ATTACKS = {
    "cold-reads": Attack(32, open_cold_reads_of(1)),
    "cold-read-bytes": Attack(100, open_cold_reads_of(cold_reads.LEAST_BYTES)),
    "partitions": Attack(32, open_partitions_under(Settings(tiered_partitions_max=32))),
    "broker-replicas": Attack(32, open_partitions_under(Settings(tiered_partitions_max_per_broker=32))),
    "transaction-bytes": Attack(100, open_transactional_ids),
    "delegation-tokens": Attack(32, open_delegation_tokens),
    "event-streams": Attack(32, open_event_streams),
    "group-bytes": Attack(100, open_groups),
    "producer-ids": Attack(32, open_producer_ids),
    "partition-producer-ids": Attack(32, open_partition_producer_ids),
    "idempotency-keys": Attack(32, open_idempotency_keys),
    "http-memory": Attack(32, open_http_memory),
    "http-transactions": Attack(64, open_http_transactions),
    "rest-consumers": Attack(32, open_rest_consumers),
}

_TIME, _ONE = "bounds a time", "bounds one request, batch, group or file"
_RATE = "bounds a rate of the broker's own work"
_ADDRESS = "has a limit for each address beside it"
_OPERATOR = "only an administrator takes of it"
_LABELS = "bounds labels of metrics: above it they share one"

NO_POTS = {
    "connections.max.reauth.ms": _TIME,
    "delegation.token.max.lifetime.ms": _TIME,
    "replica.lag.time.max.ms": _TIME,
    "replica.fetch.wait.max.ms": _TIME,
    "remote.fetch.max.wait.ms": _TIME,
    "log.message.timestamp.before.max.ms": _TIME,
    "log.message.timestamp.after.max.ms": _TIME,
    "log.cleaner.max.compaction.lag.ms": _TIME,
    "group.max.session.timeout.ms": _TIME,
    "transaction.max.timeout.ms": _TIME,
    "connections.max.idle.ms": _TIME,
    "tiered.upload.max.lag.ms": _TIME,
    "tiered.clock.skew.max.ms": _TIME,
    "replica.fetch.max.bytes": _ONE,
    "replica.fetch.response.max.bytes": _ONE,
    "log.index.size.max.bytes": _ONE,
    "message.max.bytes": _ONE,
    "offset.metadata.max.bytes": _ONE,
    "group.consumer.max.heartbeat.interval.ms": _TIME,
    "group.consumer.max.session.timeout.ms": _TIME,
    "group.consumer.max.size": _ONE,
    "group.max.size": _ONE,
    "socket.request.max.bytes": _ONE,
    "fetch.max.bytes": _ONE,
    "tiered.http.body.max.bytes": _ONE,
    "tiered.cleaner.object.max.bytes": _ONE,
    "log.cleaner.io.max.bytes.per.second": _RATE,
    "remote.log.manager.copy.max.bytes.per.second": _RATE,
    "remote.log.manager.fetch.max.bytes.per.second": _RATE,
    "replica.alter.log.dirs.io.max.bytes.per.second": _RATE,
    "tiered.cleaner.max.requests.per.second": _RATE,
    "tiered.http.connections.max.per.ip": _ADDRESS,
    "tiered.http.max.connection.creation.rate": _ADDRESS,
    "queued.max.request.bytes": "a client that holds much leaves a reserve to others, and loses its replies first",
    "queued.max.requests": "a connection has five requests in progress, and connections have limits by address",
    "tiered.acls.max": _OPERATOR,
    "tiered.compression.gzip.level.max": _ONE,
    "tiered.compression.lz4.level.max": _ONE,
    "tiered.compression.zstd.level.max": _ONE,
    "tiered.max.message.bytes.max": _ONE,
    "tiered.metrics.max.topics": _LABELS,
    "tiered.metrics.max.group.topics": _LABELS,
    "tiered.share.state.max.bytes": "share state is written by brokers alone; new batches take half of it",
    "remote.log.manager.copier.thread.pool.size": "topics take turns",
}
"""Settings of a broker that bound something, but no pot, each with the reason."""


TURNS = {
    "tiered.controller.channel": "requests to the controller take turns by holder",
    "tiered.upkeep.tiering": "topics take turns",
    "tiered.cold.uploader": "topics take turns before (tiered.upkeep.tiering)",
    "tiered.cold.fetch_throttle": "readers take turns",
    "tiered.cold.reader": "look-ups take turns by client address",
    "tiered.hot.batch_opening": "batches take turns by holder",
    "tiered.hot.time_lookup": "look-ups take turns by client address",
    "tiered_api.http.exchange.context": "jobs of threads take turns by holder",
    "tiered_api.http.server.authentication": "logins take turns by neighbourhood and address",
    "tiered_api.kafka.client.peers": "requests to a broker take turns by holder, and have shares",
    "tiered_api.http.overview.warehouse": "reports on tables take turns by holder",
    "tiered.cold.disk_cache": "reads of the cache belong to cold reads, of which each holder has a share",
    "tiered_api.http.transactions.transactional_ids": "the pot http-transactions",
}
"""Modules with slots that clients share, each with what keeps one client from taking all."""
OWN_WORK = {
    "tiered.wal.takeover",
    "tiered.broker.trace_exporter",
    "tiered.hosting.hosted_replicas",
    "tiered.upkeep.log_cleaner",
    "tiered.access.token_validator",
    "tiered.coordinator.snapshotter",
    "tiered.object_store.directory",
    "tiered.object_store.encrypted",
    "tiered.object_store.s3",
    "tiered.metadata.entry_history",
    "tiered.replication.replica_fetcher",
    "tiered_api.cli.login",
    "tiered_api.cli.topic.positions",
    "tiered_api.http.admin.groups",
    "tiered_api.http.admin.topics",
    "tiered_api.http.overview.groups",
    "tiered_api.http.overview.unread",
    "tiered_api.kafka.client.connection",
    "tiered_api.kafka.server.handlers.delete_records",
}
"""Modules with slots for the work of the broker itself, or of one request, client or connection."""


def test_slots_that_clients_share_are_a_pot_or_taken_in_turn() -> None:
    makers = {"FairSlots", "ThreadPool", "Semaphore", "BoundedSemaphore"}
    found = {
        name
        for name, path in modules().items()
        if name.split(".")[0] in ("tiered", "tiered_api")
        for node in nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in makers
    }
    assert found == {*TURNS, *OWN_WORK}


async def fill(take: Take, name: str, most: int) -> tuple[int, Refused | None]:
    """Takes units for a holder until one is refused, or `most` are taken. Returns their number and the refusal."""
    for taken in range(most):
        try:
            await take(name)
        except Refused as refused:
            return taken, refused
    return most, None


@run_by(run_alone)
async def test_new_rest_consumer_of_a_large_holder_ends_one_idle_one(
    *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has many is above its share because of others. It loses no more than it gets."""
    monkeypatch.setattr(instances, "SPARE_IDLE_SECONDS", 0)
    async with asyncio.timeout(TEST_SECONDS), http_broker(tmp_path) as site:
        monkeypatch.setattr(instances, "INSTANCES_MAX", 32)
        consumers = site.http._listener.context.service(ConsumerInstances)
        for number, name in enumerate([*["large"] * 10, *["other"] * 14, "a", "b", "c", "large"]):
            key = InstanceKey(f"group-{name}", f"consumer-{number}")
            await consumers.create(key, ConsumerConfig(), caller_of(name), lambda: True)
        holders = Counter(each.holder for each in consumers._instances.values())
        assert holders == {"User:large": 10, "User:other": 14, "User:a": 1, "User:b": 1, "User:c": 1}


def test_each_pot_has_an_attack() -> None:
    assert set(ATTACKS) == set(POTS)


@pytest.mark.parametrize("name", POTS)
@run_by(run_alone)
async def test_newcomers_find_room_in_a_pot_beside_greedy_holders(
    *, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = ATTACKS[name].bound
    async with asyncio.timeout(TEST_SECONDS), ATTACKS[name].open(tmp_path, monkeypatch) as take:
        taken, refused = await fill(take, "greedy", bound)
        assert bound * 3 // 4 - 1 <= taken < bound, f"anybody takes three quarters, and nobody all: {taken}"
        assert isinstance(refused, PotRefused)
        assert refused.code is POTS[name].code and refused.code.retriable
        assert POTS[name].setting in refused.why and "greedy" in refused.why
        assert (await fill(take, "small", 1))[0] == 1
        for each in range(3):
            assert (await fill(take, f"greedy-{each}", bound))[0] < bound // 8
        assert (await fill(take, "newcomer", 1))[0] == 1


def test_setting_that_bounds_something_is_a_pot_or_has_a_reason() -> None:
    bounds = {name for name in broker_rows() if ".max" in name or "pool.size" in name}
    pots = {each.setting for each in POTS.values()}
    assert bounds - pots == set(NO_POTS)


@run_by(run_alone)
async def test_jobs_of_a_newcomer_find_a_thread_and_take_turns(*, tmp_path: Path) -> None:
    async with asyncio.timeout(TEST_SECONDS), http_broker(tmp_path) as site:
        context, order = site.http._listener.context, list[str]()
        may_end = {name: threading.Semaphore(0) for name in ("greedy", "new", "third")}
        large = INLINE_BYTES + 1

        def work(name: str) -> None:
            order.append(name)
            assert may_end[name].acquire(timeout=TEST_SECONDS)

        def begin(name: str) -> asyncio.Task[None]:
            return asyncio.create_task(context.run_job_of(name, large, work, name))

        jobs = [begin("greedy") for _ in range(20)]
        await wait_until(lambda: context._turns.waiting == 19)
        await wait_until(lambda: order == ["greedy"])
        jobs.append(begin("new"))
        await wait_until(lambda: order == ["greedy", "new"])
        jobs += [begin("new"), begin("third")]
        await wait_until(lambda: context._turns.waiting == 21)
        for begun, ends in enumerate(("new", "greedy", "greedy"), 3):
            may_end[ends].release()
            await wait_until(lambda begun=begun: len(order) == begun)  # type: ignore[misc]
        assert order[2:] == ["new", "greedy", "third"]
        for each in may_end.values():
            each.release(len(jobs))
        await asyncio.gather(*jobs)
