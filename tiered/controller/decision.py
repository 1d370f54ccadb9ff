"""The shape of replicated state: decide, then apply.

`decide` judges a request against the state and returns changes; it changes nothing itself. Only `apply` changes the
state. It takes changes that are committed, or that will be applied again from the log if their commit fails. A shard
that loses its log is dropped and loaded again by replay, so there is no rollback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tiered.metadata.changes import Change
from tiered.metadata.image import Image

Request_contra = TypeVar("Request_contra", contravariant=True)
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class ControllerResult(Generic[Reply]):
    """The changes to append, in order, and the reply to send once they are committed.

    A decision without changes is answered at once, but only after all earlier decisions are committed. `after` is the
    image after the changes, if the reply is made from it: to apply ten thousand changes takes tens of milliseconds.
    """

    changes: tuple[Change, ...]
    reply: Reply
    after: Image | None = None


class Shard(Protocol[Request_contra]):
    """State behind a log. `decide` raises `Refused` to reject a request."""

    def decide(self, request: Request_contra, now_ms: int) -> ControllerResult[Any]: ...
    def apply(self, changes: Sequence[Change], slot: int | None = None) -> None: ...
