"""An append on the condition that the log ends where the writer thinks: compare and append (I37).

Several brokers may decide about one log, such as the schema registry's. Each decides by all records below an offset,
and appends there only if nobody else has appended meanwhile.
"""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.hot.validation import RecordsUnopened
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica


async def append_at(replica: LeaderReplica, data: bytearray, end_offset: int, timeout_ms: int) -> None:
    """Appends one batch if the log ends at `end_offset`, and returns once it is committed.

    Raises `Refused`: OFFSET_OUT_OF_RANGE if the log ends elsewhere, and otherwise like `LeaderReplica.append`.
    """
    if replica.admission.has_unreported_loss:
        timeout_ms = await replica.admission.wait_loss_reported_within(timeout_ms)
    try:
        _check_end(replica, end_offset)
        appended = replica.append_now(data, ACKS_ALL)
    except RecordsUnopened:
        opened = await replica.open_batches(data)
        _check_end(replica, end_offset)
        appended = replica.append_now(data, ACKS_ALL, opened=opened)
    if not replica.is_committed(appended.last_offset + 1):
        await replica.confirm_committed(appended.last_offset + 1, timeout_ms)


def _check_end(replica: LeaderReplica, end_offset: int) -> None:
    if replica.log.end_offset != end_offset:
        why = f"{replica.tp} ends at {replica.log.end_offset}, not at {end_offset}"
        raise Refused(Code.OFFSET_OUT_OF_RANGE, why)
