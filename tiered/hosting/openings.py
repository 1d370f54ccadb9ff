"""The leaderships that begin with records from write-ahead chains: their order, and their progress.

Reading these records takes seconds, so nobody waits for it: no other partition, and no later image. Partitions that
somebody asked for come first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tiered.hosting.chains import ChainError
from tiered.ids import TopicPartition
from tiered.metadata.delta import Lead
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import PartitionImage
from tiered.replication.chain_history import ChainHistory

History = ChainHistory | ChainError


class Opening(NamedTuple):
    """A leadership that this broker is to begin, and the image that decided it.

    Later images may be applied before the log is open. Nobody led the partition since `decided`, so that image tells
    what holds of the records in the log.
    """

    lead: Lead
    decided: Image

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return self.lead.tp

    @property
    def partition(self) -> PartitionImage:
        """The partition in the image that decided."""
        return self.decided.topics_by_id[self.lead.topic_id].partitions[self.lead.tp.partition]


class Openings:
    """Leaderships in three steps: their chains are read, they wait for their turn, their logs are being opened.

    Each partition is in one step at most. They are bounded by the partitions of the broker.
    """

    def __init__(self) -> None:
        self._unread: dict[TopicPartition, Opening] = {}
        self._being_read: dict[TopicPartition, Opening] = {}
        self._waiting: OrderedDict[TopicPartition, tuple[Opening, History | None]] = OrderedDict()
        self._running: set[TopicPartition] = set()
        self._preferred: set[TopicPartition] = set()
        """Unread partitions that come first once their chains are read."""
        self._added = asyncio.Event()
        self._ended = asyncio.Event()
        """Set when a partition has left. Each time another event takes its place."""

    def __contains__(self, tp: object, /) -> bool:
        return any(tp in each for each in (self._running, self._waiting, self._being_read, self._unread))

    def __iter__(self) -> Iterator[TopicPartition]:
        yield from (*self._running, *self._waiting, *self._being_read, *self._unread)

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting) + len(self._being_read) + len(self._unread)

    def count_due(self, at_once: int) -> int:
        """Returns how many more may begin now, if so many are opened at once."""
        return max(0, min(at_once - len(self._running), len(self._waiting)))

    def add(self, openings: Iterable[Opening]) -> None:
        """Adds leaderships, but none of a partition that is there already."""
        self._unread.update((each.tp, each) for each in openings if each.tp not in self)
        if self._unread:
            self._added.set()

    def prefer(self, tp: TopicPartition) -> bool:
        """Lets a partition come first. Returns True if it is there, in any step."""
        if tp in self._waiting:
            self._waiting.move_to_end(tp, last=False)
        elif tp in self._unread or tp in self._being_read:
            self._preferred.add(tp)
        return tp in self

    async def take_unread(self) -> list[Opening]:
        """Returns the leaderships whose chains are unread, once there are any. The caller reads them."""
        while not self._unread:
            self._added.clear()
            await self._added.wait()
        openings = list(self._unread.values())
        self._being_read |= self._unread
        self._unread.clear()
        return openings

    def add_histories(self, openings: Sequence[Opening], histories: Mapping[TopicPartition, History]) -> None:
        """Lets leaderships wait for their turn: their chains are read. Those that are over meanwhile are left out."""
        for each in openings:
            if self._being_read.get(each.tp) is each:
                del self._being_read[each.tp]
                self._waiting[each.tp] = each, histories.get(each.tp)
                if each.tp in self._preferred:
                    self._waiting.move_to_end(each.tp, last=False)
                    self._preferred.remove(each.tp)

    def begin(self) -> tuple[Opening, History | None] | None:
        """Returns the next leadership, with what chains have of it; None if none waits. The caller has to end it."""
        if not self._waiting:
            return None
        tp, found = self._waiting.popitem(last=False)
        self._running.add(tp)
        return found

    def end(self, tp: TopicPartition) -> None:
        """Ends the opening of a partition, whatever came out."""
        self._running.remove(tp)
        self._wake()

    async def leave(self, tps: Iterable[TopicPartition]) -> None:
        """Drops these partitions. Returns once none of them is being opened, at worst after the deadlines of an
        opening's requests to the bucket."""
        tps = tuple(tps)
        for each in tps:
            self._unread.pop(each, None)
            self._being_read.pop(each, None)
            self._waiting.pop(each, None)
            self._preferred.discard(each)
        self._wake()
        for each in tps:
            while each in self._running:
                await self._ended.wait()

    async def wait_ended(self, tps: Iterable[TopicPartition]) -> None:
        """Returns once none of these partitions is there any more, in any step."""
        for each in tps:
            while each in self:
                await self._ended.wait()

    def clear(self) -> None:
        """Drops all partitions that are not being opened yet."""
        self._unread.clear()
        self._being_read.clear()
        self._waiting.clear()
        self._preferred.clear()
        self._wake()

    def _wake(self) -> None:
        ended, self._ended = self._ended, asyncio.Event()
        ended.set()
