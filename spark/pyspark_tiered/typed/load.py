"""Loads the values of a topic into its typed table, and what does not fit into its dead letters.

A round converts by the schema of the table and commits in this order: the columns that the values need, the dead
letters, the rows. The identifiers of the dead letters are therefore never behind those of the rows. Each offset between
the two is decided: it has a dead letter, or else its row is still to come. A load that goes on from there, after a kill
or beside another one, makes the same rows.

A round leaves out erased offsets. Both tables are there before it reads the erasures. So an erasure whose record comes
later finds both tables, and its commits make the round plan again.
"""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from pyspark_tiered.delta.log_folder import BucketConnection
from pyspark_tiered.delta.table_form import Advance, ConversionResult, Range, Stop
from pyspark_tiered.load.rounds import (
    FilePlan,
    Round,
    find_expired_ranges,
    has_missing_segments,
    next_round,
    select_committable,
)
from pyspark_tiered.log.bucket import ColdTopicReader
from pyspark_tiered.proof.erasures import ErasureReader, join_ranges, overlaps
from pyspark_tiered.typed import form
from pyspark_tiered.typed.changes import FieldRule, format_path, strip_items
from pyspark_tiered.typed.convert import Decided, ValuesResult, ValuesTask, convert_values
from pyspark_tiered.typed.evolve import Path, Unfit, is_stored_as, merge
from pyspark_tiered.typed.form import ValueRules
from pyspark_tiered.typed.kinds import StructOf, describe_columns, select_columns
from pyspark_tiered.typed.names import KEY
from pyspark_tiered.typed.tables import DeadLetters, Json, TypedTable
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicId

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class LoadRunner(Protocol):
    """The part of a load's engine that converts values."""

    @property
    def tasks(self) -> int:
        """Returns how many tasks run at once."""

    def connect(self, url: str) -> BucketConnection | None:
        """Returns a connection that all tables in this bucket share; None if each has its own, or needs none."""

    def run_tasks(self, what: str, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Returns the results of tasks, in order. Raises `Unavailable` for failures that are not in the log."""


class _Known(NamedTuple):
    """State of the tables that a round was planned by.

    `decided`: offsets that another load decided and whose rows are missing. `erased`: offsets that are left out.
    """

    decided: Mapping[int, Decided]
    erased: Mapping[int, Sequence[Range]]
    changes: tuple[FieldRule, ...]
    dead_metadata: Json
    dead_version: int


class ValuesLoader:
    """The load of a topic's values in progress."""

    def __init__(
        self,
        runner: LoadRunner,
        reader: ColdTopicReader,
        store: str,
        topic: str,
        url: str,
        rules: ValueRules | None,
        *,
        split_bytes: int | None = None,
        null_timestamps: bool = False,
        accept_deletes: bool = False,
    ) -> None:
        self.rows = 0
        self.dead = 0
        self.stops: dict[int, Stop] = {}
        self._runner = runner
        self._reader = reader
        self._store = store
        self._topic = topic
        self._url = url
        self._rules = rules
        self._split_bytes = split_bytes
        self._null_timestamps = null_timestamps
        self._accept_deletes = accept_deletes
        self._typed: TypedTable | None = None
        self._letters: DeadLetters | None = None
        self._erasures: ErasureReader | None = None
        self._requests: Counter[str] = Counter()
        self._has_logged = False
        self._has_read = False

    def begin(self, topic_id: str) -> None:
        """Opens the tables. Raises `Refused` if the typed table has other rules than the load was given."""
        if self._rules is None and urlsplit(self._url).scheme not in form.TABLE_SCHEMES:
            return
        if self._typed is None or self._typed.topic_id != topic_id:
            self.close()
            shared = self._runner.connect(self._url)
            self._typed = TypedTable(f"{self._url}{form.TYPED_SUFFIX}", self._topic, topic_id, shared)
            self._letters = DeadLetters(f"{self._url}{form.DEAD_SUFFIX}", self._topic, topic_id, shared)
            self._erasures = ErasureReader(self._url, topic_id, shared)
        self.stops = {}
        if self._rules is None and not self._typed.is_there():
            return
        self._typed.snapshot()
        self._rules = self._held_rules() or self._rules

    def _held_rules(self) -> ValueRules | None:
        """Returns the rules of the typed table, None without one. Raises `Refused` if the load was given others."""
        assert self._typed is not None
        held = self._typed.rules()
        if held is not None and self._rules is not None:
            _check_rules(self._typed.url, held, self._rules)
        return held

    @property
    def is_wanted(self) -> bool:
        """True if the topic has a typed table, or is to have one."""
        return self._rules is not None

    def close(self) -> None:
        """Closes the tables."""
        for each in (self._typed, self._letters, self._erasures):
            if each is not None:
                each.close()

    def count_requests(self) -> dict[str, int]:
        """Returns the number of requests so far by verb."""
        found = Counter(self._requests)
        for each in (self._typed, self._letters, self._erasures):
            if each is not None:
                found.update(each.count_requests())
        return dict(found)

    def run_round(self) -> tuple[bool, int]:
        """Runs one round. Returns true if it was committed or had nothing to commit, and the bytes of log left.

        False: another loader committed first. Raises `Unavailable` if a new plan may succeed.
        """
        typed, letters, erasures = self._typed, self._letters, self._erasures
        assert typed is not None and letters is not None and erasures is not None
        # The letters first: what the rows have then is decided.
        decided_ends = letters.check_sound(self._accept_deletes)
        loaded = typed.check_sound(self._accept_deletes)
        rules = self._rules = self._held_rules() or self._rules  # another load may have made the table meanwhile
        assert rules is not None
        if _is_behind(decided_ends, loaded):
            decided_ends = letters.loaded_offsets()
            if _is_behind(decided_ends, loaded):
                why = f"{letters.url} is behind {typed.url}: it was dropped or restored. {letters.repaired_by}"
                raise Refused(Code.INVALID_REQUEST, why)
        seen = typed.newest_mark.get("seen")
        if not self._has_read and seen is not None and seen == self._reader.list_digest(TopicId(typed.topic_id)):
            return True, 0
        self._has_read = True
        declared = form.declared_schema(rules)
        if not ((typed.exists or typed.set_schema(declared, rules)) and (letters.exists or letters.create_table())):
            return False, 0
        schema, changes = typed.schema(), typed.applied_rules()
        metadata, dead_metadata = typed.metadata, letters.metadata
        erased = join_ranges(erasures.read())
        topic = self._reader.read(self._topic, loaded)
        if topic.topic_id != typed.topic_id:
            raise Unavailable(f"topic {self._topic} was deleted and created again while it was loaded", final=True)
        for gap in find_expired_ranges(topic, loaded):
            log.warning("records expired before a typed table had them table=%s gap=%s", typed.url, gap)
        plan = next_round(topic, loaded, self._runner.tasks, self._split_bytes, self.stops)
        if not plan.files:
            return True, 0
        decided = self._find_decided(letters, plan, loaded, decided_ends)
        known = _Known(decided, erased, changes, dead_metadata, letters.version)
        results = self._convert(plan, schema, known)
        damaged = any(
            outcome.stop is not None and outcome.stop.damaged for result in results for outcome in result.outcomes
        )
        if damaged and has_missing_segments(plan.splits, self._reader.read(self._topic, loaded)):
            raise Unavailable(f"a planned segment of {self._topic} expired")
        agreed, results = self._agree(plan, schema, results, known)
        if select_columns(agreed) != select_columns(schema):
            if not typed.grow(agreed):
                return False, plan.bytes_left
            log.info(
                "columns of a typed table table=%s columns=%s", typed.url, describe_columns(select_columns(agreed))
            )
            metadata = typed.metadata
        return self._commit(plan, results, metadata, known, decided_ends), plan.bytes_left

    def _commit(
        self,
        plan: Round,
        results: Sequence[ValuesResult],
        metadata: Json,
        known: _Known,
        decided_ends: Mapping[int, int],
    ) -> bool:
        typed, letters = self._typed, self._letters
        assert typed is not None and letters is not None
        bounds = select_committable(plan, [ConversionResult(None, each.outcomes, {}) for each in results])
        taken = {(split.partition, split.start) for split in bounds.splits}
        kept = [
            each
            for planned, each in zip(plan.files, results, strict=True)
            if (planned[0].partition, planned[0].start) in taken
        ]
        files = [found.file for each in kept for found in each.files]
        dead = [each.dead for each in kept if each.dead is not None]
        steps = [
            Advance(step.partition, decided_ends.get(step.partition, -1), step.end)
            for step in bounds.advances
            if step.end > decided_ends.get(step.partition, -1)
        ]
        unchanged_since = known.dead_version if any(each.has_late_letters for each in kept) else None
        if (steps or dead) and not letters.append_letters(dead, steps, known.dead_metadata, unchanged_since):
            return False
        is_whole = not (plan.bytes_left or bounds.stops or self.stops)
        seen = self._reader.digest(TopicId(typed.topic_id)) if is_whole else None
        if bounds.advances and not typed.append(files, bounds.advances, metadata, seen=seen):
            return False
        self.rows += sum(file.rows for file in files)
        self.dead += sum(file.rows for file in dead)
        self.stops |= {stop.partition: stop for stop in bounds.stops}
        self._log_dead_letters(kept)
        return True

    def _log_dead_letters(self, results: Sequence[ValuesResult]) -> None:
        """Logs one notice for all dead letters of a load: the first one, and one that a rule makes a row of, with the
        command for it."""
        reason = next((reason for each in results for reason in each.reasons), "")
        if not reason or self._has_logged:
            return
        self._has_logged = True
        fields = ((strip_items(each.mistyped), each.mistyped_reason) for each in results)
        mistyped, of_rule = next(((field, why) for field, why in fields if field not in _WITHOUT_RULES), ((), ""))
        if mistyped:
            also = "" if of_rule == reason else f" also={of_rule}"
            reason += f"{also} rule={self._suggest_rule(mistyped)}"
        log.warning(
            "values do not fit and became dead letters topic=%s table=%s%s first=%s",
            self._topic,
            self._topic,
            form.DEAD_SUFFIX,
            reason,
        )

    def _suggest_rule(self, field: Path) -> str:
        """Returns the command that names a rule for values of another type."""
        warehouse = self._url.removesuffix(f"/{self._topic}")
        words = ["tiered", "table", "change", self._topic, format_path(field), "--move-to", f"{field[-1]}_2"]
        return shlex.join([*words, "--store", self._store, "--warehouse", warehouse])

    def _find_decided(
        self, letters: DeadLetters, plan: Round, loaded: Mapping[int, int], ends: Mapping[int, int]
    ) -> dict[int, Decided]:
        """Returns, for each partition of the plan, the offsets that another load decided and whose rows are missing."""
        ranges = {
            step.partition: (max(loaded.get(step.partition, 0), 0), ends[step.partition])
            for step in plan.advances
            if ends.get(step.partition, -1) > max(loaded.get(step.partition, -1), 0)
        }
        if not ranges:
            return {}
        return {number: Decided(ranges[number][1], dead) for number, dead in letters.offsets(ranges).items()}

    def _convert(self, plan: Round, schema: StructOf, known: _Known) -> list[ValuesResult]:
        return self._run([self._task(files, schema, known) for files in plan.files])

    def _task(self, files: FilePlan, schema: StructOf, known: _Known) -> ValuesTask:
        assert self._typed is not None and self._letters is not None
        mine = {split.partition: known.decided[split.partition] for split in files if split.partition in known.decided}
        erased = {
            split.partition: overlapping
            for split in files
            if (overlapping := overlaps(known.erased.get(split.partition, ()), split.start, split.end))
        }
        urls = self._typed.url, self._letters.url
        return ValuesTask(self._store, files, *urls, schema, mine, self._null_timestamps, erased, known.changes)

    def _run(self, tasks: Sequence[ValuesTask]) -> list[ValuesResult]:
        found = self._runner.run_tasks(f"could not convert values of {self._topic}", convert_values, tasks)
        for result in found:
            self._requests.update(result.requests)
        return found

    def _agree(
        self,
        plan: Round,
        schema: StructOf,
        results: Sequence[ValuesResult],
        known: _Known,
    ) -> tuple[StructOf, list[ValuesResult]]:
        """Returns one schema for all files of a round. Files that contradict it, or are narrower, are written again."""
        found = list(results)
        for _ in range(len(found) + 1):
            agreed = schema
            for each in found:
                try:
                    agreed = merge(agreed, each.schema)
                except Unfit:
                    continue
            wrong = [
                at
                for at, each in enumerate(found)
                if not all(is_stored_as(file.columns, select_columns(agreed)) for file in each.files)
            ]
            if not wrong:
                return agreed, found
            again = self._run([self._task(plan.files[at], agreed, known) for at in wrong])
            for at, result in zip(wrong, again, strict=True):
                found[at] = result
        raise Unavailable(f"the values of {self._topic} did not agree on columns", final=True)


_WITHOUT_RULES: tuple[Path, ...] = ((), (KEY,))
"""Fields that no rule names: none, one with the name of the items of an array, and the whole key."""

_RULES = (
    ("values of the kind", "no typed values", "--values"),
    ("the schema", "no declared schema", "--schema"),
    ("keys of the kind", "no typed keys", "--keys"),
    ("the key schema", "no declared key schema", "--key-schema"),
)
"""Each rule of a typed table in words, its absence, and its option."""


def _is_behind(decided: Mapping[int, int], loaded: Mapping[int, int]) -> bool:
    """True if offsets are loaded that were never decided."""
    return any(decided.get(number, -1) < end for number, end in loaded.items())


def _check_rules(url: str, held: ValueRules, given: ValueRules) -> None:
    """Raises `Refused` if a load was given other rules than the table has. An empty rule takes that of the table."""
    for has, wants, (rule, none, option) in zip(held, given, _RULES, strict=True):
        if wants and wants != has:
            text = f"{rule} `{has}` and not `{wants}`" if has else none
            raise Refused(Code.INVALID_REQUEST, f"{url} has {text}: load without {option}, or move the table away")
