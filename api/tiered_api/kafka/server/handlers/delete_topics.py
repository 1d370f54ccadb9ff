"""DeleteTopics (API key 20): deletes topics by name or (v6+, KIP-516) by id, unless `delete.topic.enable` forbids it.

Once the reply is there, the name is free. The objects in the bucket are deleted later. A topic that the request names
twice is refused once.
"""

from __future__ import annotations

from functools import partial

from tiered.controller.requests import DeleteTopic
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered_api.kafka.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tiered_api.kafka.protocol.schema import ZERO_ID
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import CONCURRENT_CHANGES_MAX, clamp_timeout_ms, has_id
from tiered_api.kafka.server.context.mutation_charges import MutationCharges
from tiered_api.kafka.server.slots.bounded_tasks import run_bounded

BY_ID = 6


async def handle(context: KafkaContext, call: Call[DeleteTopicsRequest]) -> DeleteTopicsResponse:
    """Returns one result per topic."""
    request = call.request
    turns = context.turns
    by_name = (DeleteTopicState(name) for name in request.topic_names)
    wanted: dict[tuple[str | None, str], bool] = {}
    async for each in turns.each_of(request.topics if call.version >= BY_ID else by_name):
        place = each.name, each.topic_id
        wanted[place] = place not in wanted
    charges = MutationCharges(context, call)
    works = [partial(_delete, context, charges, *place, once) async for place, once in turns.each_of(wanted.items())]
    places = list(wanted)
    results = await run_bounded(
        works,
        clamp_timeout_ms(request.timeout_ms),
        lambda number: _make_refused_result(
            *places[number], Refused(Code.REQUEST_TIMED_OUT, "it is not done within the timeout, and may still be done")
        ),
        turns,
        concurrency=CONCURRENT_CHANGES_MAX,
    )
    return DeleteTopicsResponse(0, results)


async def _delete(
    context: KafkaContext, charges: MutationCharges, name: str | None, topic_id: str, is_unique: bool
) -> DeletableTopicResult:
    try:
        if not is_unique:
            raise Refused(Code.INVALID_REQUEST, "the request names the topic twice")
        if name is not None and has_id(topic_id):
            raise Refused(Code.INVALID_REQUEST, "a topic is named by its name or by its id, not by both")
        if name is None and not has_id(topic_id):
            raise Refused(Code.INVALID_REQUEST, "neither a name nor an id is given")
        if not context.broker.settings.delete_topic_enable:
            raise Refused(Code.TOPIC_DELETION_DISABLED, "delete.topic.enable=false")
        image = context.broker.image
        found = image.topics_by_id.get(TopicId(topic_id)) if name is None else image.topics.get(name)
        if name is not None:
            deleted = await context.broker.submit(DeleteTopic(name), by=charges)
        else:
            if found is None:
                raise Refused(Code.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id}")
            deleted = await context.broker.submit(DeleteTopic(found.name, found.topic_id), by=charges)
    except Refused as refused:
        return _make_refused_result(name, topic_id, refused)
    return DeletableTopicResult(deleted.name, deleted.topic_id)


def _make_refused_result(name: str | None, topic_id: str, refused: Refused) -> DeletableTopicResult:
    return DeletableTopicResult(name, topic_id or ZERO_ID, refused.code.number, refused.why)
