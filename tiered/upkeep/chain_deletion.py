"""The deletion of objects of write-ahead chains: the own chain by its broker, those of dead brokers by the controller.

The fences of a dead chain stay: its process may be frozen, and would put into the slots after the last object.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from tiered.controller.member_view import MemberView
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.hosting.chains import Chains
from tiered.ids import PartitionId
from tiered.metadata.image import Image
from tiered.ports import Clock
from tiered.replication.led_partitions import LedPartitions
from tiered.system.turns import each_of
from tiered.wal.layout import ChainId

log = logging.getLogger(__name__)

TRIM_SECONDS = 30.0
COLLECT_SECONDS = 600.0


class LocalController(Protocol):
    """Tells if this broker is the controller."""

    @property
    def is_controller(self) -> bool: ...

    async def confirm_controller(self) -> bool:
        """Returns True if no other broker was the controller before this call."""


class ChainDeletion:
    """The loops of one broker."""

    def __init__(
        self, view: MemberView, chains: Chains, led: LedPartitions, local_controller: LocalController, clock: Clock
    ) -> None:
        self._view = view
        self._chains = chains
        self._led = led
        self._local_controller = local_controller
        self._clock = clock
        self._has_chains = False
        """True if the last list had one: a cluster that never had any is asked for none."""
        self._collected: set[ChainId] = set()
        """Dead chains that have fences only."""
        self._needed: tuple[Image | None, set[ChainId]] = None, set()
        """An image, and the chains that it names or whose broker is alive."""

    async def run(self) -> None:
        """Runs all loops until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_every(TRIM_SECONDS, self.trim_own))
            group.create_task(self._run_every(COLLECT_SECONDS, self.delete_dead))

    async def _run_every(self, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            try:
                await step()
            except (Unavailable, Refused, Corrupt) as error:
                log.warning("deletion of chains failed, goes on at its next turn step=%s why=%s", step.__name__, error)

    async def trim_own(self) -> None:
        """Deletes the windows of the own chain whose records are in segments, or that a later leader has put again."""
        if not self._chains.writer.has_begun:
            return
        cold_ends: dict[PartitionId, int] = {}
        async for replica in each_of(self._led.list_leaders()):
            if replica.chain_stored_end is not None:
                cold_ends[replica.partition_id] = replica.unchained_end
        image, own = self._view.image, self._chains.writer.chain
        await self._chains.trim(cold_ends, lambda partition_id: names_chain(image, partition_id, own))

    async def delete_dead(self) -> None:
        """Deletes the windows of chains whose broker is gone and that no partition names, if this broker is the
        controller."""
        if not self._local_controller.is_controller:
            self._collected.clear()
            return
        if not self._has_chains and not _named_chains(self._view.image):
            return
        listed = [each async for each in self._chains.list_chains()]
        self._has_chains = bool(listed)
        for chain in listed:
            if chain in self._collected or not self._is_dead(chain):
                continue
            # This process may be frozen at any step. So it lists first, and confirms after that: the image knows all
            # brokers that have put one of these windows. Windows that are put later are not in the list.
            windows = await self._chains.list_windows(chain)
            if windows and not await self._local_controller.confirm_controller():
                return
            if self._is_dead(chain):
                await self._chains.delete_windows(windows)
                self._collected.add(chain)
                log.info("windows of a dead chain are deleted chain=%s objects=%d", chain.prefix, len(windows))

    def _is_dead(self, chain: ChainId) -> bool:
        """True if no partition names the chain, and its broker is gone."""
        image = self._view.image
        if self._needed[0] is not image:
            live = {ChainId(node, each.incarnation) for node, each in image.brokers.items() if each.alive}
            self._needed = image, live | _named_chains(image)
        return chain not in self._needed[1]


def _named_chains(image: Image) -> set[ChainId]:
    """Returns all chains that the metadata log names."""
    return {ChainId(*ref[1:]) for topic in image.topics.values() for each in topic.partitions for ref in each.chains}


def names_chain(image: Image, partition_id: PartitionId, chain: ChainId) -> bool:
    """True if the metadata log names the chain for the partition."""
    topic = image.topics_by_id.get(partition_id.topic_id)
    if topic is None or partition_id.partition >= len(topic.partitions):
        return False
    return any(each[1:] == chain for each in topic.partitions[partition_id.partition].chains)
