"""Administration over the wire: creates the topics of a run, and creates, grows, changes and deletes others; deletes
old records and elects preferred leaders. Each reply is compared with the metadata log (`expected`)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext

from tests.sim.cluster.expected import ExpectedTopics
from tests.sim.cluster.observer import Finding, Findings
from tests.sim.cluster.options import ClusterOptions, TopicShape
from tests.sim.cluster.world import SimHost
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

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
TOPIC = 2
SET = 0
PREFERRED = 0
ELECT_OR_DELETE_CHANCE = 0.4
NAMES_MAX = 3
REUSE_NAME_CHANCE, RECREATE_CHANCE, ACTS_LATE_CHANCE = 0.5, 0.4, 0.6
"""Chances that a new topic gets the name of a deleted one, that a topic is recreated right after its deletion, and that
its leader acts late on both."""
LATE_SECONDS = (0.1, 1.0, 4.0)
PARTITIONS_MAX = 3


class Administration:
    """Sends requests until `working` is unset. `names` are the topics that may exist besides those of the run."""

    def __init__(
        self,
        client: KafkaClient,
        loop: SimLoop,
        options: ClusterOptions,
        log_event: Callable[[str], None],
        expected: ExpectedTopics,
        findings: Findings,
        leader_of: Callable[[str], SimHost | None] = lambda name: None,
    ) -> None:
        """`leader_of` returns the machine that leads a topic of the administration."""
        self.working = True
        self.expected = expected
        self.counts: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self._client = client
        self._options = options
        self._log_event = log_event
        self._findings = findings
        self._rng = random.Random(f"{loop.seed}/administration")
        self._more_rng = random.Random(f"{loop.seed}/administration-more")
        self._leader_of = leader_of
        self._names_rng = random.Random(f"{loop.seed}/administration-names")
        self._topics_created = 0
        self._free_names: list[str] = []
        """Names of topics that are certainly deleted."""

    async def create_topic(self, shape: TopicShape) -> Code:
        """Creates a topic and returns the error code of the reply. Raises what a client raises."""
        configs = self._options.topic_configs | shape.configs
        topic = CreatableTopic(
            name=shape.name,
            num_partitions=shape.partitions,
            replication_factor=shape.replicas,
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)

        async def send() -> Code:
            got = await self._client.send_to_controller(request, CreateTopicsResponse)
            return code_from_number(got.topics[0].error_code)

        return await self._check_reply(
            send(), lambda code: self.expected.on_created(shape.name, shape.partitions, configs, code)
        )

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(self._rng.expovariate(0.5))
            await self._perform(
                self._rng.choice((self._create, self._delete, self._add_partitions, self._alter_configs))
            )
            if self._more_rng.random() < ELECT_OR_DELETE_CHANCE:
                await self._perform(
                    self._more_rng.choice(
                        (self._elect, self._delete_records) if self._options.admin_deletes else (self._elect,)
                    )
                )
            if self._names_rng.random() < RECREATE_CHANCE:
                await self._perform(self._recreate)
        await self.close()

    async def close(self) -> None:
        """Ends its connections."""
        await self._client.close()

    async def _perform(self, operation: Callable[[], Awaitable[Code | None]]) -> None:
        name_of_operation = operation.__name__
        try:
            code = await operation()
        except REQUEST_ERRORS as error:
            self._log_event(f"admin {name_of_operation} {error}")
            return
        if code is not None:
            self._log_event(f"admin {name_of_operation} {code.name}")
            name = f"{name_of_operation[1:]}_{code.name}"
            self.counts[name] = self.counts.get(name, 0) + 1

    async def _check_reply(self, request: Awaitable[Code], check: Callable[[Code | None], Iterable[Finding]]) -> Code:
        """Returns the reply after its check against the expected state; None means no reply."""
        code: Code | None = None
        try:
            code = await request
            return code
        finally:
            for finding in check(code):
                self._findings.report(*finding)

    async def _create(self) -> Code | None:
        if len(self.names) >= NAMES_MAX:
            return None
        replicas = self._rng.randint(1, self._options.brokers)
        min_isr = self._rng.randint(1, replicas)
        if self._free_names and self._names_rng.random() < REUSE_NAME_CHANCE:
            return await self._create_as(
                self._free_names.pop(self._names_rng.randrange(len(self._free_names))), replicas, min_isr
            )
        self._topics_created += 1
        return await self._create_as(f"x{self._topics_created}", replicas, min_isr)

    async def _create_as(self, name: str, replicas: int, min_isr: int) -> Code:
        self.names[name] = 1
        return await self.create_topic(TopicShape(name, 1, replicas, min_isr, "none"))

    async def _delete(self) -> Code | None:
        name = self._pick_topic()
        return None if name is None or self._rng.random() < 0.5 else await self._delete_one(name)

    async def _recreate(self) -> Code | None:
        """Deletes a topic and creates another one under its name at once."""
        free = sorted(self.names) or self._free_names
        if not free:
            return None
        name = self._names_rng.choice(free)
        leader = self._leader_of(name) if self._names_rng.random() < ACTS_LATE_CHANCE else None
        async with leader.acts_late() if leader is not None else nullcontext():
            if name in self.names:
                await self._delete_one(name)
            if name not in self._free_names:
                return None
            self._free_names.remove(name)
            replicas = self._names_rng.randint(1, self._options.brokers)
            code = await self._create_as(name, replicas, self._names_rng.randint(1, replicas))
            if leader is not None:
                await asyncio.sleep(self._names_rng.choice(LATE_SECONDS))
        return code

    async def _delete_one(self, name: str) -> Code:
        del self.names[name]
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=5_000)

        async def send() -> Code:
            got = await self._client.send_to_controller(request, DeleteTopicsResponse)
            return code_from_number(got.responses[0].error_code)

        code = await self._check_reply(send(), lambda code: self.expected.on_deleted(name, code))
        if code is Code.NONE and self.expected.is_free(name):
            self._free_names.append(name)
        return code

    async def _add_partitions(self) -> Code | None:
        name = self._pick_topic()
        if name is None or self.names[name] >= PARTITIONS_MAX:
            return None
        self.names[name] += 1
        count = self.names[name]
        request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=count)], timeout_ms=5_000)

        async def send() -> Code:
            got = await self._client.send_to_controller(request, CreatePartitionsResponse)
            return code_from_number(got.results[0].error_code)

        return await self._check_reply(send(), lambda code: self.expected.on_partitions_added(name, count, code))

    async def _alter_configs(self) -> Code | None:
        name = self._pick_topic()
        return (
            None
            if name is None
            else await self.alter_configs(name, {"internal.segment.bytes": self._rng.choice(("1024", "2048"))})
        )

    async def alter_configs(self, name: str, configs: Mapping[str, str]) -> Code:
        """Changes settings of a topic."""
        each = [AlterableConfig(name=key, config_operation=SET, value=value) for key, value in configs.items()]
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=each)
        request = IncrementalAlterConfigsRequest(resources=[resource])

        async def send() -> Code:
            got = await self._client.send_to_controller(request, IncrementalAlterConfigsResponse)
            return code_from_number(got.responses[0].error_code)

        return await self._check_reply(send(), lambda code: self.expected.on_configs_altered(name, configs, code))

    async def _elect(self) -> Code:
        """Elects preferred leaders, of all partitions or of one topic."""
        topics = [shape.name for shape in self._options.topics]
        some = None if self._more_rng.random() < 0.5 else [TopicPartitions(self._more_rng.choice(topics), [0])]
        request = ElectLeadersRequest(PREFERRED, some, 5_000)
        got = await self._client.send_to_controller(request, ElectLeadersResponse)
        codes = [each.error_code for topic in got.replica_election_results for each in topic.partition_result]
        return code_from_number(got.error_code or next(iter(codes), 0))

    async def _delete_records(self) -> Code:
        """Deletes records of a random partition of the run, below a random offset up to its end."""
        shape = self._more_rng.choice(self._options.topics)
        tp = TopicPartition(shape.name, self._more_rng.randrange(shape.partitions))
        end = (await list_offsets_at(self._client, [tp], LATEST))[tp]
        before = self._more_rng.randint(0, end)
        self.expected.on_delete_requested(tp, before)
        part = DeleteRecordsPartition(partition_index=tp.partition, offset=before)
        request = DeleteRecordsRequest([DeleteRecordsTopic(tp.topic, [part])], 5_000)
        shares, _ = await self._client.group_by_leader([tp])
        for node in shares:
            answer = (await self._client.send(request, DeleteRecordsResponse, node_id=node)).topics[0].partitions[0]
            if not answer.error_code:
                for finding in self.expected.on_records_deleted(tp, answer.low_watermark):
                    self._findings.report(*finding)
                return Code.NONE
            self._client.forget_leaders([tp])
            return code_from_number(answer.error_code)
        return Code.LEADER_NOT_AVAILABLE

    def _pick_topic(self) -> str | None:
        return self._rng.choice(sorted(self.names)) if self.names else None
