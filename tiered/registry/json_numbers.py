"""JSON Schema: compatibility of limits. A reader may widen a limit of the writer or drop it, never narrow or add it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

LOWER, UPPER, MULTIPLE, SAME = "lower", "upper", "multiple", "same"

_NUMBER = {
    "minimum": LOWER, "exclusiveMinimum": LOWER, "maximum": UPPER, "exclusiveMaximum": UPPER, "multipleOf": MULTIPLE,
}  # fmt: skip
LIMITS: Mapping[str, Mapping[str, str]] = {
    "string": {"minLength": LOWER, "maxLength": UPPER, "pattern": SAME},
    "number": _NUMBER,
    "integer": _NUMBER,
    "object": {"minProperties": LOWER, "maxProperties": UPPER, "propertyNames": SAME},
    "array": {"minItems": LOWER, "maxItems": UPPER, "minContains": LOWER, "maxContains": UPPER},
}
"""The limits of each type, and which way is wider."""


def compare_limits(limits: Mapping[str, str], old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[str]:
    """Returns the limits of the new schema that are narrower than those of the old one."""
    found = []
    for name, way in limits.items():
        now, was = new.get(name), old.get(name)
        if now is None or now == was:
            continue
        if was is None:
            found.append(f"{path}/{name} was added")
        elif not _is_wider(way, was, now):
            found.append(f"{path}/{name} was {str(was)[:40]} and is {str(now)[:40]}")
    return found


def _is_wider(way: str, was: Any, now: Any) -> bool:
    if way == SAME or isinstance(was, str | bool | dict) or isinstance(now, str | bool | dict):
        return False
    if way == MULTIPLE:
        try:
            one, other = Decimal(str(was)), Decimal(str(now))
            return other != 0 and one % other == 0
        except InvalidOperation:
            return False
    return bool(now <= was) if way == LOWER else bool(now >= was)
