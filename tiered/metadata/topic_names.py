"""Which names a topic may have: Kafka's rule, which is also what keeps a name from walking paths."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tiered.errors import Code, Refused

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_name(name: str) -> None:
    """Refuses a name that no topic may have."""
    if not _LEGAL.fullmatch(name) or name in {".", ".."}:
        raise Refused(
            Code.INVALID_TOPIC_EXCEPTION,
            f"topic name {name[:60]!r} is not 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-' (nor '.' or '..')",
        )


def check_collision(name: str, existing: Iterable[str]) -> None:
    """Refuses a name that metrics could not tell from another one, as Kafka does: '.' and '_' look alike there."""
    folded = name.replace(".", "_")
    for other in existing:
        if other != name and other.replace(".", "_") == folded:
            raise Refused(Code.INVALID_TOPIC_EXCEPTION, f"topic name {name!r} collides with {other!r} ('.' equals '_')")
