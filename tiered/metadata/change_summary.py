"""What changes of the cluster are told in the broker's log, in a few lines: what people did to topics and settings,
which brokers are away, and which partitions nobody leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tiered.ids import TopicId
from tiered.metadata import changes as kinds
from tiered.metadata.changes import NO_LEADER, Change
from tiered.metadata.image import Image

NAMES_MAX = 5
"""Of one kind in one entry; of more their number is told."""


LOSSES_SHOWN_MAX = 100
"""Partitions in a line about losses; the image has them all."""
ABOVE_ALL_OFFSETS = 2**63
"""Above every offset."""


def summarize(changes: Sequence[Change], before: Image, after: Image) -> Iterator[str]:
    """Lines for a log, in the order of the changes' kinds."""
    created, extended, deleted, altered = list[str](), list[str](), list[str](), list[str]()
    brokers, changed = list[str](), dict[tuple[TopicId, int], None]()
    for change in changes:
        match change:
            case kinds.TopicCreated():
                configs = "".join(f" {name}={value}" for name, value in change.configs.items())
                created.append(f"{change.name} partitions={len(change.assignments)}{configs}")
            case kinds.PartitionsAdded() if change.topic_id in after.topics_by_id:
                topic = after.topics_by_id[change.topic_id]
                extended.append(f"{topic.name} partitions={len(topic.partitions)}")
            case kinds.TopicDeleted() if change.topic_id in before.topics_by_id:
                deleted.append(before.topics_by_id[change.topic_id].name)
            case kinds.TopicConfigChanged() if change.topic_id in after.topics_by_id:
                altered.append(f"topic={after.topics_by_id[change.topic_id].name}{_format_configs(change.configs)}")
            case kinds.BrokerConfigChanged():
                who = "all" if change.node_id == kinds.ALL_BROKERS else str(change.node_id)
                altered.append(f"broker={who}{_format_configs(change.configs)}")
            case kinds.BrokerFenced():
                brokers.append(f"broker fenced node_id={change.node_id}: it is not heard")
            case kinds.BrokerUnfenced():
                brokers.append(f"broker is heard again node_id={change.node_id}")
            case kinds.BrokerStopping():
                brokers.append(f"broker is about to stop node_id={change.node_id}")
            case kinds.BrokerUnregistered():
                brokers.append(f"broker is unregistered node_id={change.node_id}")
            case kinds.PartitionChanged():
                changed[change.topic_id, change.partition] = None
    yield from _format_lines("topic created name=", created, "topics created count=")
    yield from _format_lines("topic grew name=", extended, "topics grew count=")
    yield from _format_lines("topic deleted name=", deleted, "topics deleted count=")
    yield from _format_lines("settings changed ", altered, "settings changed count=")
    yield from brokers
    if _has_live_brokers(before) and _has_live_brokers(after):
        leaderless, led_again = _leader_changes(changed, before, after)
        yield from _format_lines("partition has no leader name=", leaderless, "partitions have no leader count=")
        yield from _format_lines("partition is led again name=", led_again, "partitions are led again count=")


def summarize_losses(before: Image, after: Image) -> str:
    """A line about the losses that were told in between, or reach further back than they did; "" without any."""
    if before.losses == after.losses:
        return ""
    found = list[str]()
    for partition_id, losses in after.losses.items():
        known = {each.leader_epoch: each.from_offset for each in before.losses.get(partition_id, ())}
        new = [
            each.from_offset for each in losses if each.from_offset < known.get(each.leader_epoch, ABOVE_ALL_OFFSETS)
        ]
        topic = after.topics_by_id.get(partition_id.topic_id)
        if new and topic is not None:
            found.append(f"{topic.name}-{partition_id.partition}@{min(new)}")
    if not found:
        return ""
    more = ",..." if len(found) > LOSSES_SHOWN_MAX else ""
    return (
        f"acknowledged records may be gone from an offset on partitions={len(found)}"
        f" partition@offset={','.join(found[:LOSSES_SHOWN_MAX])}{more}: see `tiered cluster losses`"
    )


def _has_live_brokers(image: Image) -> bool:
    """A cluster of which nobody lives has nobody to miss a leader: one broker stops and starts without a word."""
    return any(broker.live for broker in image.brokers.values())


def _leader_changes(changed: Iterable[tuple[TopicId, int]], before: Image, after: Image) -> tuple[list[str], list[str]]:
    """The partitions that are without a leader now, and those that were."""
    leaderless, led_again = list[str](), list[str]()
    for topic_id, p in changed:
        topic, known = after.topics_by_id.get(topic_id), before.topics_by_id.get(topic_id)
        if topic is None:
            continue
        now = topic.partitions[p]
        was = known.partitions[p] if known is not None and p < len(known.partitions) else None
        if now.leader == NO_LEADER and (was is None or was.leader != NO_LEADER):
            waits_for = ",".join(map(str, now.elr or now.last_known or now.replicas))
            leaderless.append(f"{topic.name}-{p} waits_for={waits_for}")
        elif now.leader != NO_LEADER and was is not None and was.leader == NO_LEADER:
            loss = "" if now.loss is None or now.loss == was.loss else f" possible_loss_from={now.loss.from_offset}"
            led_again.append(f"{topic.name}-{p} leader={now.leader}{loss}")
    return leaderless, led_again


def _format_configs(configs: Mapping[str, str | None]) -> str:
    return "".join(f" {name}={'(default)' if value is None else value}" for name, value in configs.items())


def _format_lines(one: str, found: list[str], many: str) -> Iterator[str]:
    if len(found) <= NAMES_MAX:
        yield from (one + each for each in found)
    else:
        first = ", ".join(each.split(" ")[0] for each in found[:NAMES_MAX])
        yield f"{many}{len(found)} first={first}"
