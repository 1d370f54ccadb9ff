"""The broker that answers a fetch at an offset, from which tier, and what bounds or refuses the fetch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tiered.quotas.precedence import Limit
from tiered.quotas.validation import CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, STORE_REQUEST_RATE
from tiered.value import value
from tiered_api.explanation.cause import Cause, format_nodes
from tiered_api.explanation.partition import (
    PartitionFacts,
    explain_high_watermark,
    explain_replicas,
)
from tiered_api.explanation.segment import BUCKET_MEND, explain_damage, explain_outage_elsewhere
from tiered_api.explanation.transaction import HeldPartition, explain_last_stable
from tiered_api.kafka.protocol.messages.describe_log_dirs import DescribeLogDirsPartition, ReportedLeader

RESET_MEND = "a consumer goes on by its auto.offset.reset; `tiered group seek GROUP --to start` or `--to end` moves it"


QUOTAS: Mapping[str, str] = {
    CONSUMER_BYTE_RATE: "bytes a second",
    REQUEST_PERCENTAGE: "percent of the time of threads",
    STORE_REQUEST_RATE: "requests to the bucket a second",
}
"""The quotas that make a fetch wait, and what each counts."""


@value
class FetchFacts:
    """A fetch by a consumer, and the quotas that hold for its user and client id."""

    partition: PartitionFacts
    offset: int
    read_committed: bool
    limits: Sequence[Limit] = ()
    selects_nearest: bool = False
    """True if brokers send consumers to the nearest replica (KIP-392)."""


def explain_fetch(facts: FetchFacts) -> Iterator[Cause]:
    """Yields what a fetch gets, and why it gets no more."""
    leader, place = facts.partition.leader, facts.partition.leader_place
    if leader is None or place is None:
        yield from explain_replicas(facts.partition)
        return
    yield from _explain_place(facts, leader, place)
    if place.cleaned_to > facts.offset >= leader.log_start:
        said = f"compaction has cleaned the log below offset {place.cleaned_to}: a fetch passes over removed offsets"
        yield Cause("cleaned-log", said, {"cleaned_to_offset": place.cleaned_to})
    followers = sorted(node for node in facts.partition.image.isr if node != facts.partition.image.leader)
    if facts.selects_nearest and followers:
        said = f"a consumer with client.rack may be sent to a follower: {format_nodes(followers, 'or')}"
        yield Cause("nearest-replica", f"{said} (replica.selector.class)", {"followers": followers})
    yield from map(_describe_limit, facts.limits)


def _describe_limit(limit: Limit) -> Cause:
    """Returns above what use a quota makes fetches wait."""
    named = (("user", limit.user), ("client id", limit.client_id))
    who = " and ".join(f"{kind} {name}" for kind, name in named if name) or "each client"
    said = f"fetches of {who} wait above {limit.bound:g} {QUOTAS[limit.key]} ({limit.key})"
    values = {"key": limit.key, "bound": limit.bound, "user": limit.user or None, "client_id": limit.client_id or None}
    return Cause("quota", said, values)


def find_bound(leader: ReportedLeader, read_committed: bool) -> int:
    """Returns the offset behind the last record that a consumer gets."""
    return leader.last_stable if read_committed else leader.high_watermark


def _explain_place(facts: FetchFacts, leader: ReportedLeader, place: DescribeLogDirsPartition) -> Iterator[Cause]:
    offset, node = facts.offset, facts.partition.image.leader
    bound = find_bound(leader, facts.read_committed)
    named = "last stable offset" if facts.read_committed else "high watermark"
    values: dict[str, object] = {
        "offset": offset,
        "broker": node,
        "log_start_offset": leader.log_start,
        "local_start_offset": place.local_start,
        "bound": bound,
        "log_end_offset": place.log_end,
    }
    if offset < leader.log_start:
        said = f"offset {offset} is below the log start {leader.log_start}: retention or an operator deleted its record"
        yield Cause("below-start", f"{said}, and a fetch gets OFFSET_OUT_OF_RANGE", values, RESET_MEND)
    elif offset > max(place.log_end, bound):
        said = f"offset {offset} is above the log end {place.log_end}: a fetch gets OFFSET_OUT_OF_RANGE"
        yield Cause("above-end", said, values, RESET_MEND)
    elif offset >= bound:
        yield Cause("waits", f"a fetch at {offset} waits for records: the {named} is {bound}", values)
        yield from explain_high_watermark(facts.partition, leader, place.log_end)
        if facts.read_committed:
            yield from explain_last_stable(HeldPartition(facts.partition.tp, leader, facts.partition.transaction))
    elif offset >= place.local_start:
        yield Cause("from-disk", f"broker {node} answers from its disk, up to the {named} {bound}", values)
    elif leader.outage:
        why = f"{leader.outage} ({leader.outage_why})" if leader.outage_why else leader.outage
        said = f"only the bucket has offset {offset}: broker {node} cannot answer now: {why}"
        yield Cause("bucket-away", said, values, BUCKET_MEND)
    else:
        said = f"broker {node} answers from the bucket: its disk begins at offset {place.local_start}"
        yield Cause("from-bucket", said, values)
        yield from explain_outage_elsewhere(leader, facts.partition.bucket_away)
        yield from explain_damage(facts.partition.name, leader)
