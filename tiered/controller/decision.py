"""The shape of replicated state: decide, then apply.

`decide` judges a request against the state and returns changes; it mutates nothing. `apply` alone mutates, and takes
only changes that are committed, or that will be applied again from the log when their commit fails. A shard that loses
its log is dropped and loaded by replay: there is no rollback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tiered.metadata.changes import Change

Request_contra = TypeVar("Request_contra", contravariant=True)
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Reply]):
    """What to append, in order, and what to answer once it is committed. No changes: the answer stands at once,
    but only after everything that was decided before is committed too."""

    changes: tuple[Change, ...]
    reply: Reply


class Shard(Protocol[Request_contra]):
    """State behind a log. `decide` raises `Refused` to say no."""

    def decide(self, request: Request_contra, now_ms: int) -> Decision[Any]: ...
    def apply(self, changes: Sequence[Change], slot: int | None = None) -> None: ...
