"""Metadata (API key 3): brokers, topics and partition leaders.

In v0 an empty list stands for all topics. From v1 on null does, and an empty list stands for none. v4+ says whether the
broker may create missing topics, v7+ has leader epochs, v8+ allowed operations (KIP-430), v10+ topic ids (KIP-516;
requests by id from v12 on), v13 an error for the whole reply.

The reply about a topic that the broker creates has its leaders. Kafka replies that the topic is unknown, and creates it
afterwards. This broker does the same if the creation takes long, because other requests wait behind this one. A topic
for which the cluster has no room gets POLICY_VIOLATION, and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from tiered.controller.requests import CreateTopic, CreateTopics
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import TopicImage
from tiered.metadata.topic_names import INTERNAL, check_name
from tiered.security.acls import Operation, ResourceType
from tiered_api.kafka.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from tiered_api.kafka.server.context.advertised_brokers import advertised_brokers, advertised_controller, live_brokers
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import CLUSTER_OPERATIONS, PARTITIONS_PER_REQUEST_MAX, has_id
from tiered_api.kafka.server.context.metadata_fragments import encode_fragment, join_fragments, make_topic_response
from tiered_api.kafka.server.context.mutation_charges import MutationCharges
from tiered_api.kafka.server.rights.rights import Rights, find_rights

log = logging.getLogger(__name__)

BY_ID = 12
CREATED_AT_ONCE = 1_000
"""Most topics that one request creates. A client with more topics repeats its request."""
CREATE_SECONDS = 5.0
"""Longest wait for created topics. While the bucket is known to be unreachable, the request does not wait."""


async def handle(context: KafkaContext, call: Call[MetadataRequest]) -> bytes:
    """Returns the encoded reply, with copies of fragments whose topics did not change."""
    request, version = call.request, call.version
    denied: dict[str, Code] = {}
    rights, charges = find_rights(context, call), MutationCharges(context, call)
    if request.allow_auto_topic_creation and context.broker.settings.auto_create_topics_enable:
        denied = await _create_missing_topics(context, request, rights, charges)
    await context.broker.suspected_brokers.wait_resolved()
    image = context.broker.image
    head = MetadataResponse(
        call.pause_ms,
        brokers=[
            MetadataResponseBroker(broker.node_id, host, port, broker.rack or None)
            for broker, host, port in advertised_brokers(
                image, call.listener, context.broker.suspected_brokers.recently_gone()
            )
        ],
        cluster_id=context.broker.cluster_id,
        controller_id=advertised_controller(image),
    )
    if request.include_cluster_authorized_operations:
        head.cluster_authorized_operations = CLUSTER_OPERATIONS if rights is None else rights.cluster_mask()
    return join_fragments(head, version, await _encode_topics(context, image, request, version, denied, rights))


async def _encode_topics(
    context: KafkaContext,
    image: Image,
    request: MetadataRequest,
    version: int,
    denied: Mapping[str, Code],
    rights: Rights | None,
) -> list[bytes]:
    made: list[bytes] = []
    with_operations = request.include_topic_authorized_operations
    everything = request.topics is None or (version == 0 and not request.topics)
    named = (
        await _select_all_topics(context, image, rights)
        if everything
        else await _select_topics(context, request.topics or [], image, version, denied, rights)
    )
    async for each in context.turns.each_of(named):
        if isinstance(each, MetadataResponseTopic):
            made.append(encode_fragment(each, version))
        elif with_operations and rights is not None:
            topic = make_topic_response(each, live_brokers(image), with_operations)
            topic.topic_authorized_operations = rights.mask(ResourceType.TOPIC, each.name)
            made.append(encode_fragment(topic, version))
        else:
            context.topic_fragments.use_image(image)
            made.append(context.topic_fragments.get_fragment(each, version, with_operations))
    return made


async def _select_all_topics(
    context: KafkaContext, image: Image, rights: Rights | None
) -> Sequence[TopicImage | MetadataResponseTopic]:
    topics = list(image.topics.values())
    if rights is None:
        return topics
    return [each async for each in context.turns.each_of(topics) if rights.on_topic(Operation.DESCRIBE, each.name)]


async def _select_topics(
    context: KafkaContext,
    topics: list[MetadataRequestTopic],
    image: Image,
    version: int,
    denied: Mapping[str, Code],
    rights: Rights | None,
) -> Sequence[TopicImage | MetadataResponseTopic]:
    """Returns each requested topic once: its image, or the error if there is none.

    A topic that the caller may not describe looks the same, if it exists or not.
    """
    made: dict[tuple[str | None, str], TopicImage | MetadataResponseTopic] = {}
    async for requested in context.turns.each_of(topics):
        by_id = has_id(requested.topic_id)
        if (by_id and version < BY_ID) or (not by_id and requested.name is None):
            made[requested.name, requested.topic_id] = MetadataResponseTopic(
                Code.INVALID_REQUEST.number, requested.name or "", requested.topic_id
            )
        elif by_id:
            found = image.topics_by_id.get(TopicId(requested.topic_id))
            if found is not None and rights is not None and not rights.on_topic(Operation.DESCRIBE, found.name):
                found = None
            made[None, requested.topic_id] = found or MetadataResponseTopic(
                Code.UNKNOWN_TOPIC_ID.number, None, requested.topic_id
            )
        elif rights is not None and not rights.on_topic(Operation.DESCRIBE, requested.name or ""):
            name = requested.name or ""
            made[name, ""] = MetadataResponseTopic(Code.TOPIC_AUTHORIZATION_FAILED.number, name)
        else:
            name = requested.name or ""
            made[name, ""] = image.topics.get(name) or _make_unknown_topic(name, denied.get(name))
    return list(made.values())


def _make_unknown_topic(name: str, denied: Code | None) -> MetadataResponseTopic:
    if denied is not None:
        return MetadataResponseTopic(denied.number, name)
    try:
        check_name(name)
    except Refused as refused:
        return MetadataResponseTopic(refused.code.number, name)
    return MetadataResponseTopic(Code.UNKNOWN_TOPIC_OR_PARTITION.number, name, is_internal=name in INTERNAL)


async def _create_missing_topics(
    context: KafkaContext, request: MetadataRequest, rights: Rights | None, charges: MutationCharges
) -> dict[str, Code]:
    """Creates missing topics with legal names, and charges them to the client (KIP-599). Returns the names for which
    the cluster has no room, and those that the caller may not create. A topic that fails for another reason stays
    unknown."""
    known, each_of = context.broker.image.topics, context.turns.each_of
    named = {each.name async for each in each_of(request.topics or ()) if each.name and not has_id(each.topic_id)}
    missing = sorted(name for name in named if name not in known and name not in INTERNAL)
    forbidden: dict[str, Code] = {}
    if rights is not None:
        shown = [name async for name in each_of(missing) if rights.on_topic(Operation.DESCRIBE, name)]
        forbidden = {
            name: Code.TOPIC_AUTHORIZATION_FAILED async for name in each_of(shown) if not rights.may_create(name)
        }
        missing = [name for name in shown if name not in forbidden]
    missing = missing[
        : max(1, min(CREATED_AT_ONCE, PARTITIONS_PER_REQUEST_MAX // context.broker.settings.num_partitions))
    ]
    made: Sequence[TopicImage | Refused] = ()
    if missing and context.broker.store.takes_writes:
        wanted = CreateTopics(tuple(map(CreateTopic, missing)))
        with suppress(Refused):
            made = await context.broker.submit(wanted, CREATE_SECONDS, by=charges)
    denied = {
        name: each
        for name, each in zip(missing, made, strict=bool(made))
        if isinstance(each, Refused) and each.code is Code.POLICY_VIOLATION
    }
    suppressed = context.log_limiter.admit("no room for topics") if denied else None
    if suppressed is not None:
        name, why = next(iter(denied.items()))
        log.warning(
            "topics not created, a limit is reached topic=%s topics=%d suppressed=%d why=%s",
            name,
            len(denied),
            suppressed,
            why.why,
        )
    return forbidden | {name: each.code for name, each in denied.items()}
