"""Replies to the socket in few system calls: runs of bytes in one call, file slices by the kernel's own copy.

The network stack holds back bytes before a slice until the first piece of the slice, so that both leave in one packet.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.ports import Buffer, FileSlice, Stream

SEND_BYTES_PER_EVENT = 1 << 20
"""After so many bytes of one connection, other connections get their turn."""
MEMORY_BYTES_PER_EVENT = 256 << 10
"""The same for bytes in memory, which the kernel copies while the event loop waits."""
MEMORY_EXTRA = SEND_BYTES_PER_EVENT // MEMORY_BYTES_PER_EVENT - 1
"""Bytes that a byte in memory uses of `SEND_BYTES_PER_EVENT` beside itself."""

Part = Buffer | FileSlice


def send_parts(stream: Stream, parts: list[Part]) -> bool:
    """Sends from the front of `parts`, and removes what the kernel took. True if that was everything."""
    if len(parts) == 1 and not isinstance(only := parts[0], FileSlice) and len(only) <= MEMORY_BYTES_PER_EVENT:
        sent = stream.sendmsg(parts)  # type: ignore[arg-type]
        if sent == len(only):
            parts.clear()
            return True
        if sent:
            _skip_sent(parts, 0, sent)  # less than the part: the rest stays
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
                end, size = at + 1, len(part)
                while end < count and not isinstance(after := parts[end], FileSlice):
                    end += 1
                    size += len(after)
                if size > MEMORY_BYTES_PER_EVENT:
                    sent = stream.sendmsg(_cut_run(parts[at:end]))
                else:
                    sent = stream.sendmsg(parts[at:end], more=end < count)  # type: ignore[arg-type]
                if sent is None:
                    return False
                at = _skip_sent(parts, at, sent)
                budget -= sent * MEMORY_EXTRA
            budget -= sent
        return at == count
    finally:
        del parts[:at]


def _cut_run(parts: list[Part]) -> list[Buffer]:
    """Returns the first `MEMORY_BYTES_PER_EVENT` of bytes in memory."""
    run: list[Buffer] = []
    room = MEMORY_BYTES_PER_EVENT
    for part in parts:
        assert not isinstance(part, FileSlice)
        if len(part) >= room:
            run.append(memoryview(part)[:room])
            break
        run.append(part)
        room -= len(part)
    return run


def memory_bytes(parts: Sequence[Part]) -> int:
    """Returns the bytes of replies in memory; file slices do not count."""
    return sum([len(part) for part in parts if not isinstance(part, FileSlice)])


def _skip_sent(parts: list[Part], at: int, sent: int) -> int:
    """Returns the place of the first unsent part after `sent` bytes from the part at `at` on. A part that was sent in
    part is cut."""
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
