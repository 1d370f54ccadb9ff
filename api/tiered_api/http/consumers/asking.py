"""Questions to a group's coordinator from those who do not know that groups have to be loaded first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tiered.errors import Code, Refused
from tiered_api.http.site import Site

PATIENCE_SECONDS = 10.0
AGAIN_SECONDS = 0.05
SOON = (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE)

T = TypeVar("T")


async def patiently(site: Site, ask: Callable[[], Awaitable[T]]) -> T:
    """What `ask` gives. After a start, and when a log was trouble, groups are loaded: that is waited for a while."""
    end_ns = site.clock.mono_ns() + int(PATIENCE_SECONDS * 1e9)
    while True:
        try:
            return await ask()
        except Refused as refused:
            if refused.code not in SOON or site.closing or site.clock.mono_ns() > end_ns:
                raise
        await site.clock.sleep(AGAIN_SECONDS)
