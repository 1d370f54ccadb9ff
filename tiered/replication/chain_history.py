"""The records of a partition that are in write-ahead chains, appended to the log of a new leader (R5).

The leader has fenced the chains before. Its log may have some of these records already, or others in their place: then
the bucket wins, as it does for segments.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.hot.disk_log import DiskLog
from tiered.ids import NO_EPOCH
from tiered.ports import Clock
from tiered.records.native import walk
from tiered.wal.history import Place, join_extents
from tiered.wal.takeover import ChainTakeover

log = logging.getLogger(__name__)


SaveOffsets = Callable[[], Awaitable[None]]
"""Writes the recovery points of all logs. Raises `Unavailable`."""


class ChainHistory(NamedTuple):
    """The extents of one partition in all its chains, which `takeover` has fenced and can read."""

    takeover: ChainTakeover
    places: Sequence[Place]
    clock: Clock


async def append_from_chains(
    hot: DiskLog,
    start: int,
    epoch: int,
    chains: ChainHistory,
    restart: Callable[[int], Awaitable[None]],
    save_offsets: SaveOffsets,
) -> int:
    """Appends to the log what chains have from `start` on. Returns the end of what is in the bucket.

    All records below `start` are in segments, or in the snapshot of a coordinator. The leader of `epoch` has put the
    last of them there, and the log agrees with them. If it disagrees with the chains, it restarts: `restart` drops it,
    and lets it begin at an offset. The log stays as it is if a later leader than that of the chains wrote it: then the
    topic had another `flush`, and that leader had all that the chains have. A truncation is settled before the first
    append. Raises `Unavailable`, `Refused` once the
    log is closed, and `Corrupt` if records are missing or damaged.
    """
    joined = join_extents(chains.places, start, epoch)
    stored = joined[-1].until if joined else start
    try:
        await _append(hot, chains, joined, hot.local_start_offset, save_offsets)
    except _Disagreement as why:
        if why.is_later:
            log.warning("local log is later than the chains, it stays partition=%s why=%s", hot.name, why)
            return start
        log.warning(
            "local log disagrees with the chains, it restarts partition=%s offset=%d why=%s", hot.name, start, why
        )
        try:
            await _append(hot, chains, joined, start, save_offsets, restart)
        except _Disagreement as error:
            raise Corrupt(f"a chain is not whole: {error}", where=hot.name) from None
        if hot.local_start_offset < start:  # records below are nowhere
            hot.advance_start(min(start, hot.end_offset))
    if joined:
        log.info("records of chains are read partition=%s from=%d to=%d", hot.name, start, stored)
    return stored


class _Disagreement(Exception):
    """The log has another batch than the chains at the same offset. `is_later`: from a later leader."""

    def __init__(self, why: str, *, is_later: bool = False) -> None:
        super().__init__(why)
        self.is_later = is_later


async def _append(
    hot: DiskLog,
    chains: ChainHistory,
    joined: Sequence[Place],
    start: int,
    save_offsets: SaveOffsets,
    restart: Callable[[int], Awaitable[None]] | None = None,
) -> None:
    """Appends the batches from `start` on that the log lacks. Raises `_Disagreement` if it has others.

    With `restart`, the log restarts where the first of these batches begins. `start` may be within it: all of the batch
    is needed then, and nobody reads its first records.
    """
    epoch = NO_EPOCH
    async for place, data in chains.takeover.read(joined):
        batches, _, damage = walk(data)
        if damage:
            raise Corrupt(f"batches of a chain are damaged: {damage}", where=hot.name)
        for each in batches:
            if each.base_offset >= place.until:
                break
            if each.last_offset >= place.until:
                raise Corrupt(f"a later leader begins within the batch at offset {each.base_offset}", where=hot.name)
            epoch = each.leader_epoch
            if each.last_offset < start:
                continue
            if restart is not None:
                await restart(each.base_offset)
                restart = None
            if hot.truncations.is_unsettled:  # else a power cut could bring back parts of the truncated records
                await hot.flush()
                await save_offsets()
            if each.last_offset < hot.end_offset:
                known = hot.epochs.epoch_at(max(each.base_offset, start))
                if known != epoch:
                    why = f"leader epoch {epoch} wrote offset {each.base_offset}, the log has it from {known}"
                    raise _Disagreement(why, is_later=known > epoch)
            elif each.base_offset != hot.end_offset:
                raise _Disagreement(f"the batch at offset {each.base_offset} is cut")
            else:
                hot.status.require_writable(hot.name)  # a broker that stops closes logs meanwhile
                hot.append_as_follower(data[each.position : each.position + each.size], now_ms=chains.clock.wall_ms())
    if restart is not None:
        await restart(start)
    if joined and hot.end_offset > joined[-1].until and hot.epochs.epoch_at(hot.end_offset - 1) < epoch:
        raise _Disagreement(f"an earlier leader than that of epoch {epoch} wrote the end of the log")
