"""The rules for topic names: Kafka's rules, which also keep a name from escaping its directory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product

from tiered.errors import Code, Refused

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})
"""Internal topics: clients neither write nor delete them."""

PARTS_MAX = 5
"""Most parts of a name, between dots and underscores, for which all joined variants are looked up."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_name(name: str) -> None:
    """Refuses an illegal topic name."""
    if not _LEGAL.fullmatch(name) or name in {".", ".."}:
        raise Refused(
            Code.INVALID_TOPIC_EXCEPTION,
            f"topic name {name[:60]!r} is not 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-' (nor '.' or '..')",
        )


def check_writable(name: str) -> None:
    """Refuses records of clients for an internal topic."""
    if name in INTERNAL:
        raise Refused(Code.INVALID_TOPIC_EXCEPTION, f"topic {name} is internal: clients cannot write to it")


class TopicNames:
    """Names in use, for one decision about many topics. In metrics '.' and '_' are the same, as in Kafka."""

    def __init__(self, existing: Mapping[str, object]) -> None:
        self._existing = existing
        self._by_folded_name: dict[str, str] | None = None
        """A name in use by its folded form; built once a name has too many variants to look up."""
        self._added: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._existing or self._added.get(_fold_separators(name)) == name

    def add(self, name: str) -> None:
        """Adds a name that was checked."""
        self._added[_fold_separators(name)] = name

    def check_collision(self, name: str) -> None:
        """Refuses a name that differs from one in use only in dots and underscores."""
        other = self._added.get(_fold_separators(name)) or self._find_collision(name)
        if other is not None and other != name:
            raise Refused(Code.INVALID_TOPIC_EXCEPTION, f"topic name {name!r} collides with {other!r} ('.' equals '_')")

    def _find_collision(self, name: str) -> str | None:
        parts = re.split(r"[._]", name)
        if self._by_folded_name is None and len(parts) <= PARTS_MAX:
            joints = product("._", repeat=len(parts) - 1)
            variants = ("".join(a + b for a, b in zip(parts, (*joint, ""), strict=True)) for joint in joints)
            return next((variant for variant in variants if variant != name and variant in self._existing), None)
        if self._by_folded_name is None:
            self._by_folded_name = {_fold_separators(each): each for each in self._existing}
        return self._by_folded_name.get(_fold_separators(name))


def _fold_separators(name: str) -> str:
    return name.replace(".", "_")
