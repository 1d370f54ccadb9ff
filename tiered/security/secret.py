"""A text that never prints: passwords, keys, and values that have them inside."""

from __future__ import annotations

import hmac
from typing import NoReturn

HIDDEN = "[hidden]"
"""Stands for the text, as in Kafka's log."""


class Secret:
    """A secret text. It prints as `[hidden]` in every form, and no serializer takes it. `reveal` returns the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """Returns the text, for the one place that needs it."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, _: str) -> str:
        return HIDDEN

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        """Compares in a time that does not depend on the texts, but for their length."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def __deepcopy__(self, _: object) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not serialized")
