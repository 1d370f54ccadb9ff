"""The decorator `value` for dataclasses that are made by the ten thousand: frozen for mypy, plain at run time.

A frozen dataclass takes five times as long to make as a plain one, because it sets each field through
`object.__setattr__`. One decision of the controller about a large topic makes some thirty thousand values in one turn
of the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Makes a dataclass with slots that mypy takes for frozen. Nothing checks assignments at run time."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
