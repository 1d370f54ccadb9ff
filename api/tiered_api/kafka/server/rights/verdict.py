"""The outcome of the check of a request: it is refused, or parts of it are.

A check takes parts out of the request that its caller may not use. After the handler, the check adds the refusals of
these parts to the response.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from tiered.errors import Code, InvariantViolation
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.rights import rights
from tiered_api.kafka.server.rights.rights import Rights

T = TypeVar("T")

TOPIC_REFUSED, WHY = rights.TOPIC_REFUSED
GROUP_REFUSED = Code.GROUP_AUTHORIZATION_FAILED.number
CLUSTER_REFUSED = Code.CLUSTER_AUTHORIZATION_FAILED.number
TRANSACTIONAL_ID_REFUSED = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED.number


class Verdict(NamedTuple):
    """`response` ends the request. Otherwise `finish` completes the response of the handler."""

    response: Message | None = None
    finish: Callable[[Any], Coroutine[Any, Any, None]] | None = None


ALLOWED = Verdict()

Guard = Callable[[Rights, Any, int], Coroutine[Any, Any, Verdict]]
"""Checks a request of a version, and changes it."""


async def allow(rights: Rights, request: Any, version: int) -> Verdict:
    """Lets every request through."""
    return ALLOWED


async def split_items(
    rights: Rights,
    request: Any,
    field: str,
    response_type: Callable[[], Any],
    answer_field: str,
    is_allowed: Callable[[Any], bool],
    refuse: Callable[[Any], Any],
) -> Verdict:
    """Takes forbidden items out of a list of the request. Each gets its refusal in a list of the response."""
    allowed, refused = await part(rights, getattr(request, field), is_allowed)
    if not refused:
        return ALLOWED

    async def finish(response: Any) -> None:
        async for each in rights.each_of(refused):
            getattr(response, answer_field).append(refuse(each))

    if not allowed:
        response = response_type()
        await finish(response)
        return Verdict(response)
    setattr(request, field, allowed)
    return Verdict(None, finish)


async def part(rights: Rights, items: Sequence[T], is_allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Returns the allowed and the forbidden items, in their order."""
    allowed, refused = list[T](), list[T]()
    async for each in rights.each_of(items):
        (allowed if is_allowed(each) else refused).append(each)
    return allowed, refused


async def keep(rights: Rights, items: Sequence[T], is_allowed: Callable[[T], bool]) -> list[T]:
    """Returns the allowed items, in their order."""
    return (await part(rights, items, is_allowed))[0]


def run_without_pause(check: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a check with rights that have no turns: it waits for nothing."""
    try:
        check.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise InvariantViolation("a check without turns waits")
