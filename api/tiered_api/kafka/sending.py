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
            _drop(out, sent)
        return False
    budget = SEND_BYTES_PER_EVENT
    while out:
        if budget <= 0:
            return False
        first = out[0]
        if isinstance(first, FileSlice):
            sent = stream.send_file(first)
            if sent is None:
                return False
            left = first.length - sent
            if left:
                out[0] = FileSlice(first.file, first.start + sent, left)
            else:
                del out[0]
        else:
            run, more = _run(out)
            sent = stream.sendmsg(run, more=more)
            if sent is None:
                return False
            _drop(out, sent)
        budget -= sent
    return True


def in_memory(out: Sequence[Part]) -> int:
    """Bytes of answers that stand in memory; slices of files do not."""
    return sum([len(part) for part in out if not isinstance(part, FileSlice)])


def _run(out: Sequence[Part]) -> tuple[Sequence[Buffer], bool]:
    """The parts up to the first slice of a file, and whether there is one."""
    run: list[Buffer] = []
    for part in out:
        if isinstance(part, FileSlice):
            return run, True
        run.append(part)
    return run, False


def _drop(out: list[Part], sent: int) -> None:
    """Takes what was sent off the front."""
    done = 0
    for part in out:
        assert not isinstance(part, FileSlice)
        size = len(part)
        if sent < size:
            if sent:
                out[done] = memoryview(part)[sent:]
            break
        sent -= size
        done += 1
        if not sent:
            break
    del out[:done]
