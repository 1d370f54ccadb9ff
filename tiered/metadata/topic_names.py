"""Which names a topic may have: Kafka's rule, which is also what keeps a name from walking paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product

from tiered.errors import Code, Refused

OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL = frozenset({OFFSETS_TOPIC})
"""Topics of the broker's own: clients neither write nor delete them."""

PARTS_MAX = 5
"""Parts of a name between dots and underlines, of which all ways to join them are looked up."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_name(name: str) -> None:
    """Refuses a name that no topic may have."""
    if not _LEGAL.fullmatch(name) or name in {".", ".."}:
        raise Refused(
            Code.INVALID_TOPIC_EXCEPTION,
            f"topic name {name[:60]!r} is not 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-' (nor '.' or '..')",
        )


def check_writable(name: str) -> None:
    """Refuses records of clients for a topic of the broker's own."""
    if name in INTERNAL:
        raise Refused(Code.INVALID_TOPIC_EXCEPTION, f"topic {name} is the broker's own: nobody else writes to it")


class TopicNames:
    """Names that are taken, for one decision about many: metrics could not tell '.' from '_' in a name, as in Kafka."""

    def __init__(self, existing: Mapping[str, object]) -> None:
        self._existing = existing
        self._by_folded_name: dict[str, str] | None = None
        """A name by what all have in common that are like it; made once many ways would have to be looked up."""
        self._added: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._existing or self._added.get(_fold_separators(name)) == name

    def add(self, name: str) -> None:
        """Takes a name that was checked."""
        self._added[_fold_separators(name)] = name

    def check_collision(self, name: str) -> None:
        """Refuses a name that differs from one that is taken in dots and underlines only."""
        other = self._added.get(_fold_separators(name)) or self._find_collision(name)
        if other is not None and other != name:
            raise Refused(Code.INVALID_TOPIC_EXCEPTION, f"topic name {name!r} collides with {other!r} ('.' equals '_')")

    def _find_collision(self, name: str) -> str | None:
        parts = re.split(r"[._]", name)
        if self._by_folded_name is None and len(parts) <= PARTS_MAX:
            joints = product("._", repeat=len(parts) - 1)
            variants = ("".join(a + b for a, b in zip(parts, (*joint, ""), strict=True)) for joint in joints)
            return next((way for way in variants if way != name and way in self._existing), None)
        if self._by_folded_name is None:
            self._by_folded_name = {_fold_separators(each): each for each in self._existing}
        return self._by_folded_name.get(_fold_separators(name))


def _fold_separators(name: str) -> str:
    return name.replace(".", "_")
