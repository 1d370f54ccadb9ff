"""Work in a task of its own, so that the end of its caller is never mistaken for an error of the work.

A task group whose child fails in the turn in which its caller is cancelled raises the error of the child alone (before
Python 3.13). A caller that handles the error then goes on for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_subtask(work: Coroutine[Any, Any, T], name: str) -> T:
    """What `work` gives or raises. `CancelledError` wherever the caller is cancelled, once the work has ended too."""
    task = asyncio.create_task(work, name=name)
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    return task.result()
