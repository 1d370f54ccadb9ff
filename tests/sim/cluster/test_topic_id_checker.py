"""Tests of the rule over topic ids (ID), once kept and once broken."""

from __future__ import annotations

import pytest

from tests.sim.cluster import topic_id_checker
from tests.sim.cluster.topic_id_checker import TopicIdChecker
from tiered.ids import TopicId
from tiered.metadata.changes import TopicCreated
from tiered.metadata.image import Image

OLD, NEW = TopicId("A" * 22), TopicId("B" * 21 + "A")


class Log:
    """A log as far as the checker looks at it. It gives `given` to each reader."""

    def __init__(self, topic_id: TopicId, given: object) -> None:
        self.topic_id = topic_id
        self._given = given

    def read_now(self) -> object:
        return self._given


@pytest.mark.parametrize(
    ("topic_id", "given", "known", "expected"),
    [
        (OLD, [], True, ["ID"]),
        (NEW, [], True, []),
        (OLD, False, True, []),
        (OLD, [], False, []),
    ],
    ids=["deleted", "of this name now", "not served", "broker does not run"],
)
def test_reply_from_a_deleted_topic_is_reported(
    topic_id: TopicId, given: object, known: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_id_checker, "READ_AND_WRITE_METHODS", ((Log, "read_now"),))
    image = Image().apply([TopicCreated("t", NEW, ((1,),), {}, 0)])
    found: list[str] = []
    with TopicIdChecker(lambda node: image if known else None, lambda rule, what: found.append(rule)).watch():
        assert Log(topic_id, given).read_now() is given
    assert found == expected
