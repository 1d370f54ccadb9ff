"""Answers to the kernel in few calls: runs of bytes in one, a slice of a file in pieces that it copies by itself.

Bytes before a slice are held back by the network until the first piece follows, so that both leave in one packet.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.ports import Buffer, FileSlice, Stream

SEND_BYTES_PER_EVENT = 1 << 20
"""After so much of one connection the others get their turn."""

Part = Buffer | FileSlice


def send_parts(stream: Stream, parts: list[Part]) -> bool:
    """Sends from the front of `out`, and takes off what the kernel took; whether that was everything."""
    if len(parts) == 1 and not isinstance(only := parts[0], FileSlice):
        sent = stream.sendmsg(parts)  # type: ignore[arg-type]
        if sent == len(only):
            parts.clear()
            return True
        if sent:
            _skip_sent(parts, 0, sent)  # less than there is: no part is whole
        return False
    budget, at, count = SEND_BYTES_PER_EVENT, 0, len(parts)
    try:
        while at < count and budget > 0:
            part = parts[at]
            if isinstance(part, FileSlice):
                sent = stream.send_file(part)
                if sent is None:
                    return False
                left = part.length - sent
                if left:
                    parts[at] = FileSlice(part.file, part.start + sent, left)
                else:
                    at += 1
            else:
                end = at + 1
                while end < count and not isinstance(parts[end], FileSlice):
                    end += 1
                sent = stream.sendmsg(parts[at:end], more=end < count)  # type: ignore[arg-type]
                if sent is None:
                    return False
                at = _skip_sent(parts, at, sent)
            budget -= sent
        return at == count
    finally:
        del parts[:at]


def memory_bytes(parts: Sequence[Part]) -> int:
    """Bytes of answers that stand in memory; slices of files do not."""
    return sum([len(part) for part in parts if not isinstance(part, FileSlice)])


def _skip_sent(parts: list[Part], at: int, sent: int) -> int:
    """Where the rest begins when `sent` bytes of the parts from `at` on are gone; a part that is not whole is cut."""
    while True:
        part = parts[at]
        assert not isinstance(part, FileSlice)
        size = len(part)
        if sent < size:
            if sent:
                parts[at] = memoryview(part)[sent:]
            return at
        sent -= size
        at += 1
        if not sent:
            return at
