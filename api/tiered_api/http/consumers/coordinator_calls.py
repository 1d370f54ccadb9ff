"""Questions to a group's coordinator from those who do not know that groups have to be loaded first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from typing import TypeVar

from tiered.errors import Code, Refused
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered_api.http.server.context import Site

PATIENCE_SECONDS = 10.0
AGAIN_SECONDS = 0.05
SOON = (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE)
MOVED = (*SOON, Code.NOT_COORDINATOR)
"""For who looks for the coordinator anew each time."""

T = TypeVar("T")


async def patiently(site: Site, ask: Callable[[], Awaitable[T]], soon: Container[Code] = SOON) -> T:
    """What `ask` gives. After a start, when a log was trouble and when another broker takes over, groups are loaded:
    that is waited for a while."""
    end_ns = site.clock.mono_ns() + int(PATIENCE_SECONDS * 1e9)
    while True:
        try:
            return await ask()
        except Refused as refused:
            if refused.code not in soon or site.closing or site.clock.mono_ns() > end_ns:
                raise
        await site.clock.sleep(AGAIN_SECONDS)


async def coordinator_of(site: Site, group: str) -> int:
    """The broker that coordinates a group. `Refused(COORDINATOR_NOT_AVAILABLE)` while there is none."""
    partition = await site.node.coordinators.partition_for(group)
    leader = site.node.image.topics[OFFSETS_TOPIC].partitions[partition].leader
    if leader < 0:
        raise Refused(Code.COORDINATOR_NOT_AVAILABLE, f"no broker coordinates group {group[:249]!r} now")
    return leader
