"""The bytes after the log part of objects that this broker has put: a clean needs their keys, and reads nothing for
them.

Pure. The newest objects are kept: the next clean has to know what they supersede.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from tiered.ports import Buffer

TAILS_BYTES = 64 << 20
"""Limit on all tails of a broker. A key takes 20 bytes of them."""


class KeptTails:
    """At most `bytes_max` bytes of tails by object key. The oldest ones make room for new ones."""

    def __init__(self, bytes_max: int = TAILS_BYTES) -> None:
        self._bytes_max = bytes_max
        self._tails: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    @property
    def bytes_held(self) -> int:
        """Returns the bytes in memory."""
        return self._bytes

    def keep(self, key: str, tail: bytes) -> None:
        """Keeps the tail of a new object, unless it alone takes too much of the room."""
        if len(tail) > self._bytes_max // 4:
            return
        self.drop([key])
        self._tails[key] = tail
        self._bytes += len(tail)
        while self._bytes > self._bytes_max:
            self._bytes -= len(self._tails.popitem(last=False)[1])

    def add_older(self, key: str, tail: Buffer) -> None:
        """Keeps the tail of an object that was read, if there is room for it beside all newer ones."""
        if key in self._tails or self._bytes + len(tail) > self._bytes_max // 2:
            return
        self._tails[key] = bytes(tail)
        self._tails.move_to_end(key, last=False)
        self._bytes += len(tail)

    def find(self, key: str) -> bytes | None:
        """Returns the tail of an object, or None if it is not in memory."""
        return self._tails.get(key)

    def drop(self, keys: Iterable[str]) -> None:
        """Drops the tails of objects that no manifest names any more."""
        for key in keys:
            self._bytes -= len(self._tails.pop(key, b""))
