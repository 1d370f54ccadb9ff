"""Clients flood two brokers while their quotas change all the time, and while brokers freeze.

I28: no broker takes more from a client than its quota allows, and none makes a client wait that has no quota. Each bug
that is put in is reported.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from typing import Any, cast

import pytest

from tests.scenario import run_by
from tests.sim.cluster.observer import BrokenRules, Findings, patched
from tests.sim.cluster.quota_checker import KEY, QuotaChecker, Use
from tests.sim.harness.clock import EPOCH_MS, SimClock
from tests.sim.harness.loop import SimLoop
from tests.sim.scenarios.three import PORT, SESSION, ThreeBrokers, run_scenario
from tests.sim.settings import SETTINGS
from tiered.access.client_quotas import ClientQuotas
from tiered.controller.requests import AlterClientQuotas, CreateTopic, QuotaAlteration
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.metadata.image import Image
from tiered.quotas.entity import QuotaEntity
from tiered.quotas.precedence import Limit, QuotaTable
from tiered.quotas.sensors import Sensors
from tiered.quotas.validation import PRODUCER_BYTE_RATE
from tiered.records.batch import encode_batch
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tiered_api.kafka.server.connection import ClientConnection

SECONDS = 25.0
USER = "ANONYMOUS"
CLIENT_IDS = ("a", "b")
HOSTS = ("10.0.0.1", "10.0.0.2")
"""Each client id has a connection from each host to each broker."""
LEADERS = (1, 2)
WINDOW_SECONDS = (SETTINGS.quota_window_num - 1) * SETTINGS.quota_window_size_seconds
"""Time of full windows: a client may use its quota of them at once."""
REQUEST_SECONDS, CHANGE_SECONDS, FREEZE_SECONDS = 0.05, 1.2, 3.0
VALUE_BYTES_MAX = 800
ENTITIES: tuple[QuotaEntity, ...] = (
    (("client-id", "a"), ("user", USER)),
    (("client-id", None), ("user", USER)),
    (("user", USER),),
    (("user", None),),
    (("client-id", "a"),),
    (("client-id", None),),
)
BOUNDS = (300.0, 1_000.0, 3_000.0, *4 * [None])
"""Bytes a second; None removes a quota."""


class QuotaRun:
    """One run: the clients, the changes and the faults, all drawn from the seed."""

    def __init__(self, three: ThreeBrokers, checker: QuotaChecker, findings: Findings, seconds: float) -> None:
        self._three = three
        self._findings = findings
        self._checker = checker
        self._rng = random.Random(f"{three.loop.seed}/quotas")
        self._end_ns = three.loop.now_ns + round(seconds * 1e9)

    @property
    def _is_over(self) -> bool:
        return bool(self._findings.found) or self._three.loop.now_ns >= self._end_ns

    async def change_quotas(self) -> None:
        """Sets a quota, or removes one, again and again."""
        while not self._is_over:
            entity, bound = self._rng.choice(ENTITIES), self._rng.choice(BOUNDS)
            node = self._rng.choice(list(self._three.brokers.values())).node
            await node.submit(AlterClientQuotas((QuotaAlteration(entity, ((KEY, bound),)),)))
            await asyncio.sleep(self._rng.expovariate(1 / CHANGE_SECONDS))

    async def freeze_brokers(self) -> None:
        """Freezes one broker at a time, so that it applies changes late."""
        while not self._is_over:
            await asyncio.sleep(FREEZE_SECONDS)
            one = self._rng.choice(self._three.others())
            self._three.loop.freeze(one.process)
            await asyncio.sleep(self._rng.random() * SESSION / 2)
            self._three.loop.resume(one.process)

    async def flood(self, client: KafkaClient, client_id: str, node: int) -> None:
        """Writes to one broker over one connection, one request after the other."""
        loop = self._three.loop
        while not self._is_over:
            await asyncio.sleep(self._rng.expovariate(1 / REQUEST_SECONDS))
            records = encode_batch([(EPOCH_MS, None, bytes(self._rng.randrange(100, VALUE_BYTES_MAX)), ())])
            part = PartitionProduceData(index=node - 1, records=records)
            request = ProduceRequest(
                acks=1, timeout_ms=500, topic_data=[TopicProduceData(name="t", partition_data=[part])]
            )
            sent_ns = loop.now_ns
            try:
                got = await client.send(request, ProduceResponse, node_id=node)
            except (Refused, Unavailable, Corrupt):
                continue
            use = Use(sent_ns, loop.now_ns, len(records))
            self._checker.check_reply(node, USER, client_id, use, got.throttle_time_ms)

    async def run(self) -> None:
        """Runs everything. Clients that wait at the end are cut off."""
        addresses = [Address(each.name, PORT) for each in self._three.brokers.values()]
        clients = [
            (KafkaClient(self._three.network.host(host), SimClock(self._three.loop), addresses, client_id=client_id,
                         timeout=600.0, retry_seconds=0.5), client_id)
            for host in HOSTS
            for client_id in CLIENT_IDS
        ]  # fmt: skip
        floods = [
            asyncio.create_task(self.flood(client, client_id, node))
            for client, client_id in clients
            for node in LEADERS
        ]
        await asyncio.gather(self.change_quotas(), self.freeze_brokers())
        for each in floods:
            each.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        self._checker.check_uses()
        for client, _ in clients:
            await client.close()


def run_with_changing_quotas(seed: int, seconds: float = SECONDS) -> QuotaChecker:
    """Runs one seed. Raises `BrokenRules` if a broker breaks I28."""
    findings = Findings(lambda event: None)
    window = SETTINGS.quota_window_num * SETTINGS.quota_window_size_seconds
    checker = QuotaChecker(
        findings.report, lambda: cast(SimLoop, asyncio.get_running_loop()).now_ns,
        window_seconds=window, connections=len(HOSTS) * len(CLIENT_IDS),
    )  # fmt: skip

    async def scenario(three: ThreeBrokers) -> None:
        await three.controller.node.submit(CreateTopic("t", assignments=[[node] for node in LEADERS]))
        await QuotaRun(three, checker, findings, seconds).run()

    with checker.watch():
        run_scenario(scenario, seed, tiered_broker_suspect_timeout_ms=round(SESSION * 1000))
    findings.raise_if_any()
    return checker


def test_i28_clients_get_the_quotas_that_their_brokers_have() -> None:
    checker = run_with_changing_quotas(2)
    assert checker.paused > 10 and checker.unlimited > 100 and checker.changes > 10


@run_by(run_scenario)
async def test_request_that_waits_for_followers_is_charged_once(three: ThreeBrokers) -> None:
    """The charge comes before the reply, and not again with it."""
    records = encode_batch([(EPOCH_MS, None, bytes(5_000), ())])
    leader = three.controller
    order = [leader.node_id, *(each.node_id for each in three.others())]
    await leader.node.submit(CreateTopic("t", assignments=[order]))
    await leader.node.submit(AlterClientQuotas((QuotaAlteration((("user", USER),), ((KEY, 1.0),)),)))
    client = KafkaClient(three.network.host(HOSTS[0]), SimClock(three.loop), [Address(leader.name, PORT)], timeout=30.0)
    part = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(None, -1, 5_000, [TopicProduceData(name="t", partition_data=[part])])
    got = await client.send(request, ProduceResponse, node_id=leader.node_id)
    assert got.responses[0].partition_responses[0].error_code == 0
    assert 5_000 < got.throttle_time_ms / 1000 + WINDOW_SECONDS < 5_500, "a byte a second, but for a first window"
    await client.close()


def read_on(original: Any) -> Any:
    """A connection is read during its pause."""
    return lambda connection, seconds: None


def hold_nothing(original: Any) -> Any:
    """A write that arrives during the pause of its client does not wait."""

    def find_pause(quotas: ClientQuotas, *limits: Limit | None) -> int:
        found: int = original(quotas, *(each for each in limits if each is None or each.key != PRODUCER_BYTE_RATE))
        return found

    return find_pause


def forget_use(original: Any) -> Any:
    """Each request begins a new window."""
    return lambda sensors, key, bound, now_ms: sensors._make(bound, now_ms)


def keep_old_quotas(original: Any) -> Any:
    """A removed quota stays in force."""

    def apply_image(quotas: ClientQuotas, image: Image) -> None:
        if len(image.quotas) >= len(quotas._quotas):
            original(quotas, image)

    return apply_image


def reverse_levels(original: Any) -> Any:
    """The quota of a client id wins over that of a user."""

    def find_limit(table: QuotaTable, key: str, user: str, client_id: str) -> Limit | None:
        quotas = table._by_key.get(key, {})
        for entity in ((("client-id", client_id),), (("client-id", None),)):
            if entity in quotas:
                return Limit(quotas[entity], "", client_id, key)
        found: Limit | None = original(table, key, user, client_id)
        return found

    return find_limit


Patch = tuple[type[Any], str, Any]
BUGS: list[tuple[list[Patch], int, float]] = [
    ([(ClientConnection, "mute", read_on), (ClientQuotas, "find_pause", hold_nothing)], 1, 6.0),
    ([(Sensors, "find", forget_use)], 1, 6.0),
    ([(ClientQuotas, "apply_image", keep_old_quotas)], 3, SECONDS),
    ([(QuotaTable, "find_limit", reverse_levels)], 2, SECONDS),
]
"""Each with a seed and the seconds that find it. No run finds one part of the first bug: clients keep connections."""


@pytest.mark.parametrize("bug", BUGS, ids=[patches[0][2].__name__ for patches, _, _ in BUGS])
def test_i28_quotas_that_are_not_kept_are_reported(bug: tuple[list[Patch], int, float]) -> None:
    patches, seed, seconds = bug
    with ExitStack() as stack:
        for owner, name, make in patches:
            stack.enter_context(patched(owner, name, make))
        with pytest.raises(BrokenRules) as broken:
            run_with_changing_quotas(seed, seconds)
    assert set(broken.value.rules) == {"I28"}
