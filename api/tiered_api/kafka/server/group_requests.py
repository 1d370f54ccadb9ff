"""How handlers ask the coordinator of a group: what stands in the way of an answer is a code that clients know."""

from __future__ import annotations

from typing import Any, TypeVar

from tiered.broker.group_coordinators import ASK_SECONDS
from tiered.errors import Code, Refused
from tiered.groups.requests import Request
from tiered.metadata.image import Image
from tiered_api.kafka.server.context import KafkaContext

R = TypeVar("R")

GROUP_OPERATIONS = 0b110101001000
"""What anybody may do with a group while nobody is asked who he is: as Kafka answers without an authorizer."""
REBALANCE_WAIT_SECONDS = (60.0, 3600.0)
"""How long a member waits for the others beyond what it asked for, and at most."""


async def call_coordinator(
    context: KafkaContext, group: str, request: Request, reply_type: type[R], timeout: float = ASK_SECONDS
) -> R | Code:
    """The coordinator's reply, or why there is none."""
    try:
        answer: Any = await context.broker.group_coordinators.ask(group, request, timeout)
    except Refused as refused:
        return coordinator_code(refused)
    assert isinstance(answer, reply_type)
    return answer


def coordinator_code(refused: Refused) -> Code:
    """A log that is not committed in time makes the coordinator one that is not available: clients look for it anew."""
    if refused.code in (Code.REQUEST_TIMED_OUT, Code.THROTTLING_QUOTA_EXCEEDED, Code.NOT_CONTROLLER):
        return Code.COORDINATOR_NOT_AVAILABLE
    return refused.code


def rebalance_wait_seconds(rebalance_timeout_ms: int) -> float:
    """The deadline of a call that waits for other members."""
    grace, longest = REBALANCE_WAIT_SECONDS
    return min(max(rebalance_timeout_ms / 1000, 0) + grace, longest)


def has_partition(image: Image, topic: str, partition: int) -> bool:
    """Whether there is such a partition."""
    known = image.topics.get(topic)
    return known is not None and 0 <= partition < len(known.partitions)
