"""Topic id of each read and write. ID: a broker serves only topics whose id is in its metadata image, even if another
topic has the same name. Hooks as in `observer`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.sim.cluster.model_of_copies import ReportFinding
from tests.sim.cluster.observer import acting_node, patched
from tiered.ids import TopicId
from tiered.metadata.image import Image
from tiered.replication.follower_reads import FollowerReads
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.leader_replica import LeaderReplica

READ_AND_WRITE_METHODS: tuple[tuple[type[Any], str], ...] = (
    (LeaderReplica, "append_now"),
    (LeaderReplica, "handle_follower_fetch"),
    (LeaderReplica, "handle_repeated_fetch"),
    (LeaderReads, "read_now"),
    (FollowerReads, "read_now"),
)
"""Methods that serve reads and writes from a log."""


class TopicIdChecker:
    """Checks each reply when a broker gives it. `image_of` returns the metadata image of a broker; None if it does not
    run."""

    def __init__(self, image_of: Callable[[int], Image | None], report: ReportFinding) -> None:
        self.count = 0
        self._image_of = image_of
        self._report = report

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observes everything within the context."""
        with ExitStack() as stack:
            for owner, name in READ_AND_WRITE_METHODS:
                stack.enter_context(patched(owner, name, self._wrap))
            yield

    def _wrap(self, original: Any) -> Any:
        def checked(source: LeaderReplica | LeaderReads | FollowerReads, *args: Any, **options: Any) -> Any:
            given = original(source, *args, **options)
            if given is not False:  # a follower that has to be looked at in full
                self._check_topic_id(source.topic_id, original.__name__)
            return given

        return checked

    def _check_topic_id(self, topic_id: TopicId, what: str) -> None:
        self.count += 1
        node = acting_node()
        image = self._image_of(node)
        if image is not None and topic_id not in image.topics_by_id:
            self._report("ID", f"b{node} answers ({what}) from topic {topic_id}, which it knows to be deleted")
