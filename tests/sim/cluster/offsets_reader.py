"""Polls committed offsets of the group from every broker that considers itself its coordinator. It polls often, so that
it also reads right after a move of the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.sim.cluster.history import ClientHistory, GroupOffsets
from tests.sim.harness.loop import SimLoop
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
FETCH_SECONDS = 0.3


class GroupOffsetsReader:
    """Polls one broker while `is_coordinator` says that it considers itself a coordinator, until `working` is unset.
    `sole_epoch` returns the epoch of the coordinator while no other broker can reply for the groups, else -1."""

    def __init__(
        self,
        group: str,
        node: int,
        client: KafkaClient,
        loop: SimLoop,
        history: ClientHistory,
        is_coordinator: Callable[[int], bool],
        sole_epoch: Callable[[], int],
    ) -> None:
        self.working = True
        self._group = group
        self._node = node
        self._client = client
        self._loop = loop
        self._history = history
        self._is_coordinator = is_coordinator
        self._sole_epoch = sole_epoch

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(FETCH_SECONDS)
            if self._is_coordinator(self._node):
                try:
                    await self._fetch_offsets()
                except REQUEST_ERRORS:
                    continue
        await self._client.close()

    async def _fetch_offsets(self) -> None:
        requested_ns, epoch_before = self._loop.now_ns, self._sole_epoch()
        groups = [OffsetFetchRequestGroup(group_id=self._group, topics=None)]
        request = OffsetFetchRequest(group_id=self._group, topics=None, groups=groups)
        got = await self._client.send(request, OffsetFetchResponse, node_id=self._node)
        if not got.groups or got.groups[0].error_code:
            return
        offsets = {
            TopicPartition(topic.name, each.partition_index): each.committed_offset
            for topic in got.groups[0].topics
            for each in topic.partitions
            if not each.error_code and each.committed_offset >= 0
        }
        sure = 0 <= epoch_before == self._sole_epoch()
        self._history.offsets_shown.append((GroupOffsets(self._group, offsets, requested_ns, self._loop.now_ns), sure))
