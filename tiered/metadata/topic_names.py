"""Which names a topic may have: Kafka's rule, which is also what keeps a name from walking paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import product

from tiered.errors import Code, Refused

OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL = frozenset({OFFSETS_TOPIC})
"""Topics of the broker's own: clients neither write nor delete them."""

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


def check_collision(name: str, existing: Mapping[str, object]) -> None:
    """Refuses a name that metrics could not tell from another one, as Kafka does: '.' and '_' look alike there."""
    for other in _alike(name, existing):
        if other != name and other in existing:
            raise Refused(Code.INVALID_TOPIC_EXCEPTION, f"topic name {name!r} collides with {other!r} ('.' equals '_')")


def _alike(name: str, existing: Mapping[str, object]) -> Iterable[str]:
    """Every name that differs in dots and underlines only, or those that exist, whichever are fewer."""
    parts = re.split(r"[._]", name)
    if len(parts) == 1:
        return ()
    if 2 ** (len(parts) - 1) > len(existing):
        folded = name.replace(".", "_")
        return (other for other in existing if other.replace(".", "_") == folded)
    joints = product("._", repeat=len(parts) - 1)
    return ("".join(a + b for a, b in zip(parts, (*joint, ""), strict=True)) for joint in joints)
