"""Fencing of requests about offsets by the member epoch (I18): a member that is behind commits nothing.

For a member of the classic protocol the generation is its member epoch.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.consumer.group import ConsumerGroup


def check_committer(group: ConsumerGroup, member_id: str, epoch: int, knows_epochs: bool) -> Code | None:
    """Returns the refusal of a commit, else None. A client that is no member may commit while the group has none.

    `knows_epochs` is False for a request of an API version that knows no member epochs; classic members need none.
    """
    if epoch < 0 and not group.members:
        return None
    code = _check_epoch(group, member_id, epoch)
    may_not_know = knows_epochs or code is Code.UNKNOWN_MEMBER_ID or group.members[member_id].metadata.classic
    return code if may_not_know else Code.UNSUPPORTED_VERSION


def check_transactional_committer(group: ConsumerGroup, member_id: str, epoch: int) -> Code | None:
    """Does the same for a commit in a transaction. A producer that names no member passes, as before KIP-447."""
    if epoch < 0 and (not group.members or not member_id):
        return None
    code = _check_epoch(group, member_id, epoch)
    return Code.ILLEGAL_GENERATION if code is Code.STALE_MEMBER_EPOCH else code


def check_fetcher(group: ConsumerGroup | None, member_id: str | None, epoch: int) -> Code | None:
    """Returns the refusal of a fetch of offsets, else None. A client that names no member passes."""
    return None if group is None or (member_id is None and epoch < 0) else _check_epoch(group, member_id or "", epoch)


def _check_epoch(group: ConsumerGroup, member_id: str, epoch: int) -> Code | None:
    member = group.members.get(member_id)
    if member is None:
        return Code.UNKNOWN_MEMBER_ID
    if epoch == member.current.epoch:
        return None
    return Code.STALE_MEMBER_EPOCH if member.metadata.classic is None else Code.ILLEGAL_GENERATION
