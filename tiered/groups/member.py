"""A member of a classic group."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from tiered.groups.records import MemberValue

Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True, eq=False)
class ClassicGroupMember:
    """What a member said when it joined, what it was assigned, and whom to answer.

    `is_new`: it joins for the first time, so it cannot send heartbeats yet. `knows_id`: it can come back by its id.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_token: int | None = None
    sync_token: int | None = None
    is_new: bool = False
    knows_id: bool = True

    @classmethod
    def from_value(cls, value: MemberValue, protocol: str) -> ClassicGroupMember:
        """As the log has it: of its protocols the chosen one is known."""
        return cls(
            value.member_id,
            value.instance_id,
            value.client_id,
            value.client_host,
            value.session_timeout_ms,
            value.rebalance_timeout_ms,
            ((protocol, value.subscription),),
            value.assignment,
        )

    def to_value(self, protocol: str) -> MemberValue:
        """As the log is to have it."""
        return MemberValue(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            self.assignment,
        )

    def metadata(self, protocol: str) -> bytes:
        """What it said for this protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Container[str]) -> str | None:
        """The first of its protocols that all support."""
        return next((name for name, _ in self.protocols if name in candidates), None)

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether it is known to be there without a heartbeat: the coordinator owes it an answer. A new member can be
        missed even then, for it has no other way to show itself than to ask again."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)
