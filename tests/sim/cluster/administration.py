"""Administration over the wire: the topics of a run are made, and others come, grow, change and go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

from tests.sim.cluster.options import Options, TopicShape
from tests.sim.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered_api.kafka.client import Client, code_of
from tiered_api.kafka.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tiered_api.kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tiered_api.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tiered_api.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

CANNOT = (Refused, Unavailable, Corrupt)
TOPIC = 2
SET = 0
NAMES_MAX = 3
PARTITIONS_MAX = 3


class Administration:
    """Works until `working` is unset. `names` are the topics that may be there besides those of the run."""

    def __init__(self, client: Client, loop: SimLoop, options: Options, tell: Callable[[str], None]) -> None:
        self.working = True
        self.counts: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self._client = client
        self._options = options
        self._tell = tell
        self._draw = random.Random(f"{loop.seed}/administration")
        self._made = 0

    async def make(self, shape: TopicShape) -> Code:
        """Creates a topic; the answer's code. Raises what a client raises."""
        configs = self._options.topic_configs | {"min.insync.replicas": str(shape.min_isr), "flush": shape.flush}
        topic = CreatableTopic(
            name=shape.name,
            num_partitions=shape.partitions,
            replication_factor=shape.replicas,
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
        got = await self._client.ask_controller(request, CreateTopicsResponse)
        return code_of(got.topics[0].error_code)

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(self._draw.expovariate(0.5))
            verb = self._draw.choice((self._create, self._delete, self._grow, self._alter))
            try:
                code = await verb()
            except CANNOT as error:
                self._tell(f"admin {verb.__name__} {error}")
                continue
            if code is not None:
                name = f"{verb.__name__[1:]}_{code.name}"
                self.counts[name] = self.counts.get(name, 0) + 1
        await self._client.close()

    async def _create(self) -> Code | None:
        if len(self.names) >= NAMES_MAX:
            return None
        self._made += 1
        replicas = self._draw.randint(1, self._options.brokers)
        shape = TopicShape(f"x{self._made}", 1, replicas, self._draw.randint(1, replicas), "none")
        self.names[shape.name] = 1
        return await self.make(shape)

    async def _delete(self) -> Code | None:
        name = self._some()
        if name is None or self._draw.random() < 0.5:
            return None
        del self.names[name]
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=5_000)
        got = await self._client.ask_controller(request, DeleteTopicsResponse)
        return code_of(got.responses[0].error_code)

    async def _grow(self) -> Code | None:
        name = self._some()
        if name is None or self.names[name] >= PARTITIONS_MAX:
            return None
        self.names[name] += 1
        topic = CreatePartitionsTopic(name=name, count=self.names[name])
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=5_000)
        got = await self._client.ask_controller(request, CreatePartitionsResponse)
        return code_of(got.results[0].error_code)

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
        got = await self._client.ask_controller(request, IncrementalAlterConfigsResponse)
        return code_of(got.responses[0].error_code)

    def _some(self) -> str | None:
        return self._draw.choice(sorted(self.names)) if self.names else None
