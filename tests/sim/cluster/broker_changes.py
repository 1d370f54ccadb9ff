"""Brokers that join and leave during a run: a fourth machine joins, and one broker is decommissioned as by `tiered
cluster decommission`: cordoned, emptied, and stopped for good."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tests.sim.cluster.moves import Reassignments, Replicas
from tests.sim.cluster.options import ClusterOptions
from tests.sim.cluster.world import SimHost
from tests.sim.harness.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.metadata.image import Image
from tiered_api.kafka.client.client import KafkaClient, code_from_number
from tiered_api.kafka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
BROKER, SET = 4, 0
JOIN_SECONDS = (1.0, 8.0)
RETRY_SECONDS = 0.5


class BrokerChanges:
    """Lets the last machine of `hosts` join, and some broker leave if the options say so. `image` is that of the
    metadata log. Gives up when `working` is unset."""

    def __init__(
        self,
        client: KafkaClient,
        loop: SimLoop,
        options: ClusterOptions,
        log_event: Callable[[str], None],
        reassignments: Reassignments,
        hosts: dict[int, SimHost],
        image: Callable[[], Image],
    ) -> None:
        self.working = True
        self.counts = {"joined": 0, "emptied": 0, "left": 0}
        self._client = client
        self._options = options
        self._log_event = log_event
        self._reassignments = reassignments
        self._hosts = hosts
        self._image = image
        self._rng = random.Random(f"{loop.seed}/broker-changes")

    async def work(self) -> None:
        await asyncio.sleep(self._rng.uniform(*JOIN_SECONDS))
        last = max(host.machine_id for host in self._hosts.values())
        joining = [host for host in self._hosts.values() if host.machine_id == last]
        for host in joining:
            self._log_event(f"{host.name} joins")
            host.is_absent = False
            host.power_on()
        while self.working and not all(self._is_live(host.node_id) for host in joining):
            await asyncio.sleep(RETRY_SECONDS)
        self.counts["joined"] += sum(self._is_live(host.node_id) for host in joining)
        if self._options.leaves:
            await asyncio.sleep(self._rng.uniform(*JOIN_SECONDS))
            await self._decommission(self._hosts[self._rng.choice(sorted(self._hosts))])
        await self._client.close()

    def _is_live(self, node_id: int) -> bool:
        known = self._image().brokers.get(node_id)
        return known is not None and known.live

    async def _decommission(self, host: SimHost) -> None:
        self._log_event(f"{host.name} is to leave")
        cordoned = False
        while self.working:
            cordoned = cordoned or await self._cordon(host.node_id) is Code.NONE
            held = self._assignments_of(host.node_id)
            if cordoned and not held and host.idle:
                self.counts["emptied"] += 1
                host.is_absent = True
                self._log_event(f"{host.name} is empty, and stops for good")
                await host.stop()
                self.counts["left"] += 1
                return
            moves: dict[TopicPartition, Replicas | None] = {
                tp: target for tp, replicas in held.items() if (target := self._replace_broker(host.node_id, replicas))
            }
            if cordoned and moves:
                await self._reassignments.submit(self._client, moves)
            await asyncio.sleep(RETRY_SECONDS)

    async def _cordon(self, node_id: int) -> Code | None:
        each = AlterableConfig(name="cordoned.log.dirs", config_operation=SET, value="*")
        resource = AlterConfigsResource(resource_type=BROKER, resource_name=str(node_id), configs=[each])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        try:
            got = await self._client.send_to_controller(request, IncrementalAlterConfigsResponse)
        except REQUEST_ERRORS as error:
            self._log_event(f"b{node_id} is not cordoned: {error}")
            return None
        return code_from_number(got.responses[0].error_code)

    def _assignments_of(self, node_id: int) -> dict[TopicPartition, Replicas]:
        """Returns the partitions with a replica on the broker, and the brokers that are to have the replicas in the
        end."""
        return {
            TopicPartition(topic.name, number): each.target_replicas
            for topic in self._image().topics.values()
            for number, each in enumerate(topic.partitions)
            if node_id in each.replicas
        }

    def _replace_broker(self, node_id: int, replicas: Replicas) -> Replicas:
        """Replaces the broker by one of another machine, or removes it if there is none; None if that leaves no
        replica."""
        if node_id not in replicas:
            return ()
        taken = {self._hosts[each].machine_id for each in replicas}
        others = [
            each for each in sorted(self._hosts) if self._is_live(each) and self._hosts[each].machine_id not in taken
        ]
        if others:
            return tuple(others[0] if each == node_id else each for each in replicas)
        return tuple(each for each in replicas if each != node_id)
