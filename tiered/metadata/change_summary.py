"""Metadata changes as a few lines for the broker's log: topics, settings, brokers, and partitions without a leader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from tiered.config.settings import broker_rows
from tiered.ids import TopicId
from tiered.metadata import changes as kinds
from tiered.metadata.changes import NO_LEADER, Change
from tiered.metadata.image import Image
from tiered.security.secret import HIDDEN

NAMES_MAX = 5
"""Most names of one kind of change in one entry; with more, the line has their number."""

LOSSES_SHOWN_MAX = 100
"""Most partitions in a line about losses; the image has all of them."""


def summarize(changes: Sequence[Change], before: Image, after: Image) -> Iterator[str]:
    """Yields lines for the log, in order of the kinds of changes."""
    created, extended, deleted, altered = list[str](), list[str](), list[str](), list[str]()
    without_room = list[str]()
    brokers, changed = list[str](), dict[tuple[TopicId, int], None]()
    for change in changes:
        match change:
            case kinds.TopicCreated():
                configs = "".join(f" {name}={value}" for name, value in change.configs.items())
                created.append(f"{change.name} partitions={len(change.assignments)}{configs}")
                without_room += _name_full_disks(change.name, chain.from_iterable(change.assignments), before)
            case kinds.PartitionsAdded() if change.topic_id in after.topics_by_id:
                topic = after.topics_by_id[change.topic_id]
                extended.append(f"{topic.name} partitions={len(topic.partitions)}")
                without_room += _name_full_disks(topic.name, chain.from_iterable(change.assignments), before)
            case kinds.TopicDeleted() if change.topic_id in before.topics_by_id:
                deleted.append(before.topics_by_id[change.topic_id].name)
            case kinds.TopicConfigChanged() if change.topic_id in after.topics_by_id:
                altered.append(f"topic={after.topics_by_id[change.topic_id].name}{_format_configs(change.configs)}")
            case kinds.BrokerConfigChanged():
                broker = "all" if change.node_id == kinds.ALL_BROKERS else str(change.node_id)
                altered.append(f"broker={broker}{_format_configs(change.configs)}")
            case kinds.GroupConfigChanged():
                altered.append(f"group={change.group}{_format_configs(change.configs)}")
            case kinds.BrokerFenced():
                brokers.append(f"broker fenced node_id={change.node_id}")
            case kinds.BrokerUnfenced():
                brokers.append(f"broker unfenced node_id={change.node_id}")
            case kinds.BrokerStopping():
                brokers.append(f"broker is about to stop node_id={change.node_id}")
            case kinds.BrokerDiskReported(disk=kinds.DISK_FULL | kinds.DISK_STALLED):
                moved = f"moved leadership of {change.moved} partitions from broker {change.node_id}"
                brokers.append(f"{moved}: disk {change.disk}")
            case kinds.BrokerDiskReported():
                brokers.append(f"disk of a broker takes writes again node_id={change.node_id} disk={change.disk}")
            case kinds.BrokerUnregistered():
                brokers.append(f"broker is unregistered node_id={change.node_id}")
            case kinds.BrokerSecretSet():
                brokers.append(f"secret of brokers set version={change.version}")
            case kinds.PartitionChanged():
                changed[change.topic_id, change.partition] = None
                without_room += _name_new_full_disks(change, before, after)
    yield from _format_lines("topic created name=", created, "topics created count=")
    yield from _format_lines("partitions added name=", extended, "partitions added count=")
    yield from _format_lines("replicas on full disks name=", without_room, "topics with replicas on full disks count=")
    yield from _format_lines("topic deleted name=", deleted, "topics deleted count=")
    yield from _format_lines("settings changed ", altered, "settings changed count=")
    yield from brokers
    if _has_live_brokers(before) and _has_live_brokers(after):
        leaderless, led_again = _leader_changes(changed, before, after)
        yield from _format_lines("partition has no leader name=", leaderless, "partitions have no leader count=")
        yield from _format_lines(
            "partition has a leader again name=", led_again, "partitions have a leader again count="
        )


def summarize_losses(before: Image, after: Image) -> str:
    """Returns a line about losses that are new, or that reach further back than before; "" if there are none."""
    found = _list_losses(before, after, lambda offset, known: known is None or offset < known)
    return f"acknowledged records may be gone from an offset on {found}" if found else ""


def summarize_smaller_losses(before: Image, after: Image) -> str:
    """Returns a line about losses that begin later than an earlier line said; "" if there are none.

    An election without a known log end reports everything, and the elected leader corrects that from the bucket.
    """
    found = _list_losses(before, after, lambda offset, known: known is not None and offset > known)
    return f"fewer records may be gone than an earlier line says {found}" if found else ""


def _list_losses(before: Image, after: Image, is_shown: Callable[[int, int | None], bool]) -> str:
    """Returns the partitions with the least offset of the losses to show, by their offset and the one before."""
    if before.losses == after.losses:
        return ""
    names = list[str]()
    for partition_id, losses in after.losses.items():
        known = {each.leader_epoch: each.from_offset for each in before.losses.get(partition_id, ())}
        shown = [each.from_offset for each in losses if is_shown(each.from_offset, known.get(each.leader_epoch))]
        topic = after.topics_by_id.get(partition_id.topic_id)
        if shown and topic is not None:
            names.append(f"{topic.name}-{partition_id.partition}@{min(shown)}")
    if not names:
        return ""
    more = ",..." if len(names) > LOSSES_SHOWN_MAX else ""
    listed = ",".join(names[:LOSSES_SHOWN_MAX])
    return f"partitions={len(names)} partition@offset={listed}{more}: see `tiered cluster losses`"


def _name_full_disks(name: str, nodes: Iterable[int], image: Image) -> Iterator[str]:
    """Yields the name with those of the brokers whose disk is full or stalled; nothing if all disks are usable."""
    full = image.bad_disk_ids()
    if full and (named := sorted(full.intersection(nodes))):
        yield f"{name} brokers={','.join(map(str, named))}"


def _name_new_full_disks(change: kinds.PartitionChanged, before: Image, after: Image) -> Iterator[str]:
    """Yields what `_name_full_disks` does of the brokers that a reassignment adds, once when it starts."""
    topic, was = after.topics_by_id.get(change.topic_id), before.topics_by_id.get(change.topic_id)
    if change.adding and topic is not None and was is not None and not was.partitions[change.partition].adding:
        yield from _name_full_disks(f"{topic.name}-{change.partition}", change.adding, before)


def _has_live_brokers(image: Image) -> bool:
    """True if any broker is live. One broker that stops and starts alone needs no line: no other could lead."""
    return any(broker.live for broker in image.brokers.values())


def _leader_changes(changed: Iterable[tuple[TopicId, int]], before: Image, after: Image) -> tuple[list[str], list[str]]:
    """Returns the partitions that have no leader now, and those that have one again."""
    leaderless, led_again = list[str](), list[str]()
    for topic_id, p in changed:
        topic, known = after.topics_by_id.get(topic_id), before.topics_by_id.get(topic_id)
        if topic is None:
            continue
        new = topic.partitions[p]
        old = known.partitions[p] if known is not None and p < len(known.partitions) else None
        if new.leader == NO_LEADER and (old is None or old.leader != NO_LEADER):
            waits_for = ",".join(map(str, new.elr or new.last_known or new.replicas))
            leaderless.append(f"{topic.name}-{p} waits_for={waits_for}")
        elif new.leader != NO_LEADER and old is not None and old.leader == NO_LEADER:
            loss = "" if new.loss is None or new.loss == old.loss else f" possible_loss_from={new.loss.from_offset}"
            led_again.append(f"{topic.name}-{p} leader={new.leader}{loss}")
    return leaderless, led_again


def _format_configs(configs: Mapping[str, str | None]) -> str:
    return "".join(f" {name}={_show_value(name, value)}" for name, value in configs.items())


def _show_value(name: str, value: str | None) -> str:
    if value is None:
        return "(default)"
    row = broker_rows().get(name)
    return HIDDEN if row is not None and row.secret else value


def _format_lines(one: str, items: list[str], many: str) -> Iterator[str]:
    if len(items) <= NAMES_MAX:
        yield from (one + each for each in items)
    else:
        first = ", ".join(each.split(" ")[0] for each in items[:NAMES_MAX])
        yield f"{many}{len(items)} first={first}"
