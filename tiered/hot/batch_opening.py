"""The records of large batches, read by a thread before the batches are appended.

Keys and timestamps of some batches have to be known. A batch that compresses well takes seconds to open, which the
event loop must not spend. One is opened at a time, in pieces. Owners, such as the addresses of clients, take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tiered.errors import Code, Refused, Unavailable
from tiered.fair_slots import FairSlots
from tiered.hot.validation import OpenedBatch, open_batches
from tiered.ports import Buffer
from tiered.thread_pool import ThreadPool

SECONDS = 30.0
WAITING_MAX = 200
"""Limit on the batches that wait for the thread: each is in memory."""

_workers = ThreadPool("batch-opening", 1)
_slots = FairSlots(1, WAITING_MAX)


async def open_in_thread(data: Buffer, owner: str = "") -> Sequence[OpenedBatch]:
    """Returns what `open_batches` finds. `data` must stay as it is until then.

    Raises `Refused` with REQUEST_TIMED_OUT if the thread has too much to do: clients repeat such a request.
    """
    async with _slots.take(owner):
        try:
            return await _workers.run(partial(open_batches, bytes(data)), SECONDS)
        except (TimeoutError, Unavailable):
            raise Refused(Code.REQUEST_TIMED_OUT, "the batch could not be opened in time to read its records") from None
