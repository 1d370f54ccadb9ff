"""Rules of a consumer group between any two decisions (I17). Tests check them after each one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tiered.deadlines import Deadlines
from tiered.groups.consumer.epochs import LEAVING_FOR_A_WHILE
from tiered.groups.consumer.group import ConsumerGroup
from tiered.groups.consumer.reconciliation import MemberState
from tiered.groups.decision import CONSUMER_REBALANCE, CONSUMER_SESSION


def find_consumer_violations(group: ConsumerGroup, deadlines: Deadlines) -> Iterator[str]:
    """Yields a sentence for each broken rule."""
    owned = Counter[tuple[str, int]]()
    for member_id, (metadata, current) in group.members.items():
        for assignment in (current.assigned, current.revoking):
            owned.update((topic_id, each) for topic_id, numbers in assignment.items() for each in numbers)
        if not LEAVING_FOR_A_WHILE <= current.epoch <= group.target_epoch:
            yield f"member {member_id} has epoch {current.epoch}, the target {group.target_epoch}"
        if (CONSUMER_SESSION, group.name, member_id) not in deadlines:
            yield f"member {member_id} has no session deadline"
        is_revoking = current.state is MemberState.UNREVOKED_PARTITIONS and current.epoch != LEAVING_FOR_A_WHILE
        if metadata.classic is None and is_revoking != ((CONSUMER_REBALANCE, group.name, member_id) in deadlines):
            yield f"member {member_id} revokes partitions without a deadline, or has one without need"
        if metadata.instance_id is not None and group.static_members.get(metadata.instance_id) != member_id:
            yield f"static member {member_id} is not known by its instance id"
    if any(count > 1 for count in owned.values()) or owned.keys() != group.owners().keys():
        yield f"partitions have two owners, or are not listed: {owned}"
    targets = Counter(
        (topic_id, each) for target in group.targets.values() for topic_id in target for each in target[topic_id]
    )
    if any(count > 1 for count in targets.values()):
        yield "partitions are in two targets"
    if not group.target_epoch <= group.epoch or not group.targets.keys() <= group.members.keys():
        yield f"epoch {group.epoch} is behind the target, or a target is of no member"
    topics = {name for each in group.members.values() for name in group.topics_of(each.metadata)}
    if group.subscribed_topics() != topics or not all(map(group.is_subscribed, topics)):
        yield f"subscriptions are counted wrongly: {group.subscribed_topics()}, and not {topics}"
    regexes = {each.metadata.regex for each in group.members.values()} - {""}
    if group.regexes.keys() != regexes:
        yield f"regular expressions are resolved for no member, or not: {group.regexes.keys()}, and not {regexes}"
