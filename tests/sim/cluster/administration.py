"""Administration over the wire: the topics of a run are made, and others come, grow, change and go; old records are
deleted, preferred leaders elected. What is answered is held against the metadata log (`expected`)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext

from tests.sim.cluster.expected import Expected
from tests.sim.cluster.observer import Finding, Findings
from tests.sim.cluster.options import Options, TopicShape
from tests.sim.cluster.world import Host
from tests.sim.harness.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient, code_from_number
from tiered_api.kafka.client.leader_routing import LATEST, list_offsets_at
from tiered_api.kafka.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tiered_api.kafka.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tiered_api.kafka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tiered_api.kafka.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tiered_api.kafka.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tiered_api.kafka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

CANNOT = (Refused, Unavailable, Corrupt)
TOPIC = 2
SET = 0
PREFERRED = 0
MORE_CHANCE = 0.4
NAMES_MAX = 3
AGAIN, AT_ONCE, LATE = 0.5, 0.4, 0.6
"""How often a new topic gets the name of one that was deleted, how often one is made anew right after that, and how
often its leader acts late on both."""
LATE_SECONDS = (0.1, 1.0, 4.0)
PARTITIONS_MAX = 3


class Administration:
    """Works until `working` is unset. `names` are the topics that may be there besides those of the run."""

    def __init__(
        self,
        client: KafkaClient,
        loop: SimLoop,
        options: Options,
        tell: Callable[[str], None],
        expected: Expected,
        findings: Findings,
        leader_of: Callable[[str], Host | None] = lambda name: None,
    ) -> None:
        """`leader_of` says which machine leads a topic that the administration made."""
        self.working = True
        self.expected = expected
        self.counts: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self._client = client
        self._options = options
        self._tell = tell
        self._findings = findings
        self._draw = random.Random(f"{loop.seed}/administration")
        self._more = random.Random(f"{loop.seed}/administration-more")
        self._leader_of = leader_of
        self._names = random.Random(f"{loop.seed}/administration-names")
        self._made = 0
        self._free: list[str] = []
        """Names of topics that are surely deleted."""

    async def make(self, shape: TopicShape) -> Code:
        """Creates a topic; the answer's code. Raises what a client raises."""
        configs = self._options.topic_configs | shape.configs
        topic = CreatableTopic(
            name=shape.name,
            num_partitions=shape.partitions,
            replication_factor=shape.replicas,
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)

        async def ask() -> Code:
            got = await self._client.send_to_controller(request, CreateTopicsResponse)
            return code_from_number(got.topics[0].error_code)

        return await self._noted(ask(), lambda code: self.expected.created(shape.name, shape.partitions, configs, code))

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(self._draw.expovariate(0.5))
            await self._do(self._draw.choice((self._create, self._delete, self._grow, self._alter)))
            if self._more.random() < MORE_CHANCE:
                await self._do(self._more.choice((self._elect, self._cut) if self._options.cuts else (self._elect,)))
            if self._names.random() < AT_ONCE:
                await self._do(self._replace)
        await self._client.close()

    async def _do(self, verb: Callable[[], Awaitable[Code | None]]) -> None:
        called = verb.__name__
        try:
            code = await verb()
        except CANNOT as error:
            self._tell(f"admin {called} {error}")
            return
        if code is not None:
            self._tell(f"admin {called} {code.name}")
            name = f"{called[1:]}_{code.name}"
            self.counts[name] = self.counts.get(name, 0) + 1

    async def _noted(self, asking: Awaitable[Code], told: Callable[[Code | None], Iterable[Finding]]) -> Code:
        """The answer, after it was held against what must be; None stands for no answer."""
        code: Code | None = None
        try:
            code = await asking
            return code
        finally:
            for finding in told(code):
                self._findings.red(*finding)

    async def _create(self) -> Code | None:
        if len(self.names) >= NAMES_MAX:
            return None
        replicas = self._draw.randint(1, self._options.brokers)
        min_isr = self._draw.randint(1, replicas)
        if self._free and self._names.random() < AGAIN:
            return await self._create_as(self._free.pop(self._names.randrange(len(self._free))), replicas, min_isr)
        self._made += 1
        return await self._create_as(f"x{self._made}", replicas, min_isr)

    async def _create_as(self, name: str, replicas: int, min_isr: int) -> Code:
        self.names[name] = 1
        return await self.make(TopicShape(name, 1, replicas, min_isr, "none"))

    async def _delete(self) -> Code | None:
        name = self._some()
        return None if name is None or self._draw.random() < 0.5 else await self._delete_one(name)

    async def _replace(self) -> Code | None:
        """A topic is deleted, and another one made under its name at once."""
        free = sorted(self.names) or self._free
        if not free:
            return None
        name = self._names.choice(free)
        leader = self._leader_of(name) if self._names.random() < LATE else None
        async with leader.acts_late() if leader is not None else nullcontext():
            if name in self.names:
                await self._delete_one(name)
            if name not in self._free:
                return None
            self._free.remove(name)
            replicas = self._names.randint(1, self._options.brokers)
            code = await self._create_as(name, replicas, self._names.randint(1, replicas))
            if leader is not None:
                await asyncio.sleep(self._names.choice(LATE_SECONDS))
        return code

    async def _delete_one(self, name: str) -> Code:
        del self.names[name]
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=5_000)

        async def ask() -> Code:
            got = await self._client.send_to_controller(request, DeleteTopicsResponse)
            return code_from_number(got.responses[0].error_code)

        code = await self._noted(ask(), lambda code: self.expected.deleted(name, code))
        if code is Code.NONE and self.expected.is_free(name):
            self._free.append(name)
        return code

    async def _grow(self) -> Code | None:
        name = self._some()
        if name is None or self.names[name] >= PARTITIONS_MAX:
            return None
        self.names[name] += 1
        count = self.names[name]
        request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=count)], timeout_ms=5_000)

        async def ask() -> Code:
            got = await self._client.send_to_controller(request, CreatePartitionsResponse)
            return code_from_number(got.results[0].error_code)

        return await self._noted(ask(), lambda code: self.expected.grown(name, count, code))

    async def _alter(self) -> Code | None:
        name = self._some()
        return (
            None if name is None else await self.configure(name, {"segment.bytes": self._draw.choice(("1024", "2048"))})
        )

    async def configure(self, name: str, configs: Mapping[str, str]) -> Code:
        """Changes settings of a topic."""
        each = [AlterableConfig(name=key, config_operation=SET, value=value) for key, value in configs.items()]
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=each)
        request = IncrementalAlterConfigsRequest(resources=[resource])

        async def ask() -> Code:
            got = await self._client.send_to_controller(request, IncrementalAlterConfigsResponse)
            return code_from_number(got.responses[0].error_code)

        return await self._noted(ask(), lambda code: self.expected.altered(name, configs, code))

    async def _elect(self) -> Code:
        """Preferred leaders, of all partitions or of one topic."""
        topics = [shape.name for shape in self._options.topics]
        some = None if self._more.random() < 0.5 else [TopicPartitions(self._more.choice(topics), [0])]
        request = ElectLeadersRequest(PREFERRED, some, 5_000)
        got = await self._client.send_to_controller(request, ElectLeadersResponse)
        codes = [each.error_code for topic in got.replica_election_results for each in topic.partition_result]
        return code_from_number(got.error_code or next(iter(codes), 0))

    async def _cut(self) -> Code:
        """DeleteRecords of some partition of the run, anywhere up to its end."""
        shape = self._more.choice(self._options.topics)
        where = TopicPartition(shape.name, self._more.randrange(shape.partitions))
        end = (await list_offsets_at(self._client, [where], LATEST))[where]
        before = self._more.randint(0, end)
        self.expected.asks_to_delete(where, before)
        part = DeleteRecordsPartition(partition_index=where.partition, offset=before)
        request = DeleteRecordsRequest([DeleteRecordsTopic(where.topic, [part])], 5_000)
        shares, _ = await self._client.group_by_leader([where])
        for node in shares:
            answer = (await self._client.send(request, DeleteRecordsResponse, node_id=node)).topics[0].partitions[0]
            if not answer.error_code:
                for finding in self.expected.records_deleted(where, answer.low_watermark):
                    self._findings.red(*finding)
                return Code.NONE
            self._client.forget_leaders([where])
            return code_from_number(answer.error_code)
        return Code.LEADER_NOT_AVAILABLE

    def _some(self) -> str | None:
        return self._draw.choice(sorted(self.names)) if self.names else None
