"""Requests to a group coordinator, with errors as codes that clients know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from tiered.coordination.group_coordinators import SUBMIT_SECONDS
from tiered.errors import Code, Refused
from tiered.groups.requests import DeleteReply, LeaveGroupReply, PartitionOffset, Request
from tiered.metadata.image import Image
from tiered_api.kafka.server.context.context import KafkaContext

R = TypeVar("R")
T = TypeVar("T")

GROUP_OPERATIONS = 0b110101001000
"""Allowed operations of everybody on a group, as Kafka replies without an authorizer."""
COMMIT_PIECE_PARTITIONS = 500
"""Partitions that one decision of the coordinator commits. Each takes some 4 us. Other clients wait meanwhile."""
PENDING_PIECE_PARTITIONS = 200
"""Partitions of one such decision in a transaction. Each takes some 16 us."""
DECIDED_ROWS = 1_000
"""Members that one decision of the coordinator removes, or partitions whose offsets it deletes."""
REBALANCE_WAIT_SECONDS = (60.0, 3600.0)
"""Time that a member waits beyond its rebalance timeout, and the longest wait."""


async def call_coordinator(
    context: KafkaContext, group: str, request: Request, reply_type: type[R], timeout: float = SUBMIT_SECONDS
) -> R | Code:
    """Returns the coordinator's reply, or the error code."""
    try:
        reply: Any = await context.broker.group_coordinators.submit(group, request, timeout)
    except Refused as refused:
        return coordinator_code(refused)
    assert isinstance(reply, reply_type)
    return reply


async def commit_in_pieces(
    context: KafkaContext,
    rows: tuple[PartitionOffset, ...],
    commit: Callable[[tuple[PartitionOffset, ...]], Awaitable[tuple[Code, ...]]],
    size: int,
) -> tuple[Code, ...]:
    """Commits `size` rows at a time, with turns of other clients in between. Returns one code for each row."""
    codes: list[Code] = []
    for first in range(0, len(rows), size):
        if first:
            await context.turns.wait_turn()
        codes += await commit(rows[first : first + size])
    return tuple(codes)


async def decide_in_pieces(
    context: KafkaContext,
    group: str,
    rows: Sequence[T],
    make_request: Callable[[tuple[T, ...]], Request],
    reply_type: type[DeleteReply] | type[LeaveGroupReply],
) -> tuple[Code, list[Code]]:
    """Returns the code of the whole request, and one code for each row if that is NONE.

    Each `DECIDED_ROWS` are one decision. If a later one is refused, the earlier ones stay, as after a lost reply.
    """
    codes: list[Code] = []
    for first in range(0, max(len(rows), 1), DECIDED_ROWS):
        if first:
            await context.turns.wait_turn()
        request = make_request(tuple(rows[first : first + DECIDED_ROWS]))
        reply = await call_coordinator(context, group, request, reply_type)
        code = reply if isinstance(reply, Code) else reply.code
        if isinstance(reply, Code) or code is not Code.NONE:
            return code, []
        codes += reply.codes
    return Code.NONE, codes


def coordinator_code(refused: Refused) -> Code:
    """Returns the error code for the client. A commit that times out means COORDINATOR_NOT_AVAILABLE, so that the
    client looks for the coordinator again."""
    if refused.code in (Code.REQUEST_TIMED_OUT, Code.THROTTLING_QUOTA_EXCEEDED, Code.NOT_CONTROLLER):
        return Code.COORDINATOR_NOT_AVAILABLE
    return refused.code


def rebalance_wait_seconds(rebalance_timeout_ms: int) -> float:
    """Returns the timeout of a call that waits for other members."""
    grace, longest = REBALANCE_WAIT_SECONDS
    return min(max(rebalance_timeout_ms / 1000, 0) + grace, longest)


def has_partition(image: Image, topic: str, partition: int) -> bool:
    """True if the partition exists."""
    known = image.topics.get(topic)
    return known is not None and 0 <= partition < len(known.partitions)
