"""Tests of what a bundle explains: all that health names, and first what users have."""

from __future__ import annotations

from typing import Any

from tiered.ids import TopicPartition
from tiered_api.cli.debug.selection import NAMED_MAX, choose_partitions, choose_topics, describe_left_out

TOPICS = [{"name": name, "partitions": 4} for name in ("__consumer_offsets", "a", "or-ders.v1", "orders")]


def cluster(*problems: str, **parts: Any) -> dict[str, Any]:
    return {"brokers": [{"problems": list(problems)}], **parts}


def row(topic: str, partition: int) -> dict[str, Any]:
    return {"topic": topic, "partition": partition}


def test_unhealthy_partitions_of_users_come_before_internal_ones() -> None:
    rows = [row("__consumer_offsets", 0), row("orders", 1), row("__consumer_offsets", 1), row("orders", 2)]
    assert choose_partitions(cluster(partitions=rows, possible_losses=[row("a", 3)]), TOPICS) == [
        TopicPartition("orders", 1), TopicPartition("orders", 2), TopicPartition("a", 3),
        TopicPartition("__consumer_offsets", 0), TopicPartition("__consumer_offsets", 1),
    ]  # fmt: skip


def test_partitions_in_sentences_about_brokers_are_explained() -> None:
    said = cluster(
        "partition or-ders.v1-3 has a transaction open since 2023-11-14T22:13:20+00:00: see tiered transaction",
        "tiering of a/2 fails: 403; those of orders-0 wait",
        "cold reads of orders-0, x-1 and orders-4 fail at broker-2",
    )
    assert choose_partitions(said, TOPICS) == [
        TopicPartition("or-ders.v1", 3), TopicPartition("a", 2), TopicPartition("orders", 0),
    ]  # fmt: skip
    assert choose_partitions({}, TOPICS) == [], "a cluster that did not reply"


def test_topics_that_health_names_come_first() -> None:
    named = [TopicPartition("orders", 1), TopicPartition("__consumer_offsets", 0)]
    assert choose_topics(TOPICS, named) == ["orders", "__consumer_offsets", "a", "or-ders.v1"]
    assert choose_topics(TOPICS, ())[-1] == "__consumer_offsets"


def test_left_out_names_the_first_that_have_no_files() -> None:
    assert describe_left_out(["a", "b", "c"], 1) == "files of 2 of 3: b, c"
    many = [str(number) for number in range(NAMED_MAX + 3)]
    assert describe_left_out(many, 0).endswith(f"{NAMED_MAX - 1} and 3 more")
