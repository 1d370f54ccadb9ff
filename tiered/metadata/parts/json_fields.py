"""The fields of a value for a snapshot."""

from __future__ import annotations

from typing import Any

from tiered.metadata.features import FIELDS_SINCE


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields for a snapshot. Those above level 0 of the metadata are left out at their defaults."""
    since, known = FIELDS_SINCE.get(type(value).__name__, {}), value.__dataclass_fields__
    found = {name: getattr(value, name) for name in known}
    return {name: each for name, each in found.items() if name not in since or each != known[name].default}
