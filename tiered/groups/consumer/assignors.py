"""The assignors that a member may name, in the order of the setting `group.consumer.assignors`: the first one assigns
for members that name none. Neither looks at racks, as in Kafka 4.2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tiered.groups.consumer.assignment import Assignor
from tiered.groups.consumer.range_assignor import assign_ranges
from tiered.groups.consumer.uniform_assignor import assign_uniformly

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}


def choose_assignor(wishes: Iterable[str | None]) -> str:
    """Returns the name that most members name, of equal ones the first in the setting's order. None names none."""
    votes = Counter(name for name in wishes if name is not None)
    return max(ASSIGNORS, key=lambda name: votes[name])
