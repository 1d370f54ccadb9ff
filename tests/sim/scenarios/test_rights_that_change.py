"""Two callers write, read and look up topics while their rights change all the time, and while brokers freeze.

I29: no broker serves or refuses a request against all ACLs that it had meanwhile, and no refused record is in a log.
Each bug that is put in is reported.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from tests.sim.cluster.observer import BrokenRules, Findings, patched
from tests.sim.cluster.rights_checker import AskedRight, RightsChecker
from tests.sim.harness.clock import EPOCH_MS, SimClock
from tests.sim.harness.loop import SimLoop
from tests.sim.rig.broker_rig import read_values
from tests.sim.scenarios.three import PORT, SESSION, ThreeBrokers, run_scenario
from tiered.access.authorization import Authorization
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import AclChoice, CreateAcls, CreateTopic, DeleteAcls
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.metadata.changes import AclAdded
from tiered.metadata.image import Image
from tiered.records.batch import encode_batch
from tiered.security.acls import Acl, Operation
from tiered.security.principal import ANONYMOUS, Caller
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.context.caller_caches import CallerCaches

A = TypeVar("A", bound=Message)

SECONDS = 5.0
TOPICS = ("ta", "tb")
HOSTS = ("10.0.0.1", "10.0.0.2")
"""The callers: both are anonymous."""
REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
REQUEST_SECONDS, CHANGE_SECONDS, FREEZE_SECONDS = 0.02, 0.08, 0.6
RULES = [
    AclAdded("TOPIC", pattern, name, user, host, operation, permission)
    for pattern, name in (("LITERAL", "ta"), ("LITERAL", "tb"), ("PREFIXED", "t"), ("LITERAL", "*"))
    for user in ("User:ANONYMOUS", "User:*")
    for host in (*HOSTS, "*")
    for operation in ("READ", "WRITE", "ALL")
    for permission in ("ALLOW", "ALLOW", "DENY")
]
"""Rules that come and go. More of them allow than deny."""


class RightsRun:
    """One run: the callers, the changes and the faults, all drawn from the seed."""

    def __init__(self, three: ThreeBrokers, checker: RightsChecker, findings: Findings) -> None:
        self.refused_values: set[bytes] = set()
        self._three = three
        self._findings = findings
        self._checker = checker
        self._rng = random.Random(f"{three.loop.seed}/rights")
        self._end_ns = three.loop.now_ns + round(SECONDS * 1e9)
        self._values = 0

    @property
    def _is_over(self) -> bool:
        return bool(self._findings.found) or self._three.loop.now_ns >= self._end_ns

    def _find_leader(self, topic: str) -> int:
        return (
            max((each.node.image for each in self._three.brokers.values()), key=lambda image: image.slot)
            .topics[topic]
            .partitions[0]
            .leader
        )

    async def change_rights(self) -> None:
        """Adds a rule, or removes one, again and again."""
        held: list[AclAdded] = []
        while not self._is_over:
            await asyncio.sleep(self._rng.expovariate(1 / CHANGE_SECONDS))
            node = self._rng.choice(list(self._three.brokers.values())).node
            if held and self._rng.random() < len(held) / 6:
                rule = held.pop(self._rng.randrange(len(held)))
                choice = AclChoice(
                    rule.resource_type, rule.pattern_type, rule.resource_name, rule.principal, rule.host,
                    rule.operation, rule.permission,
                )  # fmt: skip
                await node.submit(DeleteAcls((choice,)))
            else:
                held.append(self._rng.choice(RULES))
                await node.submit(CreateAcls((held[-1],)))

    async def freeze_brokers(self) -> None:
        """Freezes one broker at a time, so that it applies changes late."""
        while not self._is_over:
            await asyncio.sleep(FREEZE_SECONDS)
            one = self._rng.choice(self._three.others())
            self._three.loop.freeze(one.process)
            await asyncio.sleep(self._rng.random() * SESSION / 2)
            self._three.loop.resume(one.process)

    async def call(self, host: str) -> None:
        """Sends requests of one caller: two at a time, over one connection to each broker."""
        loop = self._three.loop
        client = KafkaClient(
            self._three.network.host(host), SimClock(loop), [Address(each.name, PORT) for each in
            self._three.brokers.values()], timeout=1.0, retry_seconds=0.5,
        )  # fmt: skip
        caller = Caller(ANONYMOUS, host)
        while not self._is_over:
            await asyncio.sleep(self._rng.expovariate(1 / REQUEST_SECONDS))
            requests = (self._produce, self._produce, self._fetch, self._fetch, self._list_offsets, self._look_up)
            chosen = self._rng.choices(requests, k=2)
            topic = self._rng.choice(TOPICS)
            await asyncio.gather(*(each(client, caller, topic) for each in chosen))
        await client.close()

    async def _send(
        self, client: KafkaClient, asked: AskedRight, request: Message, response: type[A], code: Callable[[A], int]
    ) -> A | None:
        """Sends a request to the leader of the topic, and judges its reply. Returns it if it is an answer."""
        node, sent_ns = self._find_leader(asked.topic), self._three.loop.now_ns
        if node < 0:
            return None
        try:
            got = await client.send(request, response, node_id=node)
        except REQUEST_ERRORS:
            return None
        number = code(got)
        if number in (0, Code.TOPIC_AUTHORIZATION_FAILED.number):
            self._checker.check_reply(node, asked, is_served=number == 0, sent_ns=sent_ns)
            return got
        return None

    async def _produce(self, client: KafkaClient, caller: Caller, topic: str) -> None:
        self._values += 1
        value = b"%d" % self._values
        records = encode_batch([(EPOCH_MS, None, value, ())])
        part = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
        request = ProduceRequest(acks=self._rng.choice((1, -1)), timeout_ms=500, topic_data=[part])
        asked = AskedRight(caller, Operation.WRITE, topic)
        got = await self._send(
            client, asked, request, ProduceResponse, lambda each: each.responses[0].partition_responses[0].error_code
        )
        if got is not None and got.responses[0].partition_responses[0].error_code:
            self.refused_values.add(value)

    async def _fetch(self, client: KafkaClient, caller: Caller, topic: str) -> None:
        part = FetchPartition(0, fetch_offset=0, partition_max_bytes=1000)
        request = FetchRequest(max_wait_ms=50, min_bytes=1, topics=[FetchTopic(topic, "", [part])])
        asked = AskedRight(caller, Operation.READ, topic)
        await self._send(
            client, asked, request, FetchResponse,
            lambda each: each.error_code or each.responses[0].partitions[0].error_code,
        )  # fmt: skip

    async def _list_offsets(self, client: KafkaClient, caller: Caller, topic: str) -> None:
        request = ListOffsetsRequest(-1, topics=[ListOffsetsTopic(topic, [ListOffsetsPartition(0, timestamp=-1)])])
        asked = AskedRight(caller, Operation.DESCRIBE, topic)
        await self._send(
            client, asked, request, ListOffsetsResponse, lambda each: each.topics[0].partitions[0].error_code
        )

    async def _look_up(self, client: KafkaClient, caller: Caller, topic: str) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        asked = AskedRight(caller, Operation.DESCRIBE, topic)
        await self._send(client, asked, request, MetadataResponse, lambda each: each.topics[0].error_code)

    async def find_refused_records(self) -> set[bytes]:
        """Returns values that were refused and are in a log."""
        kept: set[bytes] = set()
        for topic in TOPICS:
            leader = self._three.brokers[self._find_leader(topic)].node.leader_replica(topic, 0)
            kept.update(await read_values(leader, 0))
        return kept & self.refused_values


def run_with_changing_rights(seed: int) -> RightsChecker:
    """Runs one seed. Raises `BrokenRules` if a broker breaks I29."""
    findings = Findings(lambda event: None)
    checker = RightsChecker(findings.report, lambda: cast(SimLoop, asyncio.get_running_loop()).now_ns)

    async def scenario(three: ThreeBrokers) -> None:
        for topic, replicas in zip(TOPICS, (1, 3), strict=True):
            await three.controller.node.submit(CreateTopic(topic, 1, replicas))
        run = RightsRun(three, checker, findings)
        await asyncio.gather(run.change_rights(), run.freeze_brokers(), *map(run.call, HOSTS))
        if kept := await run.find_refused_records():
            findings.report("I29", f"{len(kept)} records are in a log that a broker refused: {sorted(kept)[:3]}")

    with checker.watch():
        run_scenario(scenario, seed, authorizer_class_name=STANDARD_AUTHORIZER)
    findings.raise_if_any()
    return checker


def test_i29_brokers_decide_by_the_rights_that_they_have() -> None:
    checker = run_with_changing_rights(1)
    assert checker.served > 100 and checker.refused > 100 and checker.changes > 50


def keep_old_decisions(original: Any) -> Any:
    """After a change a caller keeps what it was allowed before."""
    return lambda caches: None


def share_caches(original: Any) -> Any:
    """All callers may do what one caller may do."""
    return lambda caches, caller: original(caches, Caller(ANONYMOUS, ""))


def keep_old_rules(original: Any) -> Any:
    """A removal of ACLs is not seen."""

    def apply_image(authorization: Authorization, image: Image) -> None:
        if len(image.acls) > len(authorization._acls):
            original(authorization, image)

    return apply_image


def deny_nothing(original: Any) -> Any:
    """An ACL that denies has no effect."""
    return lambda acl: 0


BUGS = [
    (CallerCaches, "clear", keep_old_decisions),
    (CallerCaches, "find", share_caches),
    (Authorization, "apply_image", keep_old_rules),
    (Acl, "denied_mask", deny_nothing),
]


@pytest.mark.parametrize("bug", BUGS, ids=[name for _, name, _ in BUGS])
def test_i29_rights_that_are_not_obeyed_are_reported(bug: tuple[type[Any], str, Any]) -> None:
    with patched(*bug), pytest.raises(BrokenRules) as broken:
        run_with_changing_rights(1)
    assert set(broken.value.rules) == {"I29"}
