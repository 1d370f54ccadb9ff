"""Assignments, and the interface of the assignors that compute them.

An assignor gets what members subscribe to and had as target, and returns the new target of each member. Each partition
of a topic with a subscriber gets exactly one owner, which subscribes to the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

Assignment = Mapping[str, frozenset[int]]
"""Partitions by topic id. A topic without partitions has no entry."""

NO_PARTITIONS: Assignment = {}


class AssignorMember(NamedTuple):
    """A member as an assignor sees it. `topics` are ids of topics that exist, `target` is its target so far."""

    topics: frozenset[str]
    target: Assignment = NO_PARTITIONS
    instance_id: str | None = None


Assignor = Callable[[Mapping[str, AssignorMember], Mapping[str, int]], dict[str, Assignment]]
"""Computes the target of each member from the members by id and the number of partitions by topic id."""
