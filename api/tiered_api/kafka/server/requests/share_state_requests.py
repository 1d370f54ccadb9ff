"""Requests to the share coordinator of this broker, one for each share partition of a request of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from tiered.coordination.share_coordinators import SUBMIT_SECONDS
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered.share.requests import KeyedRequest, Reply, SharePartitionKey, StateReply
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import coordinator_code
from tiered_api.kafka.server.rights.inter_broker_auth import check_credential, refusal_text
from tiered_api.kafka.server.slots.bounded_tasks import run_bounded

R = TypeVar("R")

TIMED_OUT = StateReply(Code.REQUEST_TIMED_OUT, f"no reply within {SUBMIT_SECONDS:g} s")


class StateTopic(Protocol):
    """A topic of such a request, with its partitions."""

    @property
    def topic_id(self) -> str: ...
    @property
    def partitions(self) -> Sequence[Any]: ...


class StateRequest(Protocol):
    """A request about the share state of one group. `credential` is that of brokers, empty from other callers."""

    @property
    def group_id(self) -> str: ...
    @property
    def topics(self) -> Sequence[StateTopic]: ...
    @property
    def credential(self) -> bytes: ...


async def ask_each(
    context: KafkaContext,
    call: Call[Any],
    make_request: Callable[[SharePartitionKey, Any], KeyedRequest],
    make_result: Callable[[int, int, str | None, Any], R],
) -> list[tuple[str, list[R]]]:
    """Returns the results of all partitions by topic, in the order of the request.

    `make_result` gets the partition, the error code, its text, and the coordinator's reply. A broker proves by its
    credential that it is one; the rights of other callers were checked before.
    """
    request: StateRequest = call.request
    group, topics = request.group_id, request.topics
    refused = check_credential(context, call, request.credential) if request.credential else None
    rows = [(topic, row) async for topic in context.turns.each_of(topics) for row in topic.partitions]
    keys = [SharePartitionKey(group, TopicId(topic.topic_id), row.partition) for topic, row in rows]
    if refused is not None:
        replies: Iterator[Reply] = iter([StateReply(refused.code, refusal_text(refused))] * len(rows))
    else:
        tasks = [partial(_ask, context, make_request(key, row)) for key, (_, row) in zip(keys, rows, strict=True)]
        timeout_ms = int(SUBMIT_SECONDS * 1000)
        replies = iter(await run_bounded(tasks, timeout_ms, lambda _: TIMED_OUT, context.turns))
    found: list[tuple[str, list[R]]] = []
    async for topic in context.turns.each_of(topics):
        results = []
        for row in topic.partitions:
            reply = next(replies)
            results.append(make_result(row.partition, reply.code.number, reply.why or None, reply))
        found.append((topic.topic_id, results))
    return found


async def _ask(context: KafkaContext, request: KeyedRequest) -> Reply:
    try:
        return await context.broker.share_coordinators.submit(request)
    except Refused as refused:
        return StateReply(coordinator_code(refused), refusal_text(refused))
