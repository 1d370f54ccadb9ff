"""The memory of each group of a shard, and the holder that it counts for.

A group counts for the first caller that commits or joins after the shard was loaded. The log does not know it, so a
group that nobody used since then counts for nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from tiered.quotas.shares import count_holder


class GroupBytes:
    """About how many bytes of memory each group takes, and all of them."""

    __slots__ = ("by_group", "changed", "total")

    def __init__(self) -> None:
        self.total = 0
        self.by_group: dict[str, int] = {}
        self.changed: dict[str, None] = {}
        """Groups whose bytes have changed since `GroupHolders.settle`."""

    def add(self, group: str, size: int) -> None:
        """Counts bytes that a group took, or gave back if `size` is below 0."""
        if not size:
            return
        self.total += size
        self.changed[group] = None
        if group not in self.by_group:
            self.by_group[group] = size
            return
        self.by_group[group] += size
        if not self.by_group[group]:
            del self.by_group[group]


class GroupHolders:
    """The holders of the groups of a shard. `parts` are the bytes of the groups, counted in several places."""

    __slots__ = ("_counted", "_parts", "by_holder")

    def __init__(self, *parts: GroupBytes) -> None:
        self._parts = parts
        self._counted: dict[str, tuple[str, int]] = {}
        """Holder of each group that has one, and the bytes that count for it."""
        self.by_holder: dict[str, int] = {}
        """Bytes of all groups of each holder."""

    def claim(self, group: str, holder: str) -> None:
        """Lets a group count for a holder, unless it counts for one already."""
        if holder and group not in self._counted:
            size = self._size(group)
            self._counted[group] = holder, size
            count_holder(self.by_holder, holder, size)

    def find(self, group: str) -> str:
        """Returns the holder of a group; "" if it is unknown."""
        return self._counted.get(group, ("", 0))[0]

    def forget(self, group: str) -> None:
        """Forgets the holder of a group that is gone."""
        holder, size = self._counted.pop(group, ("", 0))
        count_holder(self.by_holder, holder, -size)

    def settle(self) -> None:
        """Counts the changes of groups since the last call."""
        for part in self._parts:
            for group in part.changed:
                known = self._counted.get(group)
                if known is not None:
                    holder, before = known
                    size = self._size(group)
                    self._counted[group] = holder, size
                    count_holder(self.by_holder, holder, size - before)
            part.changed.clear()

    def find_violations(self, groups: Collection[str]) -> Iterator[str]:
        """Yields a sentence for each broken rule. Holds between decisions. `groups` are those of the shard."""
        if not set(self._counted) <= set(groups):
            yield f"groups count for holders that are gone: {set(self._counted) - set(groups)}"
        sizes = Counter[str]()
        for group, (holder, _) in self._counted.items():
            sizes[holder] += self._size(group)
        if +sizes != self.by_holder:
            yield f"holders have {dict(+sizes)} bytes, not {self.by_holder}"

    def _size(self, group: str) -> int:
        return sum(part.by_group.get(group, 0) for part in self._parts)
