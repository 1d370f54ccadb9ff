"""The reasons why a partition has no leader, refuses acks=all, or its offsets do not move.

The words on leaders and replicas are those of the cluster's health (`health.verdict`). The facts are of the metadata,
of the leader, and of each broker that has a replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from tiered.ids import TopicPartition
from tiered.metadata.parts.topics import Loss, PartitionImage
from tiered.time_text import format_seconds, format_time
from tiered.value import value
from tiered_api.explanation.cause import Cause, format_nodes, plural
from tiered_api.explanation.segment import (
    BUCKET_MEND,
    UPLOAD_MEND,
    describe_upload_lag,
    describe_waiting,
    explain_damage,
    explain_outage,
    explain_outage_elsewhere,
    is_upload_late,
)
from tiered_api.explanation.transaction import (
    TRANSACTION_MEND,
    HeldPartition,
    HoldingTransaction,
    explain_last_stable,
)
from tiered_api.health.verdict import LEADERLESS, UNDER_MIN_ISR, UNDER_REPLICATED, UnhealthyPartition
from tiered_api.kafka.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    ReportedFollower,
    ReportedLeader,
)

HELD_MS = 2_000
"""A follower that is behind for less is no trouble: fetches take their time."""
MOVE = "`tiered cluster reassign`"
UNCLEAN = "an election with UNCLEAN then takes what is left (`POST /tiered/v1/topics/TOPIC/elections`)"
REFUSED = "acks=all is refused: "
"""The begin of a reason that says what the sentence about the partition has said already."""
PROBLEMS: Mapping[str, str] = {
    LEADERLESS: "has no leader{since}",
    UNDER_MIN_ISR: "refuses acks=all{since}",
    UNDER_REPLICATED: "has replicas that are not in sync{since}, and writes go on",
}


@value
class PartitionFacts:
    """The facts of a partition. `places` has the reply of each broker with a replica, or why there is none;
    `unhealthy` is the verdict of the cluster's health."""

    tp: TopicPartition
    image: PartitionImage
    places: Mapping[int, DescribeLogDirsPartition | str]
    min_isr: int
    copies_to_bucket: bool
    lag_max_ms: int
    upload_max_lag_ms: int
    now_ms: int
    unhealthy: UnhealthyPartition | None = None
    since_ms: int = -1
    """Since when it has its first problem, -1 if it has none or if that is not known."""
    transaction: HoldingTransaction | None = None
    loss: Loss | None = None
    bucket_away: str = ""
    """An outage of the bucket that other brokers see."""
    live: frozenset[int] = frozenset()
    stopped: frozenset[int] = frozenset()
    """Brokers that stopped cleanly. The others that are not live may run and hang."""
    full_disks: frozenset[int] = frozenset()
    machines: Mapping[int, int] = field(default_factory=dict)
    """The machine of each broker that shares one with others."""

    @property
    def name(self) -> str:
        """Topic and partition."""
        return f"{self.tp.topic}/{self.tp.partition}"

    @property
    def leader_place(self) -> DescribeLogDirsPartition | None:
        """The reply of the leader, None without one."""
        found = self.places.get(self.image.leader)
        return None if isinstance(found, str) else found

    @property
    def leader(self) -> ReportedLeader | None:
        """The state of the leader, None if it does not reply."""
        place = self.leader_place
        return place.leader[0] if place is not None and place.leader else None


def explain_partition(facts: PartitionFacts) -> Iterator[Cause]:
    """Yields what holds a partition, and its state if nothing does."""
    yield from explain_replicas(facts)
    leader, place = facts.leader, facts.leader_place
    if leader is not None and place is not None:
        yield from _explain_disk(leader, facts.image.leader)
        yield from explain_high_watermark(facts, leader, place.log_end)
        yield from explain_last_stable(HeldPartition(facts.tp, leader, facts.transaction))
        yield from _explain_bucket(facts, leader)
    if facts.loss is not None:
        yield _describe_loss(facts, facts.loss)
    if facts.image.is_reassigning:
        part = facts.image
        yield Cause(
            "move",
            f"a move is under way: it adds {list(part.adding)} and removes {list(part.removing)}",
            {"adding": list(part.adding), "removing": list(part.removing)},
        )


# -- leader and replicas ----------------------------------------------------------------------------------------------


def explain_replicas(facts: PartitionFacts) -> Iterator[Cause]:
    """Yields the leader and the ISR, what they lack, and which brokers have copies."""
    part, found = facts.image, facts.unhealthy
    values: dict[str, object] = {
        "leader": part.leader if part.leader >= 0 else None,
        "leader_epoch": part.leader_epoch,
        "replicas": list(part.replicas),
        "isr": list(part.isr),
        "eligible": list(part.elr),
        "last_known": list(part.last_known),
        "min_isr": facts.min_isr,
    }
    if found is None:
        in_sync = f"{len(part.isr)} of {len(part.replicas)} replicas are in sync"
        yield Cause("leader", f"broker {part.leader} leads partition {facts.name}, and {in_sync}", values)
    else:
        problem = found.problems[0]
        since = f" since {format_time(facts.since_ms)}" if facts.since_ms >= 0 else ""
        said = f"partition {facts.name} {PROBLEMS[problem].format(since=since)}: {found.why.removeprefix(REFUSED)}"
        values |= {"problems": list(found.problems), "since_ms": facts.since_ms if facts.since_ms >= 0 else None}
        yield Cause(problem.lower(), said, values, _mend_problem(facts, problem))
    if found is not None and LEADERLESS in found.problems:
        yield from _explain_copies(facts)
        return
    silent = facts.places.get(part.leader)
    if isinstance(silent, str):
        mend = f"look at broker {part.leader}: `tiered cluster brokers`, and its log"
        yield Cause("leader-silent", f"the state of the leader is not known: {silent}", {"why": silent}, mend)
    leader, place = facts.leader, facts.leader_place
    if leader is not None and place is not None:
        outside = [each for each in leader.followers if each.node_id not in part.isr]
        for each in outside:
            yield _describe_follower(facts, leader, each, place.log_end)


def _mend_problem(facts: PartitionFacts, problem: str) -> str:
    part = facts.image
    missing = [node for node in part.replicas if node not in part.isr or node not in facts.live]
    if problem == LEADERLESS:
        awaited = sorted({*part.isr, *part.elr}) or list(part.last_known) or list(part.replicas)
        away = [node for node in awaited if node not in facts.live]
        if not away:
            return "the controller elects a leader by itself: see `tiered cluster health` if that takes long"
        every = "and" if not part.isr and not part.elr else "or"
        return f"{_mend_away(facts, away, every)}. If the disks are lost for good, {UNCLEAN}"
    acts = list(_list_acts(facts, missing))
    if problem == UNDER_MIN_ISR:
        return f"{'; '.join(acts)}; or move the replicas ({MOVE}), or lower min.insync.replicas of the topic"
    return f"{'; '.join(acts)}; or move the replicas ({MOVE})"


def _list_acts(facts: PartitionFacts, missing: Sequence[int]) -> Iterator[str]:
    """Yields what brings replicas back into the ISR, by the states of their brokers."""
    if away := [node for node in missing if node not in facts.live]:
        yield _mend_away(facts, away)
    if full := [node for node in missing if node in facts.live & facts.full_disks]:
        yield _mend_full(full)
    if behind := [node for node in missing if node in facts.live - facts.full_disks]:
        yield f"wait for {format_nodes(behind)}"


def _mend_away(facts: PartitionFacts, nodes: Sequence[int], every: str = "and") -> str:
    """Returns the act for brokers that are not live."""
    names = format_nodes(nodes, every)
    if facts.stopped.issuperset(nodes):
        return f"start {names} again"
    runs, them = ("runs", "it") if len(nodes) == 1 else ("run", "them")
    return f"see if {names} {runs}: start {them} again, and kill a process that hangs first"


def _mend_full(nodes: Sequence[int]) -> str:
    return f"give the disk{'s' if len(nodes) > 1 else ''} of {format_nodes(nodes)} room"


def _explain_copies(facts: PartitionFacts) -> Iterator[Cause]:
    """Yields what each broker with a replica has on its disk."""
    for node, place in sorted(facts.places.items()):
        name = f"broker {node} of machine {facts.machines[node]}" if node in facts.machines else f"broker {node}"
        if isinstance(place, str):
            yield Cause("copy-unknown", f"what the disk of {name} has is not known: {place}", {"broker": node})
        else:
            values = {"broker": node, "local_start_offset": place.local_start, "log_end_offset": place.log_end}
            said = f"the disk of {name} has offsets from {place.local_start} to {place.log_end}"
            yield Cause("copy", said, values)


def _describe_follower(facts: PartitionFacts, leader: ReportedLeader, each: ReportedFollower, log_end: int) -> Cause:
    """Returns how far a follower outside the ISR is behind, and since when."""
    values = {
        "broker": each.node_id,
        "offset": each.offset,
        "lag": log_end - each.offset,
        "caught_up_ms": each.caught_up_ms if each.caught_up_ms >= 0 else None,
        "fetched_ms": each.fetched_ms if each.fetched_ms >= 0 else None,
    }
    if each.fetched_ms < 0:
        since = f"since broker {facts.image.leader} leads ({format_time(leader.led_since_ms)})"
        said = f"broker {each.node_id} has not fetched {since}"
    else:
        lacks = f"lacks {plural(log_end - each.offset, 'record')}" if each.offset < log_end else "has all records"
        said = f"broker {each.node_id} {lacks}, and fetched last at {format_time(each.fetched_ms)}"
        if each.caught_up_ms >= 0 and each.offset < log_end:
            said = f"{said}; it had all records at {format_time(each.caught_up_ms)}"
    return Cause("follower-behind", said, values, _mend_follower(facts, each, log_end))


def _mend_follower(facts: PartitionFacts, each: ReportedFollower, log_end: int) -> str:
    """Returns the act for a follower outside the ISR; "" if it has all records and goes on fetching."""
    if each.node_id not in facts.live:
        return _mend_away(facts, [each.node_id])
    if each.node_id in facts.full_disks:
        return _mend_full([each.node_id])
    if each.offset >= log_end and facts.now_ms - each.fetched_ms <= facts.lag_max_ms:
        return ""
    return f"look at the log, the disk and the network of broker {each.node_id}"


# -- offsets ----------------------------------------------------------------------------------------------------------


def explain_high_watermark(facts: PartitionFacts, leader: ReportedLeader, log_end: int) -> Iterator[Cause]:
    """Yields what the high watermark waits for."""
    waiting = log_end - leader.high_watermark
    values: dict[str, object] = {"high_watermark": leader.high_watermark, "log_end_offset": log_end}
    if waiting <= 0:
        said = f"all records below {leader.high_watermark} are committed" if log_end else "no record was written yet"
        yield Cause("high-watermark", said, values)
        return
    said = f"the high watermark is {leader.high_watermark}, and {plural(waiting, 'record')} above it are not committed"
    in_sync, wanted = facts.image.isr, min(facts.min_isr, len(facts.image.replicas))
    if len(in_sync) < wanted:
        missing = [node for node in facts.image.replicas if node not in in_sync]
        why = f"it moves only with {wanted} replicas in sync (min.insync.replicas), and {len(in_sync)} are"
        mend = _mend_problem(facts, UNDER_MIN_ISR)
        yield Cause("high-watermark-held", f"{said}: {why}", values | {"missing": missing}, mend)
        return
    slow = [each for each in leader.followers if each.node_id in in_sync and each.offset <= leader.high_watermark]
    if slow:
        behind = [(facts.now_ms - max(each.caught_up_ms, leader.led_since_ms)) for each in slow]
        names = format_nodes([each.node_id for each in slow])
        have, age = ("have", "has")[len(slow) == 1], format_seconds(max(behind) / 1000)
        why = f"{names} {have} not fetched them for {age}" if max(behind) > HELD_MS else f"{names} {have} to fetch them"
        limit = f"replica.lag.time.max.ms={facts.lag_max_ms} takes a slow one out of the ISR"
        full = [each.node_id for each in slow if each.node_id in facts.full_disks]
        act = _mend_full(full) if full else f"look at the disk and the network of {names}"
        mend = f"{act}; {limit}" if full or max(behind) > HELD_MS else ""
        values |= {"followers": [each.node_id for each in slow], "behind_ms": max(behind)}
        yield Cause("high-watermark-held", f"{said}: {why}", values, mend)
    elif leader.position < log_end:
        why = "they wait for an fsync of the leader (flush=ack)"
        yield Cause("high-watermark-fsync", f"{said}: {why}", values | {"position": leader.position})
    else:
        yield Cause("high-watermark-isr", f"{said}: a change of the ISR is under way", values)


# -- disk, bucket, losses ---------------------------------------------------------------------------------------------


def _explain_disk(leader: ReportedLeader, node: int) -> Iterator[Cause]:
    if leader.disk_problem:
        mend = f"give the disk of broker {node} room, or move partitions off it (`tiered cluster decommission`)"
        yield Cause("disk", f"broker {node}: {leader.disk_problem}", {"broker": node}, mend)


def _explain_bucket(facts: PartitionFacts, leader: ReportedLeader) -> Iterator[Cause]:
    """Yields how far the records are in the bucket, and what keeps the others from it."""
    values = {
        "cold_end_offset": leader.cold_end or None,
        "waiting_segments": leader.waiting_segments,
        "waiting_bytes": leader.waiting_bytes,
        "upload_lag_ms": leader.upload_lag_ms,
    }
    if not facts.copies_to_bucket:
        said = "the topic copies nothing to the bucket (remote.storage.enable, remote.log.copy.disable)"
        yield Cause("tier-off", said, values)
        return
    below = (
        f"the bucket has the records below offset {leader.cold_end}" if leader.cold_end else "the bucket has no record"
    )
    yield Cause("in-bucket", f"{below}, and {describe_waiting(leader.waiting_segments)}", values)
    yield from explain_outage(leader)
    yield from explain_outage_elsewhere(leader, facts.bucket_away)
    yield from explain_damage(facts.name, leader)
    if leader.upload_problem and not leader.outage:
        said = f"tiering of {facts.name} fails: {leader.upload_problem}"
        yield Cause("upload-fails", said, {"why": leader.upload_problem}, BUCKET_MEND)
    if not leader.outage and is_upload_late(leader, facts.upload_max_lag_ms):
        said = f"uploads are behind: {describe_upload_lag(leader, facts.upload_max_lag_ms)}"
        held = leader.last_stable < leader.high_watermark
        yield Cause("uploads-behind", said, values, TRANSACTION_MEND if held else UPLOAD_MEND)


def _describe_loss(facts: PartitionFacts, loss: Loss) -> Cause:
    said = f"acknowledged records of partition {facts.name} may be gone from offset {loss.from_offset} on"
    values = {"from_offset": loss.from_offset, "leader_epoch": loss.leader_epoch, "at_ms": loss.at_ms}
    mend = "`tiered cluster losses` lists them; `tiered cluster losses acknowledge` ends the problem"
    return Cause("possible-loss", f"{said}, reported at {format_time(loss.at_ms)}", values, mend)
