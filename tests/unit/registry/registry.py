"""A registry without a broker: decisions are applied to its state at once, as the log would give them back."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.registry.deletion import decide_subject_deletion, decide_version_deletion
from tiered.registry.records import LEVEL, RegistryRecord, VersionWritten, read_record, write_rule
from tiered.registry.registration import Registration, decide, plan
from tiered.registry.schema import Reference, Schema
from tiered.registry.state import RegistryState


class Registry:
    """A state and its log."""

    def __init__(self, records: Sequence[RegistryRecord] = ()) -> None:
        self.state = RegistryState()
        self.log: list[RegistryRecord] = []
        self.append(records)

    def append(self, records: Sequence[RegistryRecord]) -> None:
        for each in records:
            self.log.append(each)
            fact = read_record(each.key, each.value)
            assert fact is not None, each
            self.state.apply(fact)

    def compact(self) -> Registry:
        """Returns a registry read from the log after compaction: the last record of each key, no tombstones."""
        last = {each.key: at for at, each in enumerate(self.log)}
        return Registry([each for at, each in enumerate(self.log) if last[each.key] == at and each.value is not None])

    def set_level(self, level: str, subject: str = "") -> None:
        self.append([write_rule(LEVEL, subject, {"compatibilityLevel": level})])

    def register(
        self, subject: str, text: str, *references: Reference, id: int = -1, version: int = -1
    ) -> VersionWritten:
        """Registers a text that no format judges."""
        wanted = Registration(subject, Schema(text, "JSON", references), id, version)
        done = decide(self.state, wanted, plan(self.state, wanted), [])
        assert done is not None
        self.append(done.records)
        return done.written

    def delete(self, subject: str, version: int | None = None, *, permanent: bool = False) -> list[int]:
        if version is None:
            made = decide_subject_deletion(self.state, subject, permanent=permanent)
        else:
            made = decide_version_deletion(self.state, subject, version, permanent=permanent)
        self.append(made.records)
        return made.versions
