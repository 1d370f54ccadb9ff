"""The write-ahead chains that a broker knows: its own, and those that it takes over from earlier leaders (R5).

Partitions that come from one broker at once share a fence in its chain, and one read of its headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from tiered.controller.member_view import MemberView
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import PartitionId, TopicPartition
from tiered.metadata.delta import Lead
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import ChainRef
from tiered.metrics import Metrics
from tiered.ports import ObjectStore, World
from tiered.replication.chain_history import ChainHistory
from tiered.wal.chain_writer import ChainWriter
from tiered.wal.history import Place
from tiered.wal.layout import WAL, ChainId, parse_key
from tiered.wal.takeover import ChainTakeover, FencedChain
from tiered.wal.window import WindowSettings

OWN_CHAIN_SECONDS = 10.0
"""Longest wait for the windows of the own chain whose put runs. The partitions are tried again after that."""

ChainError = Unavailable | Corrupt | Refused


class Chains:
    """The own chain (`writer`), and the takeover of others."""

    def __init__(
        self, view: MemberView, store: ObjectStore, world: World, metrics: Metrics, cluster_id: Callable[[], str]
    ) -> None:
        settings = view.settings
        self._clock = world.clock
        self._store = store
        self._takeover = ChainTakeover(store, world.clock, world.rng, cluster_id)
        self.writer = ChainWriter(
            store, world.clock, world.rng, metrics,
            chain=ChainId(settings.node_id, view.incarnation), cluster_id=cluster_id,
            settings=WindowSettings(settings.tiered_wal_window_ms * 1_000_000, settings.tiered_wal_window_bytes),
        )  # fmt: skip

    def is_needed(self, image: Image, lead: Lead) -> bool:
        """True if records of a partition that this broker begins to lead may be in chains alone."""
        return bool(_find_chains(image, lead))

    def reading(self) -> AbstractContextManager[None]:
        """Keeps what is read of chains in memory, up to a bound, until it is left: partitions share windows."""
        return self._takeover.reading()

    async def take_over(self, image: Image, leads: Iterable[Lead]) -> dict[TopicPartition, ChainHistory | ChainError]:
        """Fences the chains of partitions that this broker begins to lead without having been in sync.

        Returns what the chains have, or the error that keeps a partition closed. Partitions that no chain holds are
        left out.
        """
        found: dict[TopicPartition, tuple[PartitionId, list[ChainId]]] = {}
        wanted: dict[ChainId, dict[PartitionId, int]] = {}
        for lead in leads:
            refs = _find_chains(image, lead)
            if not refs:
                continue
            partition_id = PartitionId(lead.topic_id, lead.tp.partition)
            chains = [each for each in (ChainId(*ref[1:]) for ref in refs) if self._may_have_objects(each)]
            found[lead.tp] = partition_id, chains
            for each in chains:
                wanted.setdefault(each, {})[partition_id] = lead.leader_epoch
        results = await asyncio.gather(*(self._fence(chain, epochs) for chain, epochs in wanted.items()))
        fenced = dict(zip(wanted, results, strict=True))
        return {tp: self._join(pid, [fenced[each] for each in chains]) for tp, (pid, chains) in found.items()}

    def _may_have_objects(self, chain: ChainId) -> bool:
        """False for the own chain before its first window."""
        return chain != self.writer.chain or self.writer.has_begun

    async def _fence(self, chain: ChainId, epochs: dict[PartitionId, int]) -> FencedChain | ChainError:
        try:
            if chain == self.writer.chain:
                slots = await self.writer.settled_slots(OWN_CHAIN_SECONDS)
                return await self._takeover.read_own(chain, slots, epochs)
            return await self._takeover.fence(chain, epochs)
        except (Unavailable, Corrupt, Refused) as error:
            return error

    def _join(self, partition: PartitionId, fenced: list[FencedChain | ChainError]) -> ChainHistory | ChainError:
        places: list[Place] = []
        for each in fenced:
            if not isinstance(each, FencedChain):
                return each
            places += each.extents_of(partition)
        return ChainHistory(self._takeover, places, self._clock)

    async def list_chains(self) -> AsyncIterator[ChainId]:
        """Yields all chains that have an object in the bucket, in the order of their keys."""
        after = WAL
        while page := await self._store.list(WAL, after, limit=1):
            found = parse_key(page[0].key)
            if found is None:
                after = page[0].key
                continue
            yield found[0]
            after = found[0].prefix + "~"  # behind all slots

    async def list_windows(self, chain: ChainId) -> list[str]:
        """Returns the keys of all windows of a chain."""
        return await self._takeover.list_windows(chain)

    async def delete_windows(self, keys: Sequence[str]) -> None:
        """Deletes windows of a chain whose fences stay. Raises `Unavailable`."""
        if keys:
            await self._store.delete(keys)

    async def trim(self, cold_ends: Mapping[PartitionId, int], needed: Callable[[PartitionId], bool]) -> None:
        """Deletes what no partition needs of the own chain. `cold_ends` are the ends of the segments of partitions that
        this broker leads; `needed` tells if the metadata log names the own chain for another one. Raises
        `Unavailable`."""
        for partition in self.writer.trimming.partitions():
            if partition not in cold_ends and not needed(partition):
                self.writer.trimming.forget(partition)
        await self.writer.trim(cold_ends)


def _find_chains(image: Image, lead: Lead) -> Sequence[ChainRef]:
    """Returns the chains that a partition's metadata names, unless this broker has all records of these."""
    topic = image.topics_by_id.get(lead.topic_id)
    known = topic.partitions[lead.tp.partition] if topic is not None else None
    return () if known is None or lead.was_in_sync or lead.is_new else known.chains
