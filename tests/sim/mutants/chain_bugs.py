"""Bugs of write-ahead chains: each function turns a production function into one with the bug. `mutants.py` says which
rules each breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiered.replication.leader_replica import LeaderReplica
from tiered.wal.chain_writer import ChainWriter


def count_log_end(original: Any) -> Any:
    def _own_position(replica: LeaderReplica) -> int:
        return replica.log.end_offset

    return _own_position


def confirm_each_slot(original: Any) -> Any:
    def decide(slots: Any, slot: int, confirmed: Any) -> list[Any]:
        original(slots, slot, confirmed)
        return list(confirmed)

    return decide


def confirm_before_the_put(original: Any) -> Any:
    async def _put_window(writer: ChainWriter, slot: int, parts: Any) -> None:
        for owner, extent in parts:
            owner.on_stored(extent.end_offset)
        await original(writer, slot, parts)

    return _put_window


def lead_on_after_fence(original: Any) -> Any:
    def _give_up(writer: ChainWriter, fence: Any) -> None:
        """Ends nothing."""

    return _give_up


def read_without_fence(original: Any) -> Any:
    async def _put_fence(*args: Any) -> None:
        """Puts nothing."""

    return _put_fence


def keep_local_log(original: Any) -> Any:
    async def append_from_chains(hot: Any, start: int, *args: Any) -> int:
        return max(start, int(hot.end_offset))

    return append_from_chains


def read_last_chain_only(original: Any) -> Any:
    def _add_chain(old: Any, leader: int, context: Any) -> Any:
        return original(old, leader, context)[-1:]

    return _add_chain


def trim_all_decided(original: Any) -> Any:
    def first_needed(trimming: Any, now_ns: int) -> int:
        return int(
            max([original(trimming, now_ns), *(slot for marks in trimming._marks.values() for slot, _ in marks)])
        )

    return first_needed


def forget_at_each_look(original: Any) -> Any:
    def names_chain(*args: Any) -> bool:
        return False

    return names_chain


def keep_guarantee(original: Any) -> Any:
    def change_flush(old: Any, context: Any) -> Any:
        return replace(original(old, context), is_in_bucket=old.is_in_bucket)

    return change_flush


def start_with_all(original: Any) -> Any:
    def add(writer: ChainWriter, partition: Any, leader_epoch: int, log: Any, stored_end: int, **told: Any) -> Any:
        return original(writer, partition, leader_epoch, log, log.end_offset, **told)

    return add
