"""Verdicts on the records of batches by a state of the schema registry, remembered while that state stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tiered.config.settings import TopicConfig
from tiered.hosting.record_frames import NUMBERS_MAX, BatchFrames, collect_frames
from tiered.hot.batch_opening import is_small, run_in_turn
from tiered.hot.validation import RecordFaults
from tiered.ports import Buffer
from tiered.registry.formats import list_record_names
from tiered.registry.record_validation import KEY, VALUE, SubjectRule, find_fault, find_schema
from tiered.registry.refusals import RegistryRefused
from tiered.registry.registration import Resolved, resolve
from tiered.registry.schema import Schema
from tiered.registry.state import RegistryState
from tiered.registry.subjects import DEFAULT_CONTEXT

VERDICTS_MAX = 10_000
"""Most frames that are remembered as good."""
NAMES_MAX = 1_000
"""Most schemas whose names of records are remembered."""


class RecordJudge:
    """The frames that are known to be good, and the names of records in schemas."""

    def __init__(self) -> None:
        self._good: set[tuple[SubjectRule, bytes]] = set()
        self._judged_by: tuple[RegistryState, int] | None = None
        """The state of the good frames, and its number of changes."""
        self._names: dict[Schema, Sequence[str]] = {}

    async def collect(self, topic: str, config: TopicConfig, data: Buffer, owner: str) -> list[BatchFrames]:
        """Returns the frames of each batch. Raises `Refused` if a thread could not read them in time."""
        rules = list_rules(topic, config)
        if is_small(data):
            return collect_frames(data, rules)
        return await run_in_turn(partial(collect_frames, bytes(data), rules), owner)

    async def find_faults(self, state: RegistryState, batches: Sequence[BatchFrames], owner: str) -> list[RecordFaults]:
        """Returns the faulty records of each batch. Raises `Refused` if a schema could not be parsed in time."""
        names = await self._find_names(state, batches, owner)
        if self._judged_by is None or self._judged_by[0] is not state or self._judged_by[1] != state.changes:
            self._good.clear()
            self._judged_by = (state, state.changes)
        return [self._judge_batch(state, batch, names) for batch in batches]

    def _judge_batch(
        self, state: RegistryState, batch: BatchFrames, names: Mapping[bytes, Sequence[str]]
    ) -> RecordFaults:
        if batch.why:
            return ((0, f"cannot be read: {batch.why}"),)
        faults: list[tuple[int, str]] = []
        for rule, frames in batch.records.items():
            for frame, numbers in frames.items():
                if (rule, frame) in self._good:
                    continue
                why = find_fault(state, rule, frame, names.get(frame, ()))
                if not why:
                    self._remember(rule, frame)
                    continue
                faults += ((number, why) for number in numbers)
                if len(faults) >= NUMBERS_MAX:
                    return sorted(faults)[:NUMBERS_MAX]
        return tuple(sorted(faults))

    def _remember(self, rule: SubjectRule, frame: bytes) -> None:
        if len(self._good) >= VERDICTS_MAX:
            self._good.clear()
        self._good.add((rule, frame))

    # -- names of records ---------------------------------------------------------------------------------------------

    async def _find_names(
        self, state: RegistryState, batches: Sequence[BatchFrames], owner: str
    ) -> dict[bytes, Sequence[str]]:
        """Returns the names of records in the schemas of the frames, where a rule needs them, also of good frames: they
        may be judged anew before this returns. Only schemas that exist are parsed, each once."""
        names: dict[bytes, Sequence[str]] = {}
        for batch in batches:
            for rule, frames in batch.records.items():
                for frame in frames if rule.needs_record_names else ():
                    if (found := find_schema(state, frame)) is not None:
                        uses = state.find_uses(DEFAULT_CONTEXT, found.id, deleted=True)
                        names[frame] = await self._list_names(state, uses[0][0], found.schema, owner)
        return names

    async def _list_names(self, state: RegistryState, subject: str, schema: Schema, owner: str) -> Sequence[str]:
        """Returns the names in a schema of this subject; none if it cannot be parsed."""
        known = self._names.get(schema)
        if known is None:
            try:
                known = await run_in_turn(partial(_parse_names, resolve(state, subject, schema)), owner)
            except RegistryRefused:
                known = ()
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            self._names[schema] = known
        return known


def list_rules(topic: str, config: TopicConfig) -> list[SubjectRule]:
    """Returns the rules of a topic, none without validation."""
    rules = []
    if config.confluent_key_schema_validation:
        rules.append(SubjectRule(topic, KEY, config.confluent_key_subject_name_strategy))
    if config.confluent_value_schema_validation:
        rules.append(SubjectRule(topic, VALUE, config.confluent_value_subject_name_strategy))
    return rules


def _parse_names(resolved: Resolved) -> Sequence[str]:
    return tuple(list_record_names(resolved))
