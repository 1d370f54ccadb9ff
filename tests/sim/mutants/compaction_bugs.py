"""Bugs of compaction that are put in on purpose: each function gets the production function and returns one with the
bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.sim.harness.disk import SimFile
from tiered.cold.cold_cleaning import ColdCleaning
from tiered.cold.collector import Collector
from tiered.cold.manifest import Manifest
from tiered.compaction.batch_filter import CleanedBatches, CleanRules
from tiered.compaction.cleanable_range import CleanableRange, LogEnds
from tiered.compaction.transactions import CleanedTransactions
from tiered.hot.interrupted_swaps import CLEANED
from tiered.hot.log_cleaning import LogCleaning
from tiered.hot.retention import TotalLimits
from tiered.records.native import walk

LONG_MAX = 2**63 - 1


class Unlagged:
    """Settings of a topic without min.compaction.lag.ms."""

    min_compaction_lag_ms = 0

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def forget_delete_retention(original: Any) -> Any:
    """Tombstones and markers may go at once."""

    def of(cls: type[CleanRules], now_ms: int, delete_retention_ms: int, *rest: Any, **options: Any) -> CleanRules:
        rules: CleanRules = original.__func__(cls, now_ms, 0, *rest, **options)
        return rules

    return classmethod(of)


def drop_what_the_map_does_not_cover(original: Any) -> Any:
    """The segment in which the map got full loses what lies above."""

    def clean(key_map: Any, data: Any, transactions: Any, rules: Any, **options: Any) -> CleanedBatches:
        found: CleanedBatches = original(key_map, data, transactions, rules, **options)
        kept = [each for each in walk(found.data, 0).batches if each.base_offset <= key_map.latest_offset]
        return found._replace(data=found.data[: kept[-1].position + kept[-1].size] if kept else b"")

    return clean


def count_uncovered_as_clean(original: Any) -> Any:
    """A map that got full counts as one that has all keys."""

    async def build(self: LogCleaning, key_map: Any) -> bool:
        await original(self, key_map)
        return False

    return build


def forget_last_sequences(original: Any) -> Any:
    return lambda *_: {}


def need_no_marker(original: Any) -> Any:
    """Markers go by their horizon alone."""

    def is_needless(self: CleanedTransactions[Any], batch: Any, kind: Any) -> bool:
        original(self, batch, kind)
        return True

    return is_needless


def take_aborted_for_committed(original: Any) -> Any:
    def is_aborted(self: CleanedTransactions[Any], batch: Any) -> bool:
        original(self, batch)
        return False

    return is_aborted


def clean_past_stable_offset(original: Any) -> Any:
    def find(closed: Any, ends: LogEnds, config: Any, now_ms: int) -> CleanableRange:
        found: CleanableRange = original(closed, ends._replace(last_stable_offset=LONG_MAX), config, now_ms)
        return found

    return find


def clean_past_high_watermark(original: Any) -> Any:
    def find(closed: Any, ends: LogEnds, config: Any, now_ms: int) -> CleanableRange:
        found: CleanableRange = original(closed, ends._replace(high_watermark=LONG_MAX), config, now_ms)
        return found

    return find


def ignore_lag(original: Any) -> Any:
    def find(closed: Any, ends: LogEnds, config: Any, now_ms: int) -> CleanableRange:
        found: CleanableRange = original(closed, ends, Unlagged(config), now_ms)
        return found

    return find


def keep_old_time_index(original: Any) -> Any:
    """The cleaned segment gets the time index of the segment before."""

    async def write(self: LogCleaning, path: str, data: bytes) -> None:
        if path.endswith(".timeindex" + CLEANED):
            file = self._writer.files.disk.open(path.removesuffix(CLEANED), write=False)
            data = bytes(file.pread(0, file.size()))
            file.close()
        await original(self, path, data)

    return write


def skip_sync_of_cleaned(original: Any) -> Any:
    async def sync(self: SimFile) -> None:
        if not self.name.endswith(CLEANED):
            await original(self)

    return sync


def leave_what_was_replaced(original: Any) -> Any:
    """A start gives the new segment its name and leaves the old ones."""

    def end_of_swap(files: Any, base: int) -> int:
        original(files, base)
        return base

    return end_of_swap


def keep_what_is_replaced(original: Any) -> Any:
    def replace_segments(
        self: Manifest, replaced: Any, successors: Any, submanifests: Any, new_key: Callable[[int], str]
    ) -> Manifest:
        found: Manifest = original(self, replaced, successors, submanifests, new_key)
        return replace(found, nodes=(*found.nodes, replaced[-1])) if found is not self else self

    return replace_segments


def find_no_fault(original: Any) -> Any:
    return lambda manifest: ""


def delete_replaced_at_once(original: Any) -> Any:
    async def delete_replaced(self: Collector, before: Manifest, runs: Any) -> None:
        await original(self, before, runs)
        self._pending.extend([(0, key) for _, key in self._pending])
        self._pending.rotate(len(self._pending) // 2)
        await self.delete_expired()

    return delete_replaced


def count_all_as_mapped(original: Any) -> Any:
    async def map_keys(self: ColdCleaning, entries: Any, cleanable: CleanableRange, key_map: Any) -> int:
        await original(self, entries, cleanable, key_map)
        return cleanable.first_uncleanable

    return map_keys


def forget_cold_retention(original: Any) -> Any:
    async def make_rules(self: ColdCleaning, newest: Any) -> CleanRules:
        rules: CleanRules = await original(self, newest)
        return replace(rules, horizon_ms=self._now_ms)

    return make_rules


def drop_last_piece(original: Any) -> Any:
    """The last batch of what a step leaves is lost."""

    def split(data: Any, batches: Any, room: int) -> Any:
        return original(data, batches[:-1], room)

    return split


def expire_by_any_policy(original: Any) -> Any:
    return lambda config: TotalLimits(config.retention_ms, config.retention_bytes)
