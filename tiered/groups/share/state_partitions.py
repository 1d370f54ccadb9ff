"""The partitions of a share group that have share state, and those that get it now.

A member gets a partition once the share coordinator has begun its state: a leader refuses one without. The group asks
for the state in an event, and asks again where no reply came for a while (I39).
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.epochs import SubscribedTopic
from tiered.groups.share.records import StatePartitions, StateTopic

INITIALIZE_AGAIN_MS = 10_000
"""Time after which the state of a partition is requested once more."""


def request_state(
    state: StatePartitions, wanted: Mapping[str, SubscribedTopic], now_ms: int
) -> tuple[StatePartitions, Assignment]:
    """Returns the new value, and the partitions whose state has to be requested. `wanted` are the subscribed topics
    by name. Topics that are gone, or have another id now, are left out."""
    ids = {each.topic_id: name for name, each in wanted.items()}
    initializing = {
        each: topic for each, topic in state.initializing.items() if each in ids or topic.name not in wanted
    }
    initialized = {each: topic for each, topic in state.initialized.items() if each in ids or topic.name not in wanted}
    missing: dict[str, frozenset[int]] = {}
    for name, (topic_id, count) in wanted.items():
        lacking = frozenset(range(count)) - readable_of(state, topic_id)
        known = initializing.get(topic_id)
        is_asked = known is not None and known.partitions >= lacking and now_ms < known.time_ms + INITIALIZE_AGAIN_MS
        if lacking and not is_asked:
            initializing[topic_id] = StateTopic(name, lacking, now_ms)
            missing[topic_id] = lacking
    return StatePartitions(initializing, initialized, state.deleting), missing


def is_overdue(state: StatePartitions, now_ms: int) -> bool:
    """True if the state of partitions was requested long ago, and no reply has come."""
    return any(now_ms >= topic.time_ms + INITIALIZE_AGAIN_MS for topic in state.initializing.values())


def confirm_state(state: StatePartitions, begun: Assignment, now_ms: int) -> StatePartitions:
    """Returns the value once the share coordinator has begun the state of partitions. Those that the group does not
    wait for are left out."""
    initializing, initialized = dict(state.initializing), dict(state.initialized)
    for topic_id, partitions in begun.items():
        topic = initializing.pop(topic_id, None)
        if topic is None:
            continue
        if left := topic.partitions - partitions:
            initializing[topic_id] = topic._replace(partitions=left)
        found = readable_of(state, topic_id) | (topic.partitions & partitions)
        initialized[topic_id] = StateTopic(topic.name, found, now_ms)
    return StatePartitions(initializing, initialized, state.deleting)


def readable_of(state: StatePartitions, topic_id: str) -> frozenset[int]:
    """Returns the partitions of a topic that have share state."""
    known = state.initialized.get(topic_id)
    return known.partitions if known is not None else frozenset()
