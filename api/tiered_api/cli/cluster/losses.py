"""`tiered cluster losses`: the partitions that may have lost acknowledged records, until an operator confirms having
seen them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from tiered.errors import Code, Refused
from tiered.metadata.parts.topics import Loss
from tiered.time_text import format_time
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_lines, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    PossibleLoss,
)
from tiered_api.kafka.protocol.messages.tiered_acknowledge import (
    AcknowledgedTopic,
    TieredAcknowledgeRequest,
    TieredAcknowledgeResponse,
)


async def losses(args: Namespace) -> int:
    """Lists possible losses, or acknowledges them."""
    if args.partitions and not args.topic:
        raise Refused(Code.INVALID_REQUEST, "-p needs --topic")
    async with open_client(args) as client:
        found = await possible_losses(client)
        if args.action is not None:
            found = await _acknowledge(client, args)
    rows = [
        _row(each)
        for each in found
        if args.topic in (None, each.topic) and (not args.partitions or each.partition in args.partitions)
    ]
    print_rows(rows, args.format)
    if args.format != "json":
        what = "acknowledged" if args.action is not None else "possible losses"
        print_lines([f"{len(rows)} {what}" if rows else "no possible losses"])
    return Exit.OK


async def possible_losses(client: KafkaClient) -> Sequence[PossibleLoss]:
    """Returns the losses that are not acknowledged. Raises `Refused` with brokers that are not ours, and without
    DESCRIBE on the cluster."""
    got = await client.send(DescribeClusterRequest(include_health=True), DescribeClusterResponse)
    if got.hides_health:
        raise Refused(Code.CLUSTER_AUTHORIZATION_FAILED, "possible losses need DESCRIBE on the cluster")
    if got.losses is None:
        raise Refused(Code.UNSUPPORTED_VERSION, "these brokers do not report possible losses")
    return got.losses


async def _acknowledge(client: KafkaClient, args: Namespace) -> Sequence[PossibleLoss]:
    topics = None if args.topic is None else [AcknowledgedTopic(args.topic, args.partitions or None)]
    request = TieredAcknowledgeRequest(topics, client.timeout_ms)
    got = await client.send(request, TieredAcknowledgeResponse)
    if got.error_code:
        raise to_refused(got.error_code, "losses are not acknowledged", got.error_message)
    return got.losses


def _row(each: PossibleLoss) -> Row:
    loss = Loss(each.leader_epoch, each.from_offset, each.at_ms, each.newest_ms)
    return {
        "topic": each.topic,
        "partition": each.partition,
        "from_offset": each.from_offset,
        "leader_epoch": each.leader_epoch,
        "told": format_time(each.at_ms),
        "newest_left": format_time(each.newest_ms) if each.newest_ms else None,
        "at_most_seconds": loss.seconds,
    }
