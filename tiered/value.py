"""The decorator `value` for dataclasses with slots: frozen for mypy, plain at run time.

A frozen dataclass takes five times as long to make as a plain one, because it sets each field through
`object.__setattr__`. One decision of the controller about a large topic makes some thirty thousand values in one turn
of the event loop. Its class takes twice as long to make, too: `dataclass` compiles seven methods for it. That was a
sixth of a broker's start.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Makes a dataclass with slots that mypy takes for frozen. Nothing checks assignments at run time."""
    has_repr = "__repr__" in vars(cls)
    made = dataclass(slots=True, repr=False, unsafe_hash=True)(cls)
    if not has_repr:
        made.__repr__ = _show  # type: ignore[method-assign]
    return made


def _show(self: Any) -> str:
    """Returns the text that a method of a dataclass would make."""
    shown = ", ".join([f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr])
    return f"{type(self).__qualname__}({shown})"
