"""Share sessions on a leader: the partitions that each member of a share group fetches, and the epoch of its requests.

A member sends one request after the other, with an epoch that counts them. An epoch that does not follow refuses a
request that came late or twice, before that request changes anything. The epochs are those of Kafka 4.2
(`ShareRequestMetadata`). Sessions and their partitions are bounded in number over all members of a broker.

This module holds no locks of records. The caller releases those of a session that has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.ids import PartitionId

INITIAL_EPOCH = 0
"""Epoch of a request that begins a session."""
FINAL_EPOCH = -1
"""Epoch of a request that ends a session."""
EPOCH_MAX = 2**31 - 1
"""The epoch after this one is 1, since 0 would begin a session."""


class ShareSessionKey(NamedTuple):
    """One member of one share group."""

    group: str
    member_id: str


@dataclass(slots=True)
class ShareSession:
    """One session. `epoch` is that of the next request, and the partitions stand in the order of their arrival."""

    key: ShareSessionKey
    connection_id: int
    epoch: int
    partitions: dict[PartitionId, None]

    def list_in_turn(self) -> list[PartitionId]:
        """Returns the partitions, each request beginning with another one, so that none of them starves."""
        partitions = list(self.partitions)
        first = self.epoch % len(partitions) if partitions else 0
        return partitions[first:] + partitions[:first]


class ShareSessions:
    """The sessions of one broker: at most `sessions_max`, with at most `partitions_max` partitions in all."""

    def __init__(self, sessions_max: int, partitions_max: int) -> None:
        self.sessions_max = sessions_max
        self.partitions_max = partitions_max
        self.partition_count = 0
        self._sessions: dict[ShareSessionKey, ShareSession] = {}
        self._by_connection: dict[int, set[ShareSessionKey]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, key: ShareSessionKey, connection_id: int, partitions: Iterable[PartitionId]
    ) -> tuple[ShareSession, ShareSession | None]:
        """Begins a session, in place of an earlier one of the member. Returns both.

        Raises Refused, and changes nothing, if a bound would be exceeded (SHARE_SESSION_LIMIT_REACHED).
        """
        earlier = self._sessions.get(key)
        wanted = dict.fromkeys(partitions)
        if earlier is None and len(self._sessions) >= self.sessions_max:
            raise Refused(
                Code.SHARE_SESSION_LIMIT_REACHED,
                f"the broker has {self.sessions_max} share sessions (group.share.max.share.sessions)",
            )
        self._check_partitions(len(wanted) - (len(earlier.partitions) if earlier else 0))
        if earlier is not None:
            self._remove(earlier)
        session = ShareSession(key, connection_id, _next_epoch(INITIAL_EPOCH), wanted)
        self._sessions[key] = session
        self._by_connection.setdefault(connection_id, set()).add(key)
        self.partition_count += len(wanted)
        return session, earlier

    def update(
        self,
        key: ShareSessionKey,
        epoch: int,
        added: Iterable[PartitionId] = (),
        forgotten: Iterable[PartitionId] = (),
    ) -> ShareSession:
        """Takes a request of a session that goes on: adds partitions, forgets others, and advances the epoch.

        A partition that is both added and forgotten is forgotten, as in Kafka. Raises Refused, and changes nothing,
        for an unknown session, another epoch, or a bound that would be exceeded.
        """
        session = self._find(key)
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH) or epoch != session.epoch:
            raise Refused(
                Code.INVALID_SHARE_SESSION_EPOCH, f"the share session expects epoch {session.epoch}, not {epoch}"
            )
        partitions = session.partitions | dict.fromkeys(added)
        for each in forgotten:
            partitions.pop(each, None)
        more = len(partitions) - len(session.partitions)
        self._check_partitions(more)
        self.partition_count += more
        session.partitions = partitions
        session.epoch = _next_epoch(epoch)
        return session

    def end(self, key: ShareSessionKey) -> ShareSession:
        """Removes the session of a member that sends FINAL_EPOCH. Raises Refused if there is none."""
        session = self._find(key)
        self._remove(session)
        return session

    def on_disconnect(self, connection_id: int) -> list[ShareSession]:
        """Removes and returns the sessions that began on a connection, since no request can follow there."""
        ended = [self._sessions[key] for key in sorted(self._by_connection.get(connection_id, ()))]
        for session in ended:
            self._remove(session)
        return ended

    def _find(self, key: ShareSessionKey) -> ShareSession:
        session = self._sessions.get(key)
        if session is None:
            raise Refused(
                Code.SHARE_SESSION_NOT_FOUND, f"member {key.member_id} of group {key.group} has no share session"
            )
        return session

    def _remove(self, session: ShareSession) -> None:
        del self._sessions[session.key]
        self.partition_count -= len(session.partitions)
        keys = self._by_connection[session.connection_id]
        keys.remove(session.key)
        if not keys:
            del self._by_connection[session.connection_id]

    def _check_partitions(self, more: int) -> None:
        if more > 0 and self.partition_count + more > self.partitions_max:
            raise Refused(
                Code.SHARE_SESSION_LIMIT_REACHED,
                f"the share sessions of the broker would have more than {self.partitions_max} partitions",
            )


def _next_epoch(epoch: int) -> int:
    return 1 if epoch == EPOCH_MAX else epoch + 1
