"""The verdict on a cluster: the partitions without a leader, with a small ISR or with too few replicas, and the
reasons.

Pure: from the replies of brokers to the report. `min.insync.replicas` is capped by the number of replicas, as it is in
brokers, so a partition below it is under-replicated too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from tiered.metadata.parts.topics import Loss
from tiered.time_text import format_time
from tiered.value import value
from tiered_api.health.view import FENCED, BrokerReport, ClusterView
from tiered_api.kafka.protocol.messages.metadata import MetadataResponsePartition

TopicAndPartition = tuple[str, int]
"""Topic and partition."""


class EligibleReplicas(NamedTuple):
    """The brokers that may lead besides those in the ISR (KIP-966). `last_known`: all that an election waits for once
    ISR and ELR are empty."""

    elr: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()


class TroubleTimes(NamedTuple):
    """Since when a partition lacks something, as one broker has seen it; -1 where that is not known."""

    leaderless_ms: int = -1
    missing_ms: Sequence[int] = ()
    """By the number of replicas that are not in sync, from one on: since when at least so many are."""

    def since_ms(self, problem: str, spare: int) -> int:
        """Returns since when the partition has a problem, -1 if that is not known. `spare`: the replicas that it has
        beyond `min.insync.replicas`."""
        if problem == LEADERLESS:
            return self.leaderless_ms
        missing = spare + 1 if problem == UNDER_MIN_ISR else 1
        return self.missing_ms[missing - 1] if 1 <= missing <= len(self.missing_ms) else -1


@value
class UnhealthyPartition:
    """One partition that lacks something; `problems` has at least one word."""

    topic: str
    partition: int
    problems: tuple[str, ...]
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    eligible: EligibleReplicas
    min_isr: int
    why: str
    since_ms: int = -1
    """Since when it has the first problem, -1 if that is not known."""

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"


LEADERLESS, UNDER_MIN_ISR, UNDER_REPLICATED = "leaderless", "under-min-ISR", "under-replicated"


def topics_to_examine(seen: ClusterView) -> list[str]:
    """Returns the topics whose settings the verdict needs: those with a partition that lacks something."""
    return [
        topic.name
        for topic in seen.topics
        if topic.name
        and any(
            not seen.is_live(each.leader_id) or len(each.isr_nodes) < len(each.replica_nodes)
            for each in topic.partitions
        )
    ]


def find_unhealthy(
    seen: ClusterView,
    min_isr: Mapping[str, int],
    eligible: Mapping[TopicAndPartition, EligibleReplicas],
    adding: Mapping[TopicAndPartition, Sequence[int]],
    times: Mapping[TopicAndPartition, TroubleTimes] = MappingProxyType({}),
) -> Iterator[UnhealthyPartition]:
    """Returns every partition that lacks something, in order. A topic without a known `min_isr` needs one replica.
    Replicas that a reassignment is `adding` do not count as missing while they copy."""
    for topic in seen.topics:
        name = topic.name or ""
        for each in sorted(topic.partitions, key=lambda each: each.partition_index):
            wanted = min(min_isr.get(name, 1), len(each.replica_nodes))
            new = adding.get((name, each.partition_index), ())
            problems = tuple(_problems(seen, each, wanted, len(new)))
            if problems:
                eligible_replicas = eligible.get((name, each.partition_index), EligibleReplicas())
                seen_times = times.get((name, each.partition_index), TroubleTimes())
                yield UnhealthyPartition(
                    name, each.partition_index, problems, each.leader_id, tuple(each.replica_nodes),
                    tuple(each.isr_nodes), eligible_replicas, wanted,
                    "; ".join(_explain_problems(seen, each, eligible_replicas, wanted, new)),
                    seen_times.since_ms(problems[0], len(each.replica_nodes) - wanted),
                )  # fmt: skip


def summarize_health(
    seen: ClusterView, found: Sequence[UnhealthyPartition], reports: Sequence[BrokerReport] = ()
) -> dict[str, Any]:
    """Returns the health of a cluster, in the form of `--format json`. A broker that stopped cleanly and has no
    replicas does not count as missing. `reports` are those of the brokers, which also say what they hide."""
    holders = {node for topic in seen.topics for each in topic.partitions for node in each.replica_nodes}
    down = [
        node
        for node, broker in seen.brokers.items()
        if not seen.is_live(node) and (node in holders or broker.state == FENCED)
    ]
    names = {
        problem: [each.name for each in found if problem in each.problems]
        for problem in (LEADERLESS, UNDER_MIN_ISR, UNDER_REPLICATED)
    }
    reasons = ["nodes down"] if down else []
    reasons += [] if seen.is_live(seen.controller) else ["no controller"]
    reasons += [f"{problem} partitions" for problem, named in names.items() if named]
    bucket_unreachable = find_bucket_away(reports)
    missed = {node for node, broker in seen.brokers.items() if not seen.is_live(node) and node not in down}
    troubled = [each for each in reports if each.problems and each.node_id not in missed]
    lost = {(each.topic, each.partition): each for broker in reports for each in broker.losses}
    reasons += ["possible losses"] if lost else []
    reasons += ["bucket"] if bucket_unreachable else []
    reasons += ["broker problems"] if any(each.node_id not in {*bucket_unreachable, *down} for each in troubled) else []
    hidden = list(_describe_hidden(reports))
    machines_down = {
        machine: brokers for machine, brokers in seen.brokers_of_machines().items() if {*brokers} <= {*down}
    }
    return {
        "healthy": not reasons,
        "reasons": reasons,
        "partial": bool(hidden),
        "hidden": hidden,
        "controller": seen.controller,
        "nodes": list(seen.brokers),
        "nodes_down": down,
        "machines_down": list(machines_down),
        "leaderless_partitions": names[LEADERLESS],
        "under_min_isr_partitions": names[UNDER_MIN_ISR],
        "under_replicated_partitions": names[UNDER_REPLICATED],
        "possible_losses": [
            {
                "topic": topic,
                "partition": partition,
                "from_offset": each.from_offset,
                "leader_epoch": each.leader_epoch,
                "at_ms": each.at_ms,
                "newest_ms": each.newest_ms or None,
                "at_most_seconds": Loss(each.leader_epoch, each.from_offset, each.at_ms, each.newest_ms).seconds,
            }
            for (topic, partition), each in sorted(lost.items())
        ],
        "bucket_away_since_ms": min(bucket_unreachable.values(), default=None),
        "broker_problems": [
            *(describe_bucket_away(bucket_unreachable) if len(bucket_unreachable) > 1 else ()),
            *_describe_problems(troubled, machines_down),
        ],
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "problems": list(each.problems),
                "leader": each.leader if each.leader >= 0 else None,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "eligible": list(each.eligible.elr),
                "last_known": list(each.eligible.last_known),
                "min_isr": each.min_isr,
                "since_ms": each.since_ms if each.since_ms >= 0 else None,
                "why": each.why,
            }
            for each in found
        ],
    }


def find_bucket_away(reports: Iterable[BrokerReport]) -> dict[int, int]:
    """Returns since when (ms) the bucket is away, by broker."""
    return {each.node_id: each.store_unreachable_since_ms for each in reports if each.store_unreachable_since_ms >= 0}


def describe_bucket_away(since_ms: Mapping[int, int]) -> Iterator[str]:
    """Yields one sentence for an outage, however many brokers see it. Each notices it with a request of its own, some
    of them a minute later."""
    if since_ms:
        who = f"say brokers {' and '.join(map(str, since_ms))}" if len(since_ms) > 1 else f"says broker {min(since_ms)}"
        yield f"requests to the bucket fail since {format_time(min(since_ms.values()))}, {who}"


def _describe_problems(troubled: Sequence[BrokerReport], machines_down: Mapping[int, Sequence[int]]) -> Iterator[str]:
    """Yields the problems of brokers. A machine that is away is one sentence, which names its brokers and has the
    problem of the first."""
    silent = {each.node_id for each in troubled if not each.has_replied}
    away = {machine: brokers for machine, brokers in machines_down.items() if {*brokers} <= silent}
    firsts = {brokers[0]: machine for machine, brokers in away.items()}
    covered = {node for brokers in away.values() for node in brokers[1:]}
    for each in troubled:
        machine = firsts.get(each.node_id)
        if machine is not None:
            brokers = " and ".join(map(str, away[machine]))
            yield f"machine {machine} is away: brokers {brokers} do not reply; broker {each.node_id} {each.problems[0]}"
        elif each.node_id not in covered:
            yield from (f"broker {each.node_id}: {why}" for why in each.problems)


def _describe_hidden(reports: Sequence[BrokerReport]) -> Iterator[str]:
    """Yields what the caller may not see."""
    if any(each.hides_topics for each in reports):
        yield "only the topics that you may see"
    if any(each.hides_health for each in reports):
        yield "no problems of brokers, without DESCRIBE on the cluster"


def _problems(seen: ClusterView, each: MetadataResponsePartition, wanted: int, new: int) -> Iterator[str]:
    if not seen.is_live(each.leader_id):
        yield LEADERLESS
    if len(each.isr_nodes) < wanted:
        yield UNDER_MIN_ISR
    if len(each.isr_nodes) < len(each.replica_nodes) - new:
        yield UNDER_REPLICATED


def _explain_problems(
    seen: ClusterView,
    each: MetadataResponsePartition,
    eligible_replicas: EligibleReplicas,
    wanted: int,
    new: Sequence[int],
) -> Iterator[str]:
    """Returns sentences, the worst first; each broker is named once."""
    named: set[int] = set()
    if not seen.is_live(each.leader_id):
        waits_for, sentence = _explain_leaderless(seen, each, eligible_replicas)
        named.update(waits_for)
        yield sentence
    elif len(each.isr_nodes) < wanted:
        yield f"acks=all is refused: {len(each.isr_nodes)} in sync, min.insync.replicas requires {wanted}"
    missing = [node for node in each.replica_nodes if node not in each.isr_nodes and node not in named]
    gone = [f"{node} is {seen.state(node)}" for node in missing if not seen.is_live(node)]
    behind = [node for node in missing if seen.is_live(node) and node not in new]
    copies = [node for node in missing if seen.is_live(node) and node in new]
    if gone:
        yield f"broker {' and '.join(gone)}"
    if full := [node for node in behind if seen.is_disk_full(node)]:
        yield f"the disk{'s' if len(full) > 1 else ''} of {_format_brokers(seen, full)} {_are(full)} full"
    if behind := [node for node in behind if node not in full]:
        yield f"{_format_brokers(seen, behind)} {_are(behind)} not in sync yet"
    if copies:
        yield f"a move to {_format_brokers(seen, copies)} is under way"


def _explain_leaderless(
    seen: ClusterView, each: MetadataResponsePartition, eligible_replicas: EligibleReplicas
) -> tuple[Sequence[int], str]:
    """Returns the brokers that an election waits for, and the sentence about it."""
    if each.leader_id >= 0:
        return (each.leader_id,), f"its leader {each.leader_id} is {seen.state(each.leader_id)}"
    may_lead = sorted({*each.isr_nodes, *eligible_replicas.elr})
    ready = [node for node in may_lead if seen.is_live(node)]
    if ready:
        return ready, f"an election is due: {_format_brokers(seen, ready)} may lead"
    if may_lead:
        return may_lead, f"waits for {_format_brokers(seen, may_lead, 'or')}: nobody else has all that was acknowledged"
    if eligible_replicas.last_known:
        last_known = _format_brokers(seen, eligible_replicas.last_known)
        return eligible_replicas.last_known, f"waits until {last_known} have said what is left of their logs"
    return (), "no broker is known that has its records"


def _are(nodes: Sequence[int]) -> str:
    return "are" if len(nodes) > 1 else "is"


def _format_brokers(seen: ClusterView, nodes: Sequence[int], word: str = "and") -> str:
    """Returns live brokers by their numbers, others with their states."""
    each = (f"{node}" if seen.is_live(node) else f"{node} ({seen.state(node)})" for node in nodes)
    return f"broker{'s' if len(nodes) > 1 else ''} " + f" {word} ".join(each)
