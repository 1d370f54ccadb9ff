"""The records of one partition in all its chains, as one log. Pure.

A partition is led by one broker after the other, and each puts records into its own chain. A later leader has all
committed records of an earlier one. So its extents replace what an earlier leader has put at the same offsets and
beyond.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.ids import PartitionId
from tiered.wal.layout import ChainId, Extent, Fence, Window, slot_key

SPAN_BYTES = 4 << 20
"""Most bytes of a get for several extents; a larger extent has a get of its own."""
GAP_BYTES = 64 << 10
"""Most bytes of others between two extents that one get reads: a get costs more than these."""


class Span(NamedTuple):
    """The bytes of an object that one get reads: extents of partitions that are taken over together."""

    position: int
    length: int


class Place(NamedTuple):
    """An extent, with the object that holds it. Its batches below `until` count. It is read with its `span`."""

    chain: ChainId
    slot: int
    extent: Extent
    until: int
    span: Span


def find_hole(slots: Iterable[int], decided: int) -> int:
    """Returns the first slot that is free, given those that a list of the chain has: there a fence is put.

    All slots below `decided`, by the newest object of the list, have or had an object. A slot before the first one of
    the list is free if it is not below that: its put may be under way.
    """
    hole = decided
    for slot in sorted(slots):
        hole += slot == hole
    return hole


def span_extents(extents: Iterable[Extent]) -> list[tuple[Extent, Span]]:
    """Returns extents of one object, in the order of their positions, each with the span that holds it."""
    runs: list[tuple[Span, list[Extent]]] = []
    for each in extents:
        end = each.position + each.length
        if runs:
            span, members = runs[-1]
            gap = each.position - span.position - span.length
            if gap <= GAP_BYTES and end - span.position <= SPAN_BYTES:
                runs[-1] = Span(span.position, end - span.position), [*members, each]
                continue
        runs.append((Span(each.position, each.length), [each]))
    return [(each, span) for span, members in runs for each in members]


class ValidExtents:
    """The extents of some partitions in one chain that count. Objects are added in the order of slots.

    An extent does not count behind a fence of a later leader epoch.
    """

    def __init__(self, chain: ChainId, partitions: Iterable[PartitionId]) -> None:
        self._chain = chain
        self.of: dict[PartitionId, list[Place]] = {each: [] for each in partitions}
        """The extents of each partition, in the order of slots."""
        self._fenced_below = dict.fromkeys(self.of, -1)

    def add(self, found: Window | Fence) -> None:
        """Adds what the next slot holds."""
        if isinstance(found, Fence):
            for partition, epoch in found.epochs.items():
                if partition in self._fenced_below:
                    self._fenced_below[partition] = max(self._fenced_below[partition], epoch)
            return
        fenced_below = self._fenced_below
        counting = [
            each
            for each in found.extents
            if each.partition in fenced_below and each.leader_epoch >= fenced_below[each.partition]
        ]
        for extent, span in span_extents(counting):
            self.of[extent.partition].append(Place(self._chain, found.slot, extent, extent.end_offset, span))


def join_extents(places: Iterable[Place], start: int, epoch: int) -> list[Place]:
    """Returns the extents that hold the log from `start` on, in order and without an overlap.

    All records below `start` are in segments of the bucket, and `epoch` is the leader epoch of the last of them. That
    leader had all committed records: what an earlier one has put from `start` on was cut. Extents behind a gap were
    never acknowledged: a window before them was not put any more. One leader may put the same records twice, if `flush`
    was another meanwhile. Raises `Corrupt` if records are missing that a leader knew to be committed.
    """
    log: list[Place] = []
    committed, needs = start, None
    for place in sorted(places, key=lambda each: (each.extent.leader_epoch, each.extent.base_offset)):
        extent = place.extent
        if extent.leader_epoch < epoch:
            continue
        if extent.committed > committed:
            committed, needs = extent.committed, place
        if log and log[-1].extent.leader_epoch == extent.leader_epoch:
            if extent.base_offset <= log[-1].until < extent.end_offset:
                log.append(place)
            continue
        kept = [each for each in log if each.extent.base_offset < extent.base_offset]
        if extent.end_offset > start and extent.base_offset <= (kept[-1].until if kept else start):
            log = [each._replace(until=min(each.until, extent.base_offset)) for each in kept]
            log.append(place)
    end = log[-1].until if log else start
    if needs is not None and end < committed:
        raise Corrupt(f"records from offset {end} to {committed} are missing, and were committed", where=_name(needs))
    return log


def _name(place: Place) -> str:
    return f"{slot_key(place.chain, place.slot)} {place.extent.partition}"
