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
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pyspark_tiered.delta.table_form import Advance, Range
from pyspark_tiered.load.convert import ConversionTask
from pyspark_tiered.load.iceberg_property import export_iceberg
from pyspark_tiered.load.rounds import CommittableRound, ConversionResult, FilePlan, Round
from pyspark_tiered.load.table_loader import Convert, LoadEngine
from pyspark_tiered.proof.erasures import ErasureReader, join_ranges, overlaps
from pyspark_tiered.schemas.registry import ANY_REGISTRY, RegistryChoice
from pyspark_tiered.schemas.sorting import RegisteredKinds
from pyspark_tiered.typed import form
from pyspark_tiered.typed.changes import FieldRule, format_path, strip_items
from pyspark_tiered.typed.convert import Decided, ValuesForm
from pyspark_tiered.typed.evolve import Path, Unfit, is_stored_as, merge
from pyspark_tiered.typed.form import ValueRules
from pyspark_tiered.typed.kinds import StructOf, describe_columns, select_columns
from pyspark_tiered.typed.names import KEY
from pyspark_tiered.typed.tables import DeadLetters, Json, TypedTable
from tiered.errors import Code, Refused, Unavailable

log = logging.getLogger(__name__)


class _Round(NamedTuple):
    """State of the tables that a round was planned by.

    `decided`: offsets that another load decided and whose rows are missing. `erased`: offsets that are left out.
    """

    schema: StructOf
    changes: tuple[FieldRule, ...]
    metadata: Json
    dead_metadata: Json
    dead_version: int
    erased: Mapping[int, Sequence[Range]]
    registered: RegisteredKinds | None = None
    decided: Mapping[int, Decided] = {}


class ValuesTarget:
    """The typed table of a topic, with its dead letters, as the target of a load."""

    def __init__(
        self,
        engine: LoadEngine,
        store: str,
        topic: str,
        url: str,
        rules: ValueRules | None,
        null_timestamps: bool = False,
        accept_deletes: bool = False,
        registry: RegistryChoice = ANY_REGISTRY,
        brokers: Callable[[], tuple[str, ...]] = tuple,
        *,
        iceberg: bool = False,
    ) -> None:
        """`registry` is what a user says of the registry of schemas; `brokers` finds the brokers that have one.
        `iceberg` asks for metadata of Iceberg of both tables."""
        self.rows = 0
        self.dead = 0
        self.url = f"{url}{form.TYPED_SUFFIX}"
        self.topic_id = ""
        self._engine = engine
        self._store = store
        self._topic = topic
        self._raw_url = url
        self._rules = rules
        self._null_timestamps = null_timestamps
        self._accept_deletes = accept_deletes
        self._registry = registry
        self._brokers = brokers
        self._asks_for_iceberg = iceberg
        self._typed: TypedTable | None = None
        self._letters: DeadLetters | None = None
        self._erasures: ErasureReader | None = None
        self._round: _Round | None = None
        self._decided_ends: dict[int, int] = {}
        self._has_logged = False
        self._has_told_frames = False

    def begin(self, topic_id: str) -> None:
        """Opens the tables. Raises `Refused` if the typed table has other rules than the load was given."""
        if self._rules is None and urlsplit(self._raw_url).scheme not in form.TABLE_SCHEMES:
            return
        if self._typed is None or self._typed.topic_id != topic_id:
            self.close()
            shared = self._engine.connect(self._raw_url)
            self.topic_id = topic_id
            self._typed = TypedTable(self.url, self._topic, topic_id, shared)
            self._letters = DeadLetters(f"{self._raw_url}{form.DEAD_SUFFIX}", self._topic, topic_id, shared)
            self._erasures = ErasureReader(self._raw_url, topic_id, shared)
            if self._asks_for_iceberg:
                self._typed.iceberg.ask()
                self._letters.iceberg.ask()
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

    def export_iceberg(self) -> None:
        """Writes the metadata of Iceberg that the tables lack. Raises `Refused` if Iceberg cannot have a table."""
        for each in (self._typed, self._letters):
            if each is not None and each.holds_topic:
                export_iceberg(each)

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
        found = Counter[str]()
        for each in (self._typed, self._letters, self._erasures):
            if each is not None:
                found.update(each.count_requests())
        return dict(found)

    @property
    def was_found(self) -> bool:
        """True: a round begins with both tables."""
        return True

    @property
    def newest_mark(self) -> Mapping[str, Any]:
        """Returns the mark of the newest commit to the typed table at the last check."""
        assert self._typed is not None
        return self._typed.newest_mark

    def check_sound(self) -> dict[int, int]:
        """Checks both tables. Returns the loaded offsets of the typed one."""
        typed, letters = self._typed, self._letters
        assert typed is not None and letters is not None
        # The letters first: what the rows have then is decided.
        self._decided_ends = letters.check_sound(self._accept_deletes)
        loaded = typed.check_sound(self._accept_deletes)
        self._rules = self._held_rules() or self._rules  # another load may have made the table meanwhile
        if _is_behind(self._decided_ends, loaded):
            self._decided_ends = letters.loaded_offsets()
            if _is_behind(self._decided_ends, loaded):
                why = f"{letters.url} is behind {typed.url}: it was dropped or restored. {letters.repaired_by}"
                raise Refused(Code.INVALID_REQUEST, why)
        return loaded

    def prepare(self) -> bool:
        """Creates the tables that are not there, and reads what a round is planned by."""
        typed, letters, erasures, rules = self._typed, self._letters, self._erasures, self._rules
        assert typed is not None and letters is not None and erasures is not None and rules is not None
        is_there = typed.exists or typed.set_schema(form.declared_schema(rules), rules, self._registry.url)
        if not (is_there and (letters.exists or letters.create_table())):
            return False
        self._round = _Round(
            typed.schema(),
            typed.applied_rules(),
            typed.metadata,
            letters.metadata,
            letters.version,
            join_ranges(erasures.read()),
            typed.registered_kinds(self._registry, self._brokers),
        )
        return True

    def plan(self, plan: Round, loaded: Mapping[int, int]) -> None:
        """Reads which offsets another load decided, without their rows."""
        assert self._round is not None and self._letters is not None
        decided = self._find_decided(self._letters, plan, loaded, self._decided_ends)
        self._round = self._round._replace(decided=decided)

    def task(self, splits: FilePlan) -> ConversionTask:
        """Returns the task that converts splits of the round."""
        known, letters = self._round, self._letters
        assert known is not None and letters is not None
        mine = {each.partition: known.decided[each.partition] for each in splits if each.partition in known.decided}
        erased = {
            split.partition: overlapping
            for split in splits
            if (overlapping := overlaps(known.erased.get(split.partition, ()), split.start, split.end))
        }
        values = ValuesForm(self.url, letters.url, known.schema, mine, erased, known.changes, known.registered)
        return ConversionTask(self._store, splits, values, self._null_timestamps)

    def agree(self, plan: Round, results: Sequence[ConversionResult], again: Convert) -> list[ConversionResult] | None:
        """Gives the table one schema for all files of a round. Files that contradict it, or are narrower, are written
        again."""
        known, typed = self._round, self._typed
        assert known is not None and typed is not None
        found, schema = list(results), known.schema
        for _ in range(len(found) + 1):
            agreed = schema
            for each in found:
                try:
                    agreed = merge(agreed, each.schema)
                except Unfit:
                    continue
            wanted = select_columns(agreed)
            wrong = [
                at
                for at, each in enumerate(found)
                if not all(is_stored_as(columns, wanted) for columns in each.columns)
            ]
            if not wrong:
                break
            self._round = known._replace(schema=agreed)
            for at, result in zip(wrong, again([plan.files[at] for at in wrong]), strict=True):
                found[at] = result
        else:
            raise Unavailable(f"the values of {self._topic} did not agree on columns", final=True)
        if wanted != select_columns(schema):
            if not typed.grow(agreed):
                return None
            log.info("columns of a typed table table=%s columns=%s", typed.url, describe_columns(wanted))
            self._round = known._replace(metadata=typed.metadata)
        return found

    def commit(self, plan: Round, found: CommittableRound, seen: str | None) -> bool:
        """Commits the dead letters, and then the rows."""
        typed, letters, known = self._typed, self._letters, self._round
        assert typed is not None and letters is not None and known is not None
        dead = [file for each in found.results for file in each.letters]
        ends = self._decided_ends
        steps = [
            Advance(step.partition, ends.get(step.partition, -1), step.end)
            for step in found.advances
            if step.end > ends.get(step.partition, -1)
        ]
        unchanged_since = known.dead_version if any(each.has_late_letters for each in found.results) else None
        if (steps or dead) and not letters.commit(
            dead, steps, metadata=known.dead_metadata, unchanged_since=unchanged_since
        ):
            return False
        if found.advances and not typed.commit(found.files, found.advances, metadata=known.metadata, seen=seen):
            return False
        self.rows += sum(file.rows for file in found.files)
        self.dead += sum(file.rows for file in dead)
        self._log_dead_letters(found.results)
        return True

    def _log_dead_letters(self, results: Sequence[ConversionResult]) -> None:
        """Logs one notice for all dead letters of a load: the first one, and one that a rule makes a row of, with the
        command for it."""
        if not self._has_told_frames and any(each.has_frames for each in results):
            self._has_told_frames = True
            log.warning("values have frames of a schema registry, which are skipped topic=%s", self._topic)
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
        warehouse = self._raw_url.removesuffix(f"/{self._topic}")
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
