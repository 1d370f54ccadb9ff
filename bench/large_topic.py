"""The cost of cleans of 100 GiB in the bucket of which 1 % a day is written again, computed by the planner: no byte is
read or written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.figures import Figure
from tiered.compaction.cleanable_range import CleanableRange, CleanableSegment, LogEnds, find_cleanable
from tiered.compaction.rewrites import KeyedSegment, needs_thorough_clean, plan_rewrites
from tiered.config.settings import TopicConfig
from tiered.records.pure_compact import KEY_ROW_BYTES

RECORD_BYTES = 1024
SEGMENT_BYTES = 64 << 20
SEGMENT_RECORDS = SEGMENT_BYTES // RECORD_BYTES
SEGMENTS, SEGMENTS_A_DAY, DAYS = 1600, 16, 400


@dataclass
class Segment:
    """A segment in the bucket. `live` of its `records` are the last ones of their keys. The disk has none of it."""

    base: int
    end: int
    records: int
    live: float
    applied_to: int
    is_rewritten_daily: bool = False

    @property
    def size(self) -> int:
        return self.records * RECORD_BYTES

    def facts(self, clean_to: int) -> KeyedSegment:
        applied_to = max(self.applied_to, clean_to) if self.base < clean_to else self.applied_to
        gone = self.records - int(self.live)
        return KeyedSegment(self.base, self.end, self.size, self.records, gone, 0, applied_to, True, False)


class LargeTopic:
    """A topic of which the same keys, or keys at random, are written again every day. The key map has room for all."""

    def __init__(self, *, same_keys: bool, dirty_ratio: float) -> None:
        self._same_keys = same_keys
        self._config = replace(TopicConfig(), cleanup_policy=("compact",), min_cleanable_dirty_ratio=dirty_ratio)
        self.end = self._clean_to = self._looked_to = SEGMENTS * SEGMENT_RECORDS
        bases = range(0, self.end, SEGMENT_RECORDS)
        self._segments = [
            Segment(base, base + SEGMENT_RECORDS, SEGMENT_RECORDS, SEGMENT_RECORDS, self.end) for base in bases
        ]
        self.dirty_bytes = self.moved_bytes = self.key_bytes = self.largest = 0

    def run(self) -> None:
        """Writes and cleans for all days."""
        for day in range(DAYS):
            self._write(is_first=day == 0)
            if self._find_dirty().is_due(self._config):
                self._clean()

    def _write(self, *, is_first: bool) -> None:
        share = SEGMENTS_A_DAY * SEGMENT_RECORDS / sum(each.live for each in self._segments)
        for each in self._segments:
            if is_first or not self._same_keys:
                each.live *= 1 - share
            elif each.is_rewritten_daily:
                each.live = 0
        for _ in range(SEGMENTS_A_DAY):
            end = self.end + SEGMENT_RECORDS
            self._segments.append(Segment(self.end, end, SEGMENT_RECORDS, SEGMENT_RECORDS, self.end, True))
            self.end = end
        self.dirty_bytes += SEGMENTS_A_DAY * SEGMENT_BYTES
        self.largest = max(self.largest, sum(each.size for each in self._segments))

    def _facts(self) -> Sequence[CleanableSegment]:
        return [CleanableSegment(each.base, each.end, each.size, -1, -1) for each in self._segments]

    def _find_dirty(self) -> CleanableRange:
        ends = LogEnds(0, self._looked_to, self.end, self.end, self.end)
        return find_cleanable(self._facts(), ends, self._config, 0)

    def _clean(self) -> None:
        if needs_thorough_clean(self._facts(), self._clean_to, self._config):
            self.moved_bytes += sum(each.size for each in self._segments if each.base >= self._clean_to)
            runs, self._clean_to = [[each] for each in self._segments], self.end
            self.moved_bytes += sum(each.size + int(each.live) * RECORD_BYTES for each in self._segments)
        else:
            self.key_bytes += sum(each.records * KEY_ROW_BYTES for each in self._segments)
            seen = [each.facts(self._clean_to) for each in self._segments]
            plan = plan_rewrites(seen, self._clean_to, self.end, self._clean_to, SEGMENT_BYTES, SEGMENT_BYTES)
            by_base = {each.base: each for each in self._segments}
            runs, self._clean_to = [[by_base[each.base_offset] for each in run] for run in plan.runs], plan.clean_to
            self.moved_bytes += sum(each.cost for run in plan.runs for each in run)
        self._looked_to = self.end
        made = {each.base: each for each in self._segments}
        for run in runs:
            live = sum(each.live for each in run)
            daily = all(each.is_rewritten_daily for each in run)
            for each in run:
                del made[each.base]
            made[run[0].base] = Segment(run[0].base, run[-1].end, int(live), live, self.end, daily)
        self._segments = sorted(made.values(), key=lambda each: each.base)


def main() -> list[Figure]:
    figures: list[Figure] = []
    for same_keys in (True, False):
        for ratio in (0.5, 0.2, 0.05):
            topic = LargeTopic(same_keys=same_keys, dirty_ratio=ratio)
            topic.run()
            moved, keys = topic.moved_bytes / topic.dirty_bytes, topic.key_bytes / topic.dirty_bytes
            which = "the same keys" if same_keys else "keys at random"
            figures.append(
                Figure(
                    f"bytes read and written per dirty byte, 1 % a day of {which}, dirty ratio {ratio}",
                    moved + keys, "", 2.2, at_most=True,
                    note=f"{keys:.2f} of them keys sections; at most {topic.largest / (SEGMENTS * SEGMENT_BYTES):.1f} "
                    "times the last records are in the bucket",
                )
            )  # fmt: skip
    return figures
