"""Who is served from which topic. ID: a broker serves nothing of a topic that is not in the image that it has heard,
whoever has its name there. Hooks as in `witness`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.sim.cluster.model_of_copies import Red
from tests.sim.cluster.observer import acting_node, patched
from tiered.ids import TopicId
from tiered.metadata.image import Image
from tiered.replication.follower_reads import FollowerReads
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.leader_replica import LeaderReplica

SERVES: tuple[tuple[type[Any], str], ...] = (
    (LeaderReplica, "append_now"),
    (LeaderReplica, "follower_fetched"),
    (LeaderReplica, "follower_again"),
    (LeaderReads, "read_now"),
    (FollowerReads, "read_now"),
)
"""What answers somebody from a log."""


class Served:
    """Looks at each answer as it is given. `image_of` is what a broker has heard; None where none runs."""

    def __init__(self, image_of: Callable[[int], Image | None], red: Red) -> None:
        self.count = 0
        self._image_of = image_of
        self._red = red

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sees everything inside."""
        with ExitStack() as stack:
            for owner, name in SERVES:
                stack.enter_context(patched(owner, name, self._judged))
            yield

    def _judged(self, original: Any) -> Any:
        def answer(source: LeaderReplica | FollowerReads, *args: Any, **options: Any) -> Any:
            given = original(source, *args, **options)
            if given is not False:  # a follower that has to be looked at in full
                self._judge(source.topic_id, original.__name__)
            return given

        return answer

    def _judge(self, topic_id: TopicId, what: str) -> None:
        self.count += 1
        node = acting_node()
        image = self._image_of(node)
        if image is not None and topic_id not in image.topics_by_id:
            self._red("ID", f"b{node} answers ({what}) from topic {topic_id}, of which it has heard that it is deleted")
