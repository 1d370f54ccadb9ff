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


class Place(NamedTuple):
    """An extent, with the object that holds it. Its batches below `until` count."""

    chain: ChainId
    slot: int
    extent: Extent
    until: int


def find_hole(slots: Iterable[int], decided: int) -> int:
    """Returns the first slot that is free, given those that a list of the chain has: there a fence is put.

    All slots below `decided`, by the newest object of the list, have or had an object. A slot before the first one of
    the list is free if it is not below that: its put may be under way.
    """
    hole = decided
    for slot in sorted(slots):
        hole += slot == hole
    return hole


def valid_extents(
    chain: ChainId, objects: Iterable[Window | Fence], partition: PartitionId, before: int
) -> list[Place]:
    """Returns the extents of a partition that count, in the order of slots. `before` is the slot of the own fence.

    An extent does not count behind a fence of a later leader epoch.
    """
    found: list[Place] = []
    fenced_below = -1
    for each in sorted(objects, key=lambda each: each.slot):
        if each.slot >= before:
            break
        if isinstance(each, Fence):
            fenced_below = max(fenced_below, each.epochs.get(partition, -1))
        else:
            found += [
                Place(chain, each.slot, extent, extent.end_offset)
                for extent in each.extents
                if extent.partition == partition and extent.leader_epoch >= fenced_below
            ]
    return found


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
