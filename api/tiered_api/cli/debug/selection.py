"""The topics and partitions that a bundle explains: those that health names, the ones of users first. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tiered.ids import TopicPartition
from tiered.metadata.topic_names import INTERNAL

NAMED_MAX = 20
"""Most names of what is left out."""
_PARTITION = re.compile(r"(?<![\w.-])([\w.-]{1,249})[-/](\d{1,6})(?![\w-])", re.ASCII)


def choose_partitions(cluster: Mapping[str, Any], topics: Iterable[Mapping[str, Any]]) -> list[TopicPartition]:
    """Returns the partitions that the health of a cluster names, in its table or in a sentence about a broker."""
    counts = {each["name"]: each["partitions"] for each in topics}
    found = {TopicPartition(each["topic"], each["partition"]): None for each in cluster.get("partitions", ())}
    found |= {TopicPartition(each["topic"], each["partition"]): None for each in cluster.get("possible_losses", ())}
    for broker in cluster.get("brokers", ()):
        for problem in broker["problems"]:
            for topic, number in _PARTITION.findall(problem):
                if int(number) < counts.get(topic, 0):
                    found[TopicPartition(topic, int(number))] = None
    return sorted(found, key=lambda tp: tp.topic in INTERNAL)


def choose_topics(topics: Iterable[Mapping[str, Any]], named: Iterable[TopicPartition]) -> list[str]:
    """Returns all topics: first those of which health names a partition, the ones of users before internal ones."""
    unhealthy = {tp.topic for tp in named}
    names = [each["name"] for each in topics]
    return sorted(names, key=lambda name: (name not in unhealthy, name in INTERNAL))


def describe_left_out(names: Sequence[str], most: int) -> str:
    """Returns how many of these have no files in a bundle of at most `most`, and the first of them by name."""
    rest = names[most:]
    more = f" and {len(rest) - NAMED_MAX} more" if len(rest) > NAMED_MAX else ""
    return f"files of {len(rest)} of {len(names)}: {', '.join(rest[:NAMED_MAX])}{more}"
