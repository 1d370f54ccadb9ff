"""The records of large batches, read by a thread before the batches are appended.

Keys and timestamps of some batches have to be known. A batch that compresses well takes seconds to open, which the
event loop must not spend. One is opened at a time, in pieces. Owners, such as the addresses of clients, take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tiered.errors import Code, Refused, Unavailable
from tiered.fair_slots import FairSlots
from tiered.hot.validation import OpenedBatch, open_batches
from tiered.ports import Buffer
from tiered.records.model import CODEC_MASK
from tiered.records.native import walk
from tiered.thread_pool import ThreadPool

T = TypeVar("T")

SECONDS = 30.0
WAITING_MAX = 200
"""Limit on the batches that wait for the thread: each is in memory."""
SMALL_BYTES = 1 << 14

_workers = ThreadPool("batch-opening", 1)
_slots = FairSlots(1, WAITING_MAX)


async def open_in_thread(data: Buffer, owner: str = "") -> Sequence[OpenedBatch]:
    """Returns what `open_batches` finds. `data` must stay as it is until then.

    Raises `Refused` as `run_in_turn` does.
    """
    if is_small(data):
        return open_batches(data)
    return await run_in_turn(partial(open_batches, bytes(data)), owner)


def is_small(data: Buffer) -> bool:
    """True if the event loop reads the records of these batches in about a millisecond."""
    return len(data) <= SMALL_BYTES and not any(
        batch.attributes & CODEC_MASK for batch in walk(data, check_crc=False).batches
    )


async def run_in_turn(function: Callable[[], T], owner: str = "") -> T:
    """Returns `function()`, which reads records, computed by the thread when it is the owner's turn.

    Raises `Refused` with REQUEST_TIMED_OUT if the thread has too much to do: clients repeat such a request.
    """
    async with _slots.take(owner):
        try:
            return await _workers.run(function, SECONDS)
        except (TimeoutError, Unavailable):
            raise Refused(Code.REQUEST_TIMED_OUT, "the batch could not be opened in time to read its records") from None
