"""Answers to the kernel in few calls: runs of bytes in one, a slice of a file in pieces that it copies by itself.

Bytes before a slice are held back by the network until the first piece follows, so that both leave in one packet.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.ports import Buffer, FileSlice, Stream

SEND_BYTES_PER_EVENT = 1 << 20
"""After so much of one connection the others get their turn."""

Part = Buffer | FileSlice


def send_some(stream: Stream, out: list[Part]) -> bool:
    """Sends from the front of `out`, and takes off what the kernel took; whether that was everything."""
    if len(out) == 1 and not isinstance(only := out[0], FileSlice):
        sent = stream.sendmsg(out)  # type: ignore[arg-type]
        if sent == len(only):
            out.clear()
            return True
        if sent:
            _taken(out, 0, sent)  # less than there is: no part is whole
        return False
    budget, at, count = SEND_BYTES_PER_EVENT, 0, len(out)
    try:
        while at < count and budget > 0:
            part = out[at]
            if isinstance(part, FileSlice):
                sent = stream.send_file(part)
                if sent is None:
                    return False
                left = part.length - sent
                if left:
                    out[at] = FileSlice(part.file, part.start + sent, left)
                else:
                    at += 1
            else:
                end = at + 1
                while end < count and not isinstance(out[end], FileSlice):
                    end += 1
                sent = stream.sendmsg(out[at:end], more=end < count)  # type: ignore[arg-type]
                if sent is None:
                    return False
                at = _taken(out, at, sent)
            budget -= sent
        return at == count
    finally:
        del out[:at]


def in_memory(out: Sequence[Part]) -> int:
    """Bytes of answers that stand in memory; slices of files do not."""
    return sum([len(part) for part in out if not isinstance(part, FileSlice)])


def _taken(out: list[Part], at: int, sent: int) -> int:
    """Where the rest begins when `sent` bytes of the parts from `at` on are gone; a part that is not whole is cut."""
    while True:
        part = out[at]
        assert not isinstance(part, FileSlice)
        size = len(part)
        if sent < size:
            if sent:
                out[at] = memoryview(part)[sent:]
            return at
        sent -= size
        at += 1
        if not sent:
            return at
