"""One conditional put until its outcome is known (M1).

A put that was not confirmed may have landed, or may land later. Therefore the object is read back after it, and
`judge_put` decides by the nonces. A put that is still open is repeated with the same bytes: at most one of both lands.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from tiered.errors import Unavailable
from tiered.ports import ObjectStore, Ok

T = TypeVar("T")


class PutOutcome(Enum):
    """Outcomes of a conditional put."""

    LANDED = auto()
    OPEN = auto()
    """The object is as before. The put may still land."""
    LOST = auto()
    """Another writer was first."""
    DELETED = auto()
    """The object was deleted after it was read."""


class Stored(NamedTuple, Generic[T]):
    """An object as it was read: its value, the nonce that its writer drew, and its version in the store."""

    value: T
    nonce: str
    version: str


class SettledPut(NamedTuple, Generic[T]):
    """A put with a known outcome: any but OPEN. `found` is the object that was read back, None if there is none or the
    store confirmed the put. `version` is that of the own object, "" if it is not known."""

    outcome: PutOutcome
    found: Stored[T] | None = None
    version: str = ""


def judge_put(own: str, before: str | None, found: str | None) -> PutOutcome:
    """Decides by the nonce of the object that was read back; None stands for no object. `before` is the nonce of the
    object that the put was to replace."""
    if found == own:
        return PutOutcome.LANDED
    if found == before:
        return PutOutcome.OPEN
    return PutOutcome.DELETED if found is None else PutOutcome.LOST


async def put_until_known(
    store: ObjectStore,
    key: str,
    body: bytes,
    nonce: str,
    *,
    before: Stored[T] | None,
    read: Callable[[], Awaitable[Stored[T] | None]],
    pause: Callable[[int, str], Awaitable[None]],
) -> SettledPut[T]:
    """Puts an object in place of `before`, None for no object, and returns once the outcome is known.

    `read` reads the object back. `pause` waits before the next request, by the number of requests that failed and the
    last reason. It raises if there is no time left: the put is undecided then. An error of `put` is raised: the store
    has refused that put, but an earlier one may still be open.
    """
    failed = 0
    while True:
        result = await store.put(
            key, body, if_absent=before is None, if_match=before.version if before is not None else None
        )
        if isinstance(result, Ok):
            return SettledPut(PutOutcome.LANDED, None, result.version)
        while True:
            try:
                found = await read()
                break
            except Unavailable as error:
                await pause(failed, str(error))
                failed += 1
        outcome = judge_put(nonce, before.nonce if before is not None else None, found.nonce if found else None)
        if outcome is not PutOutcome.OPEN:
            return SettledPut(outcome, found, found.version if found and outcome is PutOutcome.LANDED else "")
        before = found  # its version is another one if somebody has written the same object again
        await pause(failed, str(result))
        failed += 1
