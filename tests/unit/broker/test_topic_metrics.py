"""Tests of the topics that have labels of their own in the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.unit.member_view import make_view
from tiered.broker.topic_metrics import TopicLabels
from tiered.ids import TopicId
from tiered.metadata.changes import TopicCreated
from tiered.metadata.image import Image
from tiered.metrics import OTHERS


def topics(names: Sequence[str]) -> Image:
    """Returns the image of a cluster with these topics."""
    return Image().apply([TopicCreated(name, TopicId(f"{name:0>22}"), ((1,),), {}, 0) for name in names], 0)


def test_topics_beyond_the_limit_share_a_label() -> None:
    labels = TopicLabels(2, make_view(topics("abc")))
    assert [labels.get_label(name) for name in "abcab"] == ["a", "b", OTHERS, "a", "b"]


def test_deleted_topic_leaves_its_label_to_another() -> None:
    view = make_view(topics("abc"))
    labels = TopicLabels(2, view)
    assert [labels.get_label(name) for name in "abc"] == ["a", "b", OTHERS]
    view.loader.image = topics("bc")
    assert [labels.get_label(name) for name in "bc"] == ["b", "c"]
    view.loader.image = topics("abc")
    assert labels.get_label("a") == OTHERS, "the places are taken"


def test_topic_keeps_its_label_while_there_is_room() -> None:
    view = make_view(topics("a"))
    labels = TopicLabels(2, view)
    assert labels.get_label("a") == "a"
    view.loader.image = topics("")
    assert labels.get_label("a") == "a"


def test_without_room_all_topics_share_one_label() -> None:
    assert TopicLabels(0, make_view(topics("a"))).get_label("a") == OTHERS


def test_topics_beyond_the_limit_cost_one_look_at_the_labels() -> None:
    """A scrape once looked at all labels again for each topic without one: 2 s of CPU with 10,000 topics."""
    looks = []

    class Names(dict[str, None]):
        def __iter__(self) -> Iterator[str]:
            looks.append(len(self))
            return super().__iter__()

    labels = TopicLabels(2, make_view(topics("abcdef")))
    assert [labels.get_label(name) for name in "ab"] == ["a", "b"]
    labels._labelled_topics = Names(labels._labelled_topics)
    assert {labels.get_label(name) for name in "cdef"} == {OTHERS}
    labels._labelled_topics = Names(labels._labelled_topics)
    assert {labels.get_label(name) for name in "fedc"} == {OTHERS}
    assert looks == [2]
