"""What changes of the cluster are told in the broker's log: what people did to topics and settings, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tiered.metadata import changes as kinds
from tiered.metadata.changes import Change
from tiered.metadata.image import Image

NAMES_MAX = 5
"""Of one kind in one entry; of more their number is told."""


def told(changes: Sequence[Change], before: Image, after: Image) -> Iterator[str]:
    """Lines for a log, in the order of the changes' kinds."""
    created, grown, deleted, altered = list[str](), list[str](), list[str](), list[str]()
    for change in changes:
        match change:
            case kinds.TopicCreated():
                configs = "".join(f" {name}={value}" for name, value in change.configs.items())
                created.append(f"{change.name} partitions={len(change.assignments)}{configs}")
            case kinds.PartitionsAdded() if change.topic_id in after.topics_by_id:
                topic = after.topics_by_id[change.topic_id]
                grown.append(f"{topic.name} partitions={len(topic.partitions)}")
            case kinds.TopicDeleted() if change.topic_id in before.topics_by_id:
                deleted.append(before.topics_by_id[change.topic_id].name)
            case kinds.TopicConfigChanged() if change.topic_id in after.topics_by_id:
                altered.append(f"topic={after.topics_by_id[change.topic_id].name}{_settings(change.configs)}")
            case kinds.BrokerConfigChanged():
                who = "all" if change.node_id == kinds.CLUSTER else str(change.node_id)
                altered.append(f"broker={who}{_settings(change.configs)}")
    yield from _lines("topic created name=", created, "topics created count=")
    yield from _lines("topic grew name=", grown, "topics grew count=")
    yield from _lines("topic deleted name=", deleted, "topics deleted count=")
    yield from _lines("settings changed ", altered, "settings changed count=")


def _settings(configs: Mapping[str, str | None]) -> str:
    return "".join(f" {name}={'(default)' if value is None else value}" for name, value in configs.items())


def _lines(one: str, found: list[str], many: str) -> Iterator[str]:
    if len(found) <= NAMES_MAX:
        yield from (one + each for each in found)
    else:
        first = ", ".join(each.split(" ")[0] for each in found[:NAMES_MAX])
        yield f"{many}{len(found)} first={first}"
