"""The health report of one broker: if it serves, its problems, and since when it has them.

A broker that serves is `ok`. A degraded broker (a full disk, an unreachable bucket) still serves what it can. It is
`ok` too and names its problems, because a restart would not help. A broker that failed is not `ok`. A broker whose
credentials come from the environment is not `ok` while the store refuses them: only a restart gives it new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from tiered.broker.stored_segments import UPLOAD_GRACE_MS
from tiered.cold.read_backoff import DamagedObject
from tiered.controller.partition_health import (
    PartitionHealth,
    broker_state,
    describe_leaderless,
    describe_out_of_sync,
    unacknowledged_losses,
)
from tiered.coordination.late_transactions import LateTransaction
from tiered.coordination.offsets_beyond_end import OffsetBeyondEnd
from tiered.ids import TopicPartition
from tiered.metadata.changes import DISK_STALLED
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import Loss, PartitionImage
from tiered.metadata.topic_names import INTERNAL
from tiered.object_store.metered import Outage
from tiered.peers import ClockComparison
from tiered.replication.disk_state import DiskState
from tiered.replication.leader_replica import LeaderReplica
from tiered.time_text import format_time
from tiered.value import value

LISTED_MAX = 20
"""Most sentences for one kind of problem."""
FULL_DISK_MEND = "give it room, or lower local.retention.ms and local.retention.bytes of topics"
STALL_MEND = "look at the disk: `dmesg` names one that fails, `iostat` one that is overloaded"
DEAD_DISK_MEND = "replace the disk, and start the broker with an empty data directory"
NAMED_MAX = 5
"""Most partitions that one sentence names."""


@value
class Health:
    """The report of one broker: `problems` are sentences for people, `details` are numbers for programs.

    `own_problems` are those of this broker alone. Every broker of the cluster reports the others too.
    """

    ok: bool
    problems: list[str]
    details: dict[str, Any]
    own_problems: list[str]


def assess_health(
    *,
    failure: str,
    started: bool,
    waits_for_store: bool,
    disk: DiskState,
    outage: Outage | None,
    waiting_segments: int,
    copy_lag_ms: int,
    copy_lag_max_ms: int,
    pending_metadata: int,
    metadata_trouble: str,
    pots: Iterable[str],
    process: Iterable[str],
    missing_keys: Iterable[str],
    certificates: Iterable[str],
    clocks: tuple[Iterable[str], Iterable[str]],
    fenced: Iterable[str],
    clock_comparisons: Mapping[int, ClockComparison],
    unserved: dict[str, str],
    replicas: Sequence[LeaderReplica],
    replica_count: int,
    image: Image,
    partition_health: PartitionHealth,
    late_transactions: Sequence[LateTransaction],
    beyond_ends: Sequence[OffsetBeyondEnd],
    holding: LateTransaction | None,
    uncleanable: Mapping[TopicPartition, str],
    damaged: Sequence[DamagedObject],
    now_ms: int,
    contact_lost: str,
) -> Health:
    """Returns the report of a broker from the states of its parts.

    `replicas` are those that lead, out of `replica_count`. `waits_for_store`: the start waits for an unreachable store.
    `copy_lag_ms`: age of the oldest record that is not in the bucket; `copy_lag_max_ms` is its limit; `holding` is the
    open transaction whose end the upload of that record waits for, if there is one. `clocks` are
    problems of this broker's clock, and of others that it finds as controller; `clock_comparisons` has the numbers.
    `fenced` names other brokers. `damaged` are objects in the bucket that the last cold reads found missing or damaged.
    `contact_lost`: why this broker has no contact with the controller; "" if it has.
    """
    problems = list(_describe_not_serving(failure, waits_for_store=waits_for_store, started=started))
    problems += [f"{said} ({mend})" for said, mend in describe_disk(disk)]
    if outage is not None:
        backlog = (
            f"the oldest record outside the bucket has been here for {copy_lag_ms / 1000:.0f} s,"
            f" {waiting_segments} closed segments wait for upload"
            if copy_lag_ms
            else "all records are in the bucket"
        )
        waiting = f", {pending_metadata} changes of metadata wait" if pending_metadata else ""
        problems.append(f"{describe_outage(outage)}: {backlog}{waiting} ({outage.why})")
    elif metadata_trouble:
        problems.append(f"{pending_metadata} changes of metadata wait: {metadata_trouble}")
    problems += pots
    problems += process
    problems += missing_keys
    problems += certificates
    own_clock, other_clocks = clocks
    problems += own_clock
    problems += [f"partition {name} is not served: {why}" for name, why in list(unserved.items())[:LISTED_MAX]]
    stuck = {str(replica.tp): replica.upload_problem for replica in replicas if replica.upload_problem}
    if outage is None:
        problems += [f"tiering of {name} fails: {why}" for name, why in list(stuck.items())[:LISTED_MAX]]
        if copy_lag_ms > copy_lag_max_ms + UPLOAD_GRACE_MS:
            problems.append(
                f"uploads are behind: the oldest record outside the bucket has been here for"
                f" {copy_lag_ms / 1000:.0f} s, tiered.upload.max.lag.ms is {copy_lag_max_ms}"
                f"{_describe_holding(holding)}"
            )
    problems += _describe_late_transactions(late_transactions)
    problems += _describe_beyond_ends(beyond_ends)
    problems += [f"compaction of {tp} stopped: {why}" for tp, why in islice(uncleanable.items(), LISTED_MAX)]
    problems += _describe_damaged(damaged, image, now_ms)
    bad_disks = _find_bad_disks(image)
    own = image.brokers.get(partition_health.node_id)
    own_disk = bad_disks.pop(own.machine) if own is not None and own.bad_disk else None
    if own_disk is not None and own_disk.moved_leaders:
        problems.append(own_disk.describe())
    if started and contact_lost:
        problems.append(contact_lost)
    own_problems = problems.copy()
    problems += islice(other_clocks, LISTED_MAX)
    problems += fenced
    problems += [each.describe() for each in bad_disks.values()]
    problems += _describe_partitions(image, partition_health)
    lost = unacknowledged_losses(image)
    problems += _describe_losses(lost)
    details = {
        "led_partitions": len(replicas),
        "followed_partitions": replica_count - len(replicas),
        "controller": image.controller,
        "brokers": {str(broker.node_id): broker_state(broker) for _, broker in sorted(image.brokers.items())},
        "full_disks": [node for node, each in sorted(image.brokers.items()) if each.is_disk_full],
        "stalled_disks": [node for node, each in sorted(image.brokers.items()) if each.bad_disk == DISK_STALLED],
        "leaderless_partitions": len(partition_health.leaderless),
        "under_min_isr_partitions": len(partition_health.under_min_isr),
        "under_replicated_partitions": len(partition_health.under_replicated),
        "late_transactions": [_late_details(late) for late in late_transactions[:LISTED_MAX]],
        "offsets_beyond_end": len(beyond_ends),
        "uncleanable_partitions": len(uncleanable),
        "damaged_objects": len(damaged),
        "waiting_segments": waiting_segments,
        "copy_lag_ms": copy_lag_ms,
        "pending_metadata": pending_metadata,
        "store_unreachable_since_ms": outage.since_ms if outage else None,
        "disk_full_since_ms": disk.full.since_ms if disk.full else None,
        "disk_stalled_since_ms": disk.stalled.since_ms if disk.stalled else None,
        "disk_dead_since_ms": disk.dead.since_ms if disk.dead else None,
        "clocks": {str(node_id): each._asdict() for node_id, each in clock_comparisons.items()},
        "possible_loss": {str(tp): loss._asdict() for tp, loss in lost.items()},
    }
    login_refused = outage is not None and outage.login_refused
    return Health(started and not failure and disk.dead is None and not login_refused, problems, details, own_problems)


def describe_disk(disk: DiskState) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with the disk of a broker, each with what mends it."""
    if disk.dead is not None:
        yield f"the data directory failed at {format_time(disk.dead.since_ms)}: {disk.dead.why}", DEAD_DISK_MEND
    if disk.full is not None:
        since = format_time(disk.full.since_ms)
        yield f"disk full since {since}: produce is refused, reads go on ({disk.full.why})", FULL_DISK_MEND
    if disk.stalled is not None:
        since = format_time(disk.stalled.since_ms)
        yield f"disk stalled since {since}: records of flush=ack wait, others lead if they can", STALL_MEND


def describe_outage(outage: Outage) -> str:
    """Returns what the bucket refuses, and since when."""
    if outage.refused:
        state = f"refuses {outage.hit or 'requests'}"
    else:
        state = f"unreachable for {outage.hit}" if outage.hit else "unreachable"
    return f"store {state} since {format_time(outage.since_ms)}"


def _describe_not_serving(failure: str, *, waits_for_store: bool, started: bool) -> Iterator[str]:
    if failure:
        yield f"the broker failed: {failure}"
    elif waits_for_store:
        yield "the broker waits for the bucket before it can serve"
    elif not started:
        yield "the broker is starting or stopping"


def _describe_late_transactions(late_transactions: Sequence[LateTransaction]) -> Iterator[str]:
    for late in late_transactions[:LISTED_MAX]:
        name = f" of transactional id {late.transactional_id}" if late.transactional_id else ""
        yield (
            f"partition {late.tp} has a transaction{name} of producer id {late.producer_id} open from offset"
            f" {late.first_offset} on since {format_time(late.since_ms)}: read_committed consumers and uploads wait"
            f" for its end ({_mend_late(late)})"
        )
    if len(late_transactions) > LISTED_MAX:
        yield f"and {len(late_transactions) - LISTED_MAX} more partitions each have a transaction open for too long"


def _mend_late(late: LateTransaction) -> str:
    if late.transactional_id:
        return f"tiered transaction abort {late.transactional_id} ends it"
    return f"tiered explain partition {late.tp.topic} {late.tp.partition} names the command that ends it"


def _describe_beyond_ends(beyond_ends: Sequence[OffsetBeyondEnd]) -> Iterator[str]:
    for each in beyond_ends[:LISTED_MAX]:
        yield (
            f"group {each.group} has committed offset {each.offset} of partition {each.tp}, which ends at {each.end}"
            " after a loss: it will skip new records below that offset (see tiered group seek)"
        )
    if len(beyond_ends) > LISTED_MAX:
        yield f"and {len(beyond_ends) - LISTED_MAX} more committed offsets are above the end of a partition"


def describe_damage(each: DamagedObject, now_ms: int) -> str:
    """Returns when a cold read last found an object missing or damaged, and why."""
    return f"{format_time(now_ms - each.age_ms)}: {each.why}"


def _describe_damaged(damaged: Sequence[DamagedObject], image: Image, now_ms: int) -> Iterator[str]:
    for each in damaged[-LISTED_MAX:]:
        topic = image.topics_by_id.get(each.partition_id.topic_id)
        name = each.partition_id if topic is None else TopicPartition(topic.name, each.partition_id.partition)
        yield (
            f"cold reads of {name} fail, last at {describe_damage(each, now_ms)} (restore the object,"
            " and read it once; see tiered cold verify)"
        )
    if len(damaged) > LISTED_MAX:
        yield f"and {len(damaged) - LISTED_MAX} more objects in the bucket are missing or damaged"


def _describe_holding(holding: LateTransaction | None) -> str:
    if holding is None:
        return ""
    name = f" of transactional id {holding.transactional_id}" if holding.transactional_id else ""
    return (
        f"; those of {holding.tp} wait for the end of a transaction{name} of producer id {holding.producer_id}, open"
        f" from offset {holding.first_offset} on since {format_time(holding.since_ms)} ({_mend_late(holding)})"
    )


def _late_details(late: LateTransaction) -> dict[str, Any]:
    return late._asdict() | {"tp": str(late.tp)}


class _BadDisk(NamedTuple):
    """The full or stalled disk of a machine, by the reports of the live brokers there."""

    state: str
    node_ids: tuple[int, ...] = ()
    moved_leaders: int = 0
    since_ms: int = 0

    def describe(self) -> str:
        """Returns what became of the leaderships of these brokers."""
        count, names = self.moved_leaders, " and ".join(map(str, self.node_ids))
        moved = f"moved leadership of {count} partitions" if count else "moved no leadership"
        where = f"broker {names}" if len(self.node_ids) == 1 else f"brokers {names} of one machine"
        mend = STALL_MEND if self.state == DISK_STALLED else FULL_DISK_MEND
        return f"{moved} from {where}: disk {self.state} since {format_time(self.since_ms)} ({mend})"


def _find_bad_disks(image: Image) -> dict[int, _BadDisk]:
    """Returns the full and stalled disks of live brokers, by machine."""
    found: dict[int, _BadDisk] = {}
    for node, each in sorted(image.brokers.items()):
        if each.bad_disk:
            state, ids, moved, since_ms = found.get(each.machine, _BadDisk(each.bad_disk, since_ms=each.disk_since_ms))
            since_ms = min(since_ms, each.disk_since_ms)
            found[each.machine] = _BadDisk(state, (*ids, node), moved + each.moved_leaders, since_ms)
    return found


def _describe_partitions(image: Image, partition_health: PartitionHealth) -> Iterator[str]:
    """Yields the partitions without a leader, and the partitions of this leader that have replicas out of sync."""
    missing = partial(describe_out_of_sync, image)
    leaderless = ("has no leader", "have no leader")
    yield from _describe_each(leaderless, partition_health.leaderless, partial(describe_leaderless, image))
    refusing = ("refuses acks=all, for too few are in sync", "refuse acks=all, for too few are in sync")
    yield from _describe_each(refusing, partition_health.under_min_isr, missing)
    others = {
        tp: each for tp, each in partition_health.under_replicated.items() if tp not in partition_health.under_min_isr
    }
    not_in_sync = "replicas that are not in sync, and writes go on"
    lacking = (f"has {not_in_sync}", f"have {not_in_sync}")
    yield from _describe_each(lacking, others, missing)


def _describe_losses(losses_by_partition: Mapping[TopicPartition, Loss]) -> Iterator[str]:
    for tp, loss in islice(losses_by_partition.items(), LISTED_MAX):
        yield (
            f"acknowledged records of partition {tp} may be gone from offset {loss.from_offset} on,"
            f" reported at {format_time(loss.at_ms)}{_describe_missing_time(loss)} (see tiered cluster losses)"
        )
    if len(losses_by_partition) > LISTED_MAX:
        yield f"and of {len(losses_by_partition) - LISTED_MAX} more partitions acknowledged records may be gone"


def _describe_missing_time(loss: Loss) -> str:
    if loss.seconds is None:
        return ""
    newest = format_time(loss.newest_ms)
    return f", at most those of the last {loss.seconds} s: the newest record that is left is of {newest}"


def _describe_each(
    what: tuple[str, str], partitions: Mapping[TopicPartition, PartitionImage], why: Callable[[PartitionImage], str]
) -> Iterator[str]:
    """Yields one sentence for each reason, with the first partitions that have it: a broker that is away has replicas
    of many. `what` is the predicate of one partition, and that of several."""
    by_reason: dict[str, list[TopicPartition]] = {}
    for tp, partition in sorted(partitions.items(), key=lambda each: each[0].topic in INTERNAL):
        by_reason.setdefault(why(partition), []).append(tp)
    for reason, named in islice(by_reason.items(), LISTED_MAX):
        if len(named) == 1:
            yield f"partition {named[0]} {what[0]}: {reason}"
            continue
        more = f" and {len(named) - NAMED_MAX} more" if len(named) > NAMED_MAX else ""
        yield f"{len(named)} partitions {what[1]}: {reason} ({', '.join(map(str, named[:NAMED_MAX]))}{more})"
    if len(by_reason) > LISTED_MAX:
        rest = sum(len(named) for named in list(by_reason.values())[LISTED_MAX:])
        yield f"and {rest} more partitions {what[1]}"
