"""Tests of metadata changes as people may see them: without secrets, and never long."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from tests.unit.metadata.test_image import ONE_OF_EACH
from tiered.ids import TopicId
from tiered.metadata import changes as kinds
from tiered.metadata.changes import Change
from tiered.metadata.image import Image
from tiered.metadata.shown_changes import ITEMS_MAX, TEXT_MAX, show_change
from tiered.security.secret import HIDDEN

IMAGE = Image().apply(ONE_OF_EACH, 3)


@pytest.mark.parametrize("change", ONE_OF_EACH, ids=lambda change: type(change).__name__)
def test_change_is_shown_without_secrets_and_incarnations(change: Change) -> None:
    shown = show_change(change, IMAGE)
    text = json.dumps(shown)
    assert shown["kind"] in kinds.KINDS and not {"incarnation", "directory"} & shown.keys()
    for each in fields(change):
        if not each.repr:
            assert shown[each.name] == HIDDEN and str(getattr(change, each.name)) not in text.replace(HIDDEN, "")


def test_settings_that_hold_a_secret_are_hidden() -> None:
    configs = {"ssl.keystore.password": "p4ss", "listener.name.a.plain.sasl.jaas.config": "p4ss", "log.dirs": "/a"}
    shown = show_change(kinds.BrokerConfigChanged(1, {**configs, "ssl.key.password": None}), IMAGE)
    assert "p4ss" not in json.dumps(shown) and shown["configs"]["log.dirs"] == "/a"
    assert shown["configs"]["ssl.key.password"] is None


def test_topics_are_named_and_long_values_are_cut() -> None:
    created = kinds.TopicCreated("flat", TopicId("id"), tuple((1, 2) for _ in range(5_000)), {"x": "v" * 5_000}, 7)
    shown = show_change(created, IMAGE)
    assert len(shown["assignments"]) == ITEMS_MAX + 1 and shown["assignments"][-1] == "4980 more"
    assert len(shown["configs"]["x"]) == TEXT_MAX
    added = kinds.PartitionsAdded(TopicId("id"), ((1,),))
    assert show_change(added, Image().apply([created], 1))["topic"] == "flat"
    assert "topic" not in show_change(added, Image())


def test_deletion_names_its_topic_from_the_change_or_the_image() -> None:
    created = kinds.TopicCreated("flat", TopicId("id"), ((1,),), {}, 7)
    older = kinds.TopicDeleted(TopicId("id"), 9)
    image = Image().apply([created, older], 1)
    assert show_change(older, image)["topic"] == "flat"
    for change in (kinds.TopicDeleted(TopicId("id"), 9, "flat"), kinds.TopicForgotten(TopicId("id"), "flat")):
        assert show_change(change, Image())["name"] == "flat"
