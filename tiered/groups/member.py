"""A member of a classic group."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from tiered.groups.records import MemberValue

Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True, eq=False)
class ClassicGroupMember:
    """Data of the member's last JoinGroup, its assignment, and the tokens of its parked requests.

    `join_token` and `sync_token` name its parked JoinGroup and SyncGroup, None if there is none. `is_new` is True until
    the member's first rebalance completes: it cannot send heartbeats before. `knows_id` is True if the client knows its
    member id and can join again with it.
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
        """Builds a member from the group's record, which has only the chosen one of its protocols."""
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
        """Returns the member's part of the group's record."""
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
        """Returns the member's metadata for a protocol; empty if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Container[str]) -> str | None:
        """Returns the first of the member's protocols that is among the candidates."""
        return next((name for name, _ in self.protocols if name in candidates), None)

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """True if the member is known to be alive without a heartbeat, because one of its requests is parked here.

        A new member can expire even then: it can show that it is alive only by joining again.
        """
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)
