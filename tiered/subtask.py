"""Work in a task of its own, so that cancellation of the caller is never mistaken for an error of the work.

Before Python 3.13, a task group can hide a cancellation. If its child fails in the same turn of the event loop in which
its caller is cancelled, the group raises only the child's error. A caller that handles the error then runs for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_subtask(work: Coroutine[Any, Any, T], name: str) -> T:
    """Returns or raises what `work` does. Raises `CancelledError` whenever the caller is cancelled, after the work has
    ended too."""
    task = asyncio.create_task(work, name=name)
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    return task.result()
