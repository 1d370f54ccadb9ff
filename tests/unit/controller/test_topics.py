"""Tests of topics that are created together, of names that collide, and of list settings that are edited word by
word."""

from __future__ import annotations

import dataclasses

import pytest

from tests.refusal import refuses
from tests.steps import count_steps
from tests.unit.controller.test_controller import controller
from tiered.config.settings import broker_rows, topic_rows
from tiered.controller.requests import AlterTopicConfigs, CreatePartitions, CreateTopic, CreateTopics
from tiered.errors import Code, Refused
from tiered.metadata.changes import ListEdit, TopicCreated
from tiered.metadata.effective_config import apply_edits
from tiered.metadata.parts.topics import TopicImage
from tiered.metadata.topic_names import TopicNames

NOW = 1_000


def test_valid_topics_of_a_request_are_created_together() -> None:
    shard = controller(1)
    wanted = (CreateTopic("a", 2), CreateTopic("b/d"), CreateTopic("a"), CreateTopic("c", configs={"no": "1"}))
    made = shard.decide(CreateTopics((*wanted, CreateTopic("d"))), NOW)
    a, bad, twice, unknown, d = made.reply
    assert isinstance(a, TopicImage) and len(a.partitions) == 2 and a.partitions[1].leader_epoch == 0
    assert isinstance(d, TopicImage) and d.name == "d"
    assert [bad.code, twice.code, unknown.code] == [
        Code.INVALID_TOPIC_EXCEPTION,
        Code.TOPIC_ALREADY_EXISTS,
        Code.INVALID_CONFIG,
    ]
    assert [each.name for each in made.changes if isinstance(each, TopicCreated)] == ["a", "d"]
    shard.apply(made.changes)
    assert list(shard.image.topics) == ["a", "d"]


def test_validated_topics_get_replies_and_change_nothing() -> None:
    made = controller(1).decide(CreateTopics((CreateTopic("a", 3, validate_only=True),)), NOW)
    assert made.changes == () and len(made.reply[0].partitions) == 3


def collides(name: str, names: TopicNames) -> bool:
    try:
        names.check_collision(name)
    except Refused as refused:
        assert refused.code is Code.INVALID_TOPIC_EXCEPTION and "collides" in refused.why
        return True
    return False


def test_names_with_equal_metric_names_collide() -> None:
    """In each way of lookup: by variants, among existing names, and among names of the same request."""
    dots = "x" + "." * 200
    taken = ["a.b_c", dots.replace(".", "_"), *(f"t{n}" for n in range(100))]
    few, many, added = TopicNames(dict.fromkeys(taken, 1)), TopicNames(dict.fromkeys(taken, 1)), TopicNames({})
    assert collides(dots, many), "now all are known by what they have in common"
    for name in taken:
        added.add(name)
    for names in (few, many, added):
        for name in ("a_b_c", "a.b.c", "a_b.c"):
            assert collides(name, names)
        for name in ("a.b_c", "abc", "a.b.d", "a.b", "a.b.c.d.e.f.g"):
            assert not collides(name, names)
        assert collides(dots, names) and not collides(dots + ".", names)
        assert "t7" in names and "a.b_c" in names and "a.b.c" not in names


def test_ten_thousand_dotted_names_are_checked_in_few_steps_each() -> None:
    """Once, each name was compared with all others: 8,000 blocked the broker for more than a second."""
    names = TopicNames({f"an.existing.name.with.dots.{n}": 1 for n in range(10_000)})

    def add_names() -> None:
        for n in range(1_000):
            names.check_collision(f"a.new.name.with.many.dots.{n}")
            names.add(f"a.new.name.with.many.dots.{n}")

    assert count_steps(add_names) < 100_000, "a comparison with all others takes ten million"


def test_replicas_of_new_partitions_may_be_given() -> None:
    shard = controller(1)
    shard.apply(shard.decide(CreateTopic("a"), NOW).changes)
    node = shard.image.topics["a"].partitions[0].replicas[0]
    grown = shard.decide(CreatePartitions("a", 3, assignments=[[node], [node]]), NOW).reply
    assert [each.replicas for each in grown.partitions] == [(node,)] * 3
    for wrong in ([[node]], [[node], [99]], [[node], []]):
        with refuses(Code.INVALID_REPLICA_ASSIGNMENT):
            shard.decide(CreatePartitions("a", 3, assignments=wrong), NOW)


def test_words_are_added_to_and_removed_from_a_list() -> None:
    in_force = {"listeners": "a,b", "cleanup.policy": "delete"}
    change = {"listeners": ListEdit(added=("c", "a"), removed=("b", "zz"))}
    assert apply_edits(change, {}, in_force, broker_rows(), replace=False) == {"listeners": "a,c"}
    with pytest.raises(Refused, match="not a list"):
        apply_edits({"retention.ms": ListEdit(("1",))}, {}, in_force, topic_rows(), replace=False)
    with pytest.raises(Refused, match="unknown"):
        apply_edits({"no": ListEdit(("1",))}, {}, in_force, topic_rows(), replace=False)


def test_replacement_resets_unnamed_settings_to_their_defaults() -> None:
    shard = controller(1)
    shard.apply(shard.decide(CreateTopic("a", configs={"retention.ms": "5", "segment.bytes": "2097152"}), NOW).changes)
    request = AlterTopicConfigs("a", {"retention.ms": "6"})
    assert shard.decide(request, NOW).reply.configs == {"retention.ms": "6", "segment.bytes": "2097152"}
    assert shard.decide(dataclasses.replace(request, replace=True), NOW).reply.configs == {"retention.ms": "6"}
