"""`tiered cluster upgrade`: which formats the cluster writes, which its brokers can, and the step to the newest ones.

Brokers of a new program go on writing what the earlier one reads, until an operator finalizes the upgrade. Each broker
may go back to the earlier program before that, and none after it (KIP-584).
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Mapping

from tiered import __version__
from tiered.errors import Code, Refused, Unavailable
from tiered.metadata.features import FEATURES, METADATA_VERSION
from tiered_api.cli.cluster.view import fetch_cluster_view
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_json, print_lines, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.health.view import LIVE, ClusterView
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tiered_api.kafka.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE = 1
"""The kind of an update that lowers nothing."""


async def upgrade(args: Namespace) -> int:
    """Shows the state of an upgrade, or finalizes it. The exit code of a state is 0."""
    async with open_client(args) as client:
        seen = await fetch_cluster_view(client)
        live = sorted(each.node_id for each in seen.brokers.values() if each.state == LIVE)
        replies = await asyncio.gather(*(_ask(client, node) for node in live))
        known = {node: reply for node, reply in zip(live, replies, strict=True) if reply is not None}
        if not known:
            raise Unavailable("no broker told its levels")
        level, supported = find_level(known), find_supported(known)
        if args.finalize and supported > level:
            await _raise_level(client, supported)
            level = supported
    if args.format == "json":
        print_json({"level": level, "supported": supported, "brokers": broker_rows(seen, known)})
    else:
        print_rows(broker_rows(seen, known), args.format)
        print_lines([describe(level, supported, seen, known)])
    return Exit.OK


def find_level(known: Mapping[int, ApiVersionsResponse]) -> int:
    """Returns the level in force: the highest that a broker has seen."""
    levels = (each for reply in known.values() for each in reply.finalized_features if each.name == METADATA_VERSION)
    return max((each.max_version_level for each in levels), default=0)


def find_supported(known: Mapping[int, ApiVersionsResponse]) -> int:
    """Returns the level that all brokers which reply can write."""
    return min(_supported_by(reply) for reply in known.values())


def _supported_by(reply: ApiVersionsResponse) -> int:
    return next((each.max_version for each in reply.supported_features if each.name == METADATA_VERSION), 0)


def broker_rows(seen: ClusterView, known: Mapping[int, ApiVersionsResponse]) -> list[Row]:
    """Returns the rows to print. A broker that does not reply has null as its level."""
    return [
        {
            "broker": broker.node_id,
            "state": broker.state,
            "supports": _supported_by(known[broker.node_id]) if broker.node_id in known else None,
        }
        for broker in seen.brokers.values()
    ]


def describe(level: int, supported: int, seen: ClusterView, known: Mapping[int, ApiVersionsResponse]) -> str:
    """Returns what an operator does next."""
    away = [str(broker.node_id) for broker in seen.brokers.values() if broker.node_id not in known]
    newest = max(_supported_by(reply) for reply in known.values())
    older = [str(node) for node, reply in sorted(known.items()) if _supported_by(reply) < newest]
    own = FEATURES[METADATA_VERSION].highest
    if older and supported < newest:
        return f"the cluster writes level {level}; brokers {', '.join(older)} have an earlier program: replace it first"
    if supported > level:
        rest = f", and brokers {', '.join(away)} did not say what they support" if away else ""
        then = "no broker may go back to the earlier program after that"
        return f"the cluster writes level {level} and could write {supported}{rest}: --finalize raises it; {then}"
    if own > level:
        return f"the cluster writes level {level}, as its program does; this command is of {__version__}, with {own}"
    return f"the cluster writes level {level}: there is nothing to finalize"


async def _ask(client: KafkaClient, node: int) -> ApiVersionsResponse | None:
    """Returns the levels of one broker; None if it does not reply. A broker that has just ended is not waited for."""
    request = ApiVersionsRequest("tiered", __version__)
    try:
        got = await client.send(request, ApiVersionsResponse, node_id=node, connects_once=True)
    except (Refused, Unavailable):
        return None
    return got if got.error_code == Code.NONE.number else None


async def _raise_level(client: KafkaClient, level: int) -> None:
    """Raises the level. Raises `Refused` with the sentence of the controller if a broker does not support it."""
    update = FeatureUpdateKey(METADATA_VERSION, level, False, UPGRADE)
    got = await client.send(UpdateFeaturesRequest(client.timeout_ms, [update], False), UpdateFeaturesResponse)
    if got.error_code:
        raise to_refused(got.error_code, f"{METADATA_VERSION}={level} is not set", got.error_message)
    for each in got.results:
        if each.error_code:
            raise to_refused(each.error_code, f"{METADATA_VERSION}={level} is not set", each.error_message)
