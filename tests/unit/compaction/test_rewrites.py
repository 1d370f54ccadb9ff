"""Tests of the choice of segments that a clean writes again, against a model of a log that is cleaned many times."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hot.fixtures import config
from tiered.compaction.cleanable_range import CleanableSegment
from tiered.compaction.rewrites import (
    COST_MAX,
    KeyedSegment,
    KeySurvey,
    RewritePlan,
    needs_thorough_clean,
    plan_rewrites,
)
from tiered.records import native
from tiered.records.key_offset_map import KeyOffsetMap

RECORD_BYTES = 100
SEGMENT_BYTES = 20 * RECORD_BYTES
NO_KEY = -1


@dataclass(frozen=True)
class Record:
    """A record of the model. A key of NO_KEY stands for a marker."""

    offset: int
    key: int
    is_tombstone: bool = False


@dataclass(frozen=True)
class Segment:
    """A segment of the model. `applied_to` is -1 in one that nobody knows the keys of."""

    base: int
    end: int
    records: tuple[Record, ...]
    applied_to: int
    is_cleaned: bool = False
    is_local: bool = False

    @property
    def rows(self) -> bytes:
        last = {each.key: each.offset for each in self.records if each.key != NO_KEY}
        return b"".join(sorted(_digest(key) + (offset - self.base).to_bytes(4, "big") for key, offset in last.items()))


@dataclass
class Log:
    """A log that is written and cleaned. Tombstones go as soon as `clean_to` lets them."""

    segments: list[Segment] = field(default_factory=list)
    clean_to: int = 0
    written: list[Record] = field(default_factory=list)

    def write(self, records: list[tuple[int, bool]], *, is_known: bool, is_local: bool) -> None:
        base = len(self.written)
        made = tuple(Record(base + n, key, gone and key != NO_KEY) for n, (key, gone) in enumerate(records))
        self.written += made
        self.segments.append(Segment(base, len(self.written), made, base if is_known else -1, is_local=is_local))

    def clean(self, keys_max: int) -> tuple[RewritePlan, list[KeyedSegment]]:
        end = len(self.written)
        key_map = KeyOffsetMap(1 << 12, b"seed")
        key_map.keys_max = keys_max
        survey = KeySurvey(key_map, end, self.clean_to)
        seen = [self._survey(survey, each) for each in reversed(self.segments)][::-1]
        index_bytes = 1 << 20
        plan = plan_rewrites(seen, survey.map_from, end, self.clean_to, SEGMENT_BYTES, index_bytes)
        offsets = {key: _offset_in(key_map, key) for key in range(12)}
        for run in plan.runs:
            first = next(n for n, each in enumerate(self.segments) if each.base == run[0].base_offset)
            old = self.segments[first : first + len(run)]
            assert [each.base for each in old] == [each.base_offset for each in run], "a run has no gap"
            records = tuple(r for each in old for r in each.records if not self._goes(r, offsets, old[-1].end))
            made = Segment(old[0].base, old[-1].end, records, end, is_cleaned=True)
            self.segments[first : first + len(run)] = [made]
        self.clean_to = plan.clean_to
        return plan, seen

    def _survey(self, survey: KeySurvey, each: Segment) -> KeyedSegment:
        superseded = repeated = 0
        applied_to = self.clean_to if each.base < self.clean_to else each.base
        is_known = each.applied_to >= 0
        if is_known:
            applied_to = max(applied_to, each.applied_to)
            superseded = survey.add_rows(each.rows, each.base, each.end)
            repeated = len(each.records) - len(each.rows) // 20 if applied_to < each.end else 0
        elif survey.takes(each.end):
            _, left = survey.key_map.match_keys(each.rows, each.base, puts=True)
            survey.end_segment(each.base, is_full=left > 0)
        size = len(each.records) * RECORD_BYTES
        return KeyedSegment(
            each.base, each.end, size, len(each.records), superseded, repeated, applied_to, is_known, each.is_local
        )

    def _goes(self, record: Record, offsets: dict[int, int], run_end: int) -> bool:
        if record.key == NO_KEY:
            return False
        return record.offset < offsets[record.key] or (record.is_tombstone and run_end <= self.clean_to)


def _digest(key: int) -> bytes:
    return bytes([key + 1]) * 16


def _offset_in(key_map: KeyOffsetMap, key: int) -> int:
    """Returns the last offset of a key in the map, -1 if it is not there."""
    rows = native.pack_keys(key_map.table, 0)
    found = [rows[at + 16 : at + 20] for at in range(0, len(rows), 20) if rows[at : at + 16] == _digest(key)]
    return int.from_bytes(found[0], "big") if found else -1


ROUNDS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(NO_KEY, 11), st.booleans()), min_size=1, max_size=12),
        st.sampled_from([True, True, True, False]),
        st.booleans(),
        st.sampled_from([2, 6, 100, 100]),
    ),
    max_size=12,
)


@settings(max_examples=150)
@given(ROUNDS)
def test_any_cleans_keep_last_records_and_bring_no_older_one_back(
    rounds: list[tuple[list[tuple[int, bool]], bool, bool, int]],
) -> None:
    log = Log()
    for records, is_known, is_local, keys_max in rounds:
        log.write(records, is_known=is_known, is_local=is_local)
        before = log.clean_to
        plan, seen = log.clean(keys_max)
        assert before <= log.clean_to <= len(log.written)
        there = [each for segment in log.segments for each in segment.records]
        assert there == sorted(there, key=lambda each: each.offset)
        last = {each.key: each for each in log.written if each.key != NO_KEY}
        for key, each in last.items():
            kept = [other for other in there if other.key == key]
            if each.is_tombstone:
                assert each in kept or not kept, "an older record comes back"
            else:
                assert each in kept
        below = [each.key for each in there if each.offset < log.clean_to and each.key != NO_KEY]
        assert len(below) == len(set(below)), "keys below the mark are applied"
        known = [each for run in plan.runs for each in run if each.is_known]
        freed = sum(each.free_bytes for each in known)
        assert sum(each.cost for each in known) <= COST_MAX * freed + len(seen)


def keyed(base: int, superseded: int, **changes: object) -> KeyedSegment:
    """Returns a segment of ten offsets that was cleaned up to its end."""
    made = KeyedSegment(base, base + 10, 1000, 10, superseded, 0, base + 10, is_known=True, is_local=False)
    return made._replace(**changes)  # type: ignore[arg-type]


def runs(segments: list[KeyedSegment], map_from: int = 0, clean_to: int = 0) -> list[list[int]]:
    end = segments[-1].next_offset
    plan = plan_rewrites(segments, map_from, end, clean_to, 1 << 20, 1 << 20)
    return [[each.base_offset for each in run] for run in plan.runs]


def test_segment_is_written_again_once_that_costs_little_for_what_it_frees() -> None:
    assert runs([keyed(0, 6)]) == [] and runs([keyed(0, 7)]) == [[0]]
    assert runs([keyed(0, 3, is_local=True)]) == [] and runs([keyed(0, 4, is_local=True)]) == [[0]]
    assert runs([keyed(0, 3, repeated=4)]) == [[0]], "records superseded in the segment itself count too"


def test_segment_is_dead_only_if_each_record_has_a_later_one_elsewhere() -> None:
    assert keyed(0, 10).is_dead and not keyed(0, 9).is_dead
    assert not keyed(0, 9, repeated=1).is_dead, "the tenth may be a marker"
    assert not keyed(0, 10, is_known=False).is_dead and not keyed(0, 0, records=0).is_dead


def test_segment_that_lacks_keys_is_written_again() -> None:
    assert runs([keyed(0, 0), keyed(10, 0, is_known=False), keyed(20, 0)]) == [[10]]


def test_segment_stays_while_the_map_lacks_keys_it_has_not_seen() -> None:
    assert runs([keyed(0, 9, applied_to=20), keyed(10, 9, applied_to=19), keyed(20, 0)], map_from=20) == [[0]]


def test_plan_tells_up_to_where_no_segment_hides_its_keys() -> None:
    def read_to(*segments: KeyedSegment, map_from: int = 0) -> int:
        return plan_rewrites(segments, map_from, 30, 0, 1 << 20, 1 << 20).read_to

    unknown = keyed(10, 0, is_known=False)
    assert read_to(keyed(0, 0), unknown, keyed(20, 0)) == 30, "a run reads it"
    assert read_to(keyed(0, 0, applied_to=25), unknown, keyed(20, 0), map_from=25) == 10
    assert read_to(keyed(0, 0), keyed(10, 0), keyed(20, 0), map_from=25) == 30


def test_small_segment_joins_a_neighbour_that_is_written_again() -> None:
    small = {"size": 20, "records": 1}
    assert runs([keyed(0, 0, **small), keyed(10, 9), keyed(20, 0, **small), keyed(30, 0)]) == [[0, 10, 20]]
    assert runs([keyed(0, 0, **small), keyed(10, 0, **small)]) == []
    large = {"size": 1 << 17, "records": 10}
    assert runs([keyed(0, 0, **large), keyed(10, 10)]) == [[10]]


def test_mark_moves_over_segments_to_which_all_keys_were_applied() -> None:
    def mark(*segments: KeyedSegment, map_from: int = 0) -> int:
        return plan_rewrites(segments, map_from, segments[-1].next_offset, 5, 1 << 20, 1 << 20).clean_to

    assert mark(keyed(0, 0), keyed(10, 9), keyed(20, 0)) == 30
    assert mark(keyed(0, 0), keyed(10, 2, applied_to=25), keyed(20, 0), keyed(30, 0)) == 25
    assert mark(keyed(0, 1, applied_to=12), keyed(10, 2, applied_to=10), keyed(20, 0)) == 10
    assert mark(keyed(0, 0, applied_to=4), keyed(10, 0), map_from=10) == 5


@pytest.mark.parametrize(
    ("clean_to", "changes", "needed"),
    [(-1, {}, True), (50, {}, False), (10, {}, True), (50, {"max_compaction_lag_ms": 1000}, True)],
)
def test_first_clean_is_thorough_and_one_with_little_below_the_mark(
    clean_to: int, changes: dict[str, int], needed: bool
) -> None:
    segments = [CleanableSegment(base, base + 10, 100, 0, 0) for base in range(0, 100, 10)]
    made = replace(config(cleanup_policy=("compact",)), **changes)  # type: ignore[arg-type]
    assert needs_thorough_clean(segments, clean_to, made) is needed
    assert needs_thorough_clean(segments, 40, config(), is_map_full=True)
    assert not needs_thorough_clean(segments, 50, config(), is_map_full=True)
