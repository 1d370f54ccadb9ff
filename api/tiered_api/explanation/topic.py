"""The settings that keep and clean the records of a topic, what is not in the bucket, and what its partitions lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from tiered.compaction.cleanable_range import COMPACT, DELETE
from tiered.config.settings import TopicConfig
from tiered.value import value
from tiered_api.explanation.cause import Cause, describe_rest, first_of, plural
from tiered_api.explanation.partition import PROBLEMS
from tiered_api.explanation.segment import BUCKET_MEND
from tiered_api.explanation.transaction import HeldPartition, explain_held_partitions
from tiered_api.health.verdict import UnhealthyPartition

SHOWN = (
    "cleanup.policy", "retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes", "segment.bytes",
    "segment.ms", "remote.storage.enable", "remote.log.copy.disable", "min.insync.replicas",
    "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms", "delete.retention.ms",
)  # fmt: skip
"""The settings that say what becomes of records."""


class TopicSetting(NamedTuple):
    """A setting in force, and its source by Kafka's name."""

    value: str | None
    source: str


class PartitionTiers(NamedTuple):
    """The offsets of a partition by its leader, None where they are not known; `error` if the leader does not reply."""

    partition: int
    cold_end: int | None = None
    high_watermark: int | None = None
    log_start: int | None = None
    local_bytes: int | None = None
    cold_bytes: int | None = None
    last_stable: int | None = None
    error: str = ""

    @property
    def is_held(self) -> bool:
        """True if an open transaction holds committed records."""
        return self.last_stable is not None and self.last_stable < (self.high_watermark or 0)


@value
class TopicFacts:
    """The facts of a topic."""

    topic: str
    config: TopicConfig
    settings: Mapping[str, TopicSetting]
    tiers: Sequence[PartitionTiers]
    unhealthy: Sequence[UnhealthyPartition]
    held: Sequence[HeldPartition] = field(default_factory=tuple)
    """The first partitions that an open transaction holds."""
    bucket_away: str = ""
    """An outage of the bucket."""


def explain_topic(facts: TopicFacts) -> Iterator[Cause]:
    """Yields what the settings of a topic do, and what is not as it should be."""
    yield from _explain_health(facts)
    yield from explain_held_partitions(facts.held, sum(each.is_held for each in facts.tiers))
    yield from _explain_retention(facts)
    yield from _explain_tiers(facts)


def _explain_health(facts: TopicFacts) -> Iterator[Cause]:
    for each in first_of(facts.unhealthy):
        number = each.partition
        said = f"partition {each.name} {PROBLEMS[each.problems[0]]}: {each.why}"
        values = {"partition": number, "problems": list(each.problems)}
        yield Cause("unhealthy", said, values, f"see `tiered explain partition {facts.topic} {number}`")
    yield from describe_rest("unhealthy", facts.unhealthy, "partitions lack a leader or replicas")
    silent = [each for each in facts.tiers if each.error]
    for tiers in first_of(silent):
        mend = f"see `tiered explain partition {facts.topic} {tiers.partition}`"
        said = f"the leader of partition {facts.topic}/{tiers.partition} does not say where its records are"
        yield Cause("leader-silent", f"{said}: {tiers.error}", {"partition": tiers.partition}, mend)
    yield from describe_rest("leader-silent", silent, "leaders do not say where their records are")
    if not facts.unhealthy and not silent:
        said = f"topic {facts.topic} has {plural(len(facts.tiers), 'partition')}, each with its leader and replicas"
        yield Cause("healthy", said, {"partitions": len(facts.tiers)})


def _explain_retention(facts: TopicFacts) -> Iterator[Cause]:
    config = facts.config
    if DELETE in config.cleanup_policy:
        limits = [_name(facts, name) for name in ("retention.ms", "retention.bytes") if _number(facts, name) >= 0]
        said = f"records are deleted by {' and '.join(limits)}" if limits else "no limit deletes records"
        yield Cause(
            "retention", f"{said}: {_name(facts, 'cleanup.policy')}", _values(facts, "retention.ms", "retention.bytes")
        )
    if COMPACT in config.cleanup_policy:
        ratio = _name(facts, "min.cleanable.dirty.ratio")
        said = f"compaction keeps the last record of each key, and runs above {ratio}"
        yield Cause("compaction", said, _values(facts, *SHOWN[-4:]))
    if not config.cleanup_policy:
        yield Cause("kept", "no record is deleted or cleaned: cleanup.policy is empty", {})
    if config.copies_to_bucket:
        names = ("local.retention.ms", "local.retention.bytes")
        said = f"disks keep copies of what the bucket has by {' and '.join(_name(facts, name) for name in names)}"
        yield Cause("local-retention", f"{said}; -2 stands for the total retention", _values(facts, *names))


def _explain_tiers(facts: TopicFacts) -> Iterator[Cause]:
    """Yields what the bucket lacks."""
    if facts.bucket_away and facts.config.copies_to_bucket:
        yield Cause("bucket-away", facts.bucket_away, {}, BUCKET_MEND)
    known = [each for each in facts.tiers if not each.error and each.high_watermark is not None]
    lacking = {
        each.partition: missing
        for each in known
        if (missing := (each.high_watermark or 0) - max(each.cold_end or 0, each.log_start or 0)) > 0
    }
    largest = sorted(lacking.items(), key=lambda each: -each[1])
    values = {
        "records": sum(lacking.values()),
        "partitions": {str(number): count for number, count in first_of(largest)},
        "local_bytes": sum(each.local_bytes or 0 for each in known),
        "cold_bytes": sum(each.cold_bytes or 0 for each in known),
    }
    if not facts.config.copies_to_bucket:
        off = "remote.storage.enable" if not facts.config.remote_storage_enable else "remote.log.copy.disable"
        said = f"records are on disks alone, because of {_name(facts, off)}"
        wanted = "true" if off == "remote.storage.enable" else "false"
        yield Cause("tier-off", said, values, f"`tiered topic alter {facts.topic} -s {off}={wanted}` copies them")
    elif not lacking:
        yield Cause("all-in-bucket", "the bucket has all committed records", values)
    else:
        said = f"{values['records']} committed records in {plural(len(lacking), 'partition')} are not in the bucket"
        waits = "open segments close by segment.bytes, segment.ms and tiered.upload.max.lag.ms"
        see = "`tiered explain partition` says what holds the others"
        yield Cause("not-in-bucket", f"{said}: {waits}; {see}", values)


def _name(facts: TopicFacts, name: str) -> str:
    """Returns a setting as people write it, with its source."""
    found = facts.settings.get(name)
    return name if found is None else f"{name}={found.value} ({found.source.removesuffix('_CONFIG').lower()})"


def _number(facts: TopicFacts, name: str) -> int:
    found = facts.settings.get(name)
    return int(found.value or 0) if found is not None else 0


def _values(facts: TopicFacts, *names: str) -> dict[str, object]:
    return {name: facts.settings[name]._asdict() for name in names if name in facts.settings}
