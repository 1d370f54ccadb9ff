"""Rules of a share group between any two decisions. Tests check them after each one."""

from __future__ import annotations

from collections.abc import Iterator

from tiered.deadlines import Deadlines
from tiered.groups.decision import SHARE_SESSION
from tiered.groups.share.group import ShareGroup
from tiered.groups.share.state_partitions import readable_of


def find_share_violations(group: ShareGroup, deadlines: Deadlines) -> Iterator[str]:
    """Yields a sentence for each broken rule."""
    for member_id, (_, current) in group.members.items():
        if (SHARE_SESSION, group.name, member_id) not in deadlines:
            yield f"member {member_id} has no session deadline"
        if current.epoch > group.target_epoch:
            yield f"member {member_id} has epoch {current.epoch}, the target {group.target_epoch}"
    if group.target_epoch > group.epoch or not group.targets.keys() <= group.members.keys():
        yield f"epoch {group.epoch} is behind the target, or a target is of no member"
    for topic_id, topic in group.state_partitions.initializing.items():
        if topic.partitions & readable_of(group.state_partitions, topic_id):
            yield f"partitions of {topic.name} wait for share state that they have"
