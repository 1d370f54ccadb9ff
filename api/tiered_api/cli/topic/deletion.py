"""`tiered topic delete`: deletes topics, or says how many records would go."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from tiered.errors import Code, Refused
from tiered_api.cli.deletion_rights import find_kept_topics
from tiered_api.cli.output import Row
from tiered_api.cli.reach import open_client
from tiered_api.cli.status import DRY_RUN, format_status, print_outcomes
from tiered_api.cli.topic.describe import partitions_of, topics_by_name
from tiered_api.cli.topic.topics import select_topics
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.leader_routing import EARLIEST, LATEST, list_offsets
from tiered_api.kafka.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tiered_api.kafka.protocol.messages.metadata import MetadataResponseTopic


async def delete(args: Namespace) -> int:
    """Deletes topics, or shows what would be deleted."""
    async with open_client(args) as client:
        names = await select_topics(client, args)
        rows = await plan_deletion(client, names) if args.dry_run else await _delete(client, names)
    return print_outcomes(rows, args.format)


async def plan_deletion(client: KafkaClient, names: Sequence[str]) -> list[Row]:
    """Returns a row for each topic with its partitions and records. A reply that is missing leaves the records open."""
    rows: list[Row] = []
    kept = await find_kept_topics(client, names)
    for name, topic in (await topics_by_name(client, names)).items():
        if isinstance(topic, Refused):
            found: tuple[int | None, int | None, str] = None, None, format_status(topic.code.number, None)
        elif topic.is_internal:
            why = "the topic is internal: it cannot be deleted"
            found = len(topic.partitions), None, format_status(Code.INVALID_TOPIC_EXCEPTION.number, why)
        else:
            no_right = format_status(Code.TOPIC_AUTHORIZATION_FAILED.number, None)
            status = no_right if name in kept else DRY_RUN
            found = len(topic.partitions), await _count_records(client, topic), status
        rows.append(dict(zip(("topic", "partitions", "records", "status"), (name, *found), strict=True)))
    return rows


async def _count_records(client: KafkaClient, topic: MetadataResponseTopic) -> int | None:
    """Returns the offsets from the log start to the end of all partitions; None if a leader does not tell them."""
    partitions = partitions_of(topic)
    total = 0
    for sign, where in ((-1, EARLIEST), (1, LATEST)):
        for outcome in (await list_offsets(client, dict.fromkeys(partitions, where))).values():
            if isinstance(outcome, Refused):
                return None
            total += sign * outcome[0]
    return total


async def _delete(client: KafkaClient, names: list[str]) -> list[Row]:
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names], topic_names=names, timeout_ms=client.timeout_ms
    )
    got = await client.send_to_controller(request, DeleteTopicsResponse)
    return [
        {"topic": each.name, "status": format_status(each.error_code, each.error_message)} for each in got.responses
    ]
