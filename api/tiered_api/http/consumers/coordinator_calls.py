"""Requests to a group's coordinator from callers that do not know that groups have to be loaded first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from typing import TypeVar

from tiered.errors import Code, Refused
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered_api.http.exchange.context import HttpContext

LOADING_SECONDS_MAX = 10.0
RETRY_PAUSE_SECONDS = 0.05
LOADING_CODES = (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE)
MOVED_CODES = (*LOADING_CODES, Code.NOT_COORDINATOR)
"""The codes after which a caller that looks up the coordinator each time tries again."""

T = TypeVar("T")


async def retry_while_loading(
    context: HttpContext, call: Callable[[], Awaitable[T]], retriable: Container[Code] = LOADING_CODES
) -> T:
    """Returns the result of `call`, which is repeated for a while if the group is loading. Groups are loaded after a
    start, after a failed log, and when another broker takes over."""
    end_ns = context.clock.mono_ns() + int(LOADING_SECONDS_MAX * 1e9)
    while True:
        try:
            return await call()
        except Refused as refused:
            if refused.code not in retriable or context.closing or context.clock.mono_ns() > end_ns:
                raise
        await context.clock.sleep(RETRY_PAUSE_SECONDS)


async def find_coordinator(context: HttpContext, group: str) -> int:
    """Returns the broker that coordinates a group. Raises `Refused` (COORDINATOR_NOT_AVAILABLE) while there is none."""
    partition = await context.broker.group_coordinators.host.partition_for(group)
    leader = context.broker.image.topics[OFFSETS_TOPIC].partitions[partition].leader
    if leader < 0:
        raise Refused(Code.COORDINATOR_NOT_AVAILABLE, f"no broker coordinates group {group[:249]!r} now")
    return leader
