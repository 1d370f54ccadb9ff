"""The health of the cluster with its reasons, as `tiered cluster health` gives it, and the state of each broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from tiered.broker.partition_troubles import PartitionTroubles
from tiered.config.settings import Settings
from tiered.controller.partition_health import unacknowledged_losses
from tiered.errors import Refused, Unavailable
from tiered.ids import TopicId
from tiered.metadata.effective_config import topic_config
from tiered.metadata.image import Image
from tiered.metadata.parts.brokers import BrokerImage
from tiered.metadata.parts.topics import TopicImage
from tiered.metadata.topic_names import INTERNAL
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered_api.health.verdict import (
    EligibleReplicas,
    TroubleTimes,
    UnhealthyPartition,
    find_unhealthy,
    summarize_health,
)
from tiered_api.health.view import FENCED, LIVE, STOPPED, BrokerReport, BrokerSummary, ClusterView, build_report
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.kafka.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    PossibleLoss,
    ReportedFigure,
)
from tiered_api.kafka.server.context.metadata_fragments import make_topic_response

DESCRIBE_CLUSTER = 2
"""The version of the request."""
LISTED_MAX = 1_000
"""Most entries of each list of partitions in a reply."""
PARTITION_BYTES = 100
"""Work on a partition, as on so many bytes of a body: the verdict on many partitions is made in a thread."""


async def get_cluster_health(request: HttpRequest) -> web.StreamResponse:
    """Returns the health of the cluster and its brokers: the verdict, the reasons, and the problems of each broker."""
    broker, image = request.context.broker, request.context.broker.image
    topics = await request.list_topics(Operation.DESCRIBE)
    reports = await fetch_reports(request, image)
    found: dict[str, Any] = await request.run_job(
        image.partition_count * PARTITION_BYTES, _judge, image, topics, reports, broker.settings
    )
    rows = [each | {"since_ms": _date(request, each)} for each in found["partitions"]]
    return json_response(found | {"partitions": rows, "cluster_id": broker.cluster_id})


def _date(request: HttpRequest, row: dict[str, Any]) -> int | None:
    """Returns since when a partition has its first problem, None if that is not known. The row is one of the verdict,
    which was made in a thread: the topic may be gone by now."""
    topic = request.context.broker.image.topics.get(row["topic"])
    if topic is None:
        return None
    troubles, spare = request.context.broker.partition_troubles, len(row["replicas"]) - row["min_isr"]
    since = find_since_ms(troubles, topic.topic_id, row["partition"], row["problems"][0], spare)
    return since if since >= 0 else None


def find_since_ms(troubles: PartitionTroubles, topic_id: TopicId, partition: int, problem: str, spare: int) -> int:
    """Returns since when a partition has a problem, -1 if that is not known. `spare`: the replicas that it has beyond
    `min.insync.replicas`."""
    times = TroubleTimes(
        troubles.leaderless_since_ms(topic_id, partition), troubles.missing_since_ms(topic_id, partition)
    )
    return times.since_ms(problem, spare)


def _judge(image: Image, topics: list[TopicImage], reports: list[BrokerReport], settings: Settings) -> dict[str, Any]:
    """Returns the verdict on these topics, with a row for each broker. Pure."""
    seen, unhealthy = judge_topics(image, topics, settings)
    unhealthy.sort(key=lambda each: each.topic in INTERNAL)  # a list that is cut keeps those of users
    verdict = summarize_health(seen, unhealthy, reports)
    leaders = Counter(each.leader for topic in image.topics.values() for each in topic.partitions)
    said = {each.node_id: each for each in reports}
    return {
        **{name: value[:LISTED_MAX] if isinstance(value, list) else value for name, value in verdict.items()},
        "brokers": [
            _describe_broker(each, image, leaders[each.node_id], said.get(each.node_id), settings.http_scheme)
            for each in seen.brokers.values()
        ],
        "partitions_left_out": max(0, len(unhealthy) - LISTED_MAX),
        "topics": len(topics),
        "partition_count": sum(len(topic.partitions) for topic in topics),
    }


def judge_topics(
    image: Image, topics: Iterable[TopicImage], settings: Settings
) -> tuple[ClusterView, list[UnhealthyPartition]]:
    """Returns the brokers with those of the topics that lack something, and the partitions that lack it. Pure."""
    live, defaults = image.live_ids(), settings.topic_defaults()
    lacking = _find_lacking(topics, live)
    messages = [make_topic_response(topic, live) for topic in lacking]
    seen = ClusterView(image.controller, _summarize_brokers(image, settings.inter_broker_listener_name), messages)
    min_isr = {topic.name: topic_config(topic, defaults).min_insync_replicas for topic in lacking}
    parts = [(topic.name, number, each) for topic in lacking for number, each in enumerate(topic.partitions)]
    eligible = {(name, number): EligibleReplicas(each.elr, each.last_known) for name, number, each in parts}
    adding = {(name, number): each.adding for name, number, each in parts if each.adding}
    return seen, list(find_unhealthy(seen, min_isr, eligible, adding))


def _describe_broker(
    broker: BrokerSummary, image: Image, leaders: int, report: BrokerReport | None, scheme: str
) -> dict[str, Any]:
    return {
        "node_id": broker.node_id,
        "state": broker.state,
        "address": broker.address,
        "http": _http_of(image.brokers[broker.node_id], scheme),
        "rack": broker.rack,
        "machine": broker.machine,
        "disk_full": broker.is_disk_full,
        "leaders": leaders,
        "replicas": image.replica_counts.get(broker.node_id, 0),
        "problems": list(report.problems) if report else [],
        "figures": _group_figures(report.figures) if report else {},
    }


def _find_lacking(topics: Iterable[TopicImage], live: frozenset[int]) -> list[TopicImage]:
    """Returns the topics of which a partition lacks a leader or a replica in sync. A generator for each takes three
    times as long, and a console asks every two seconds."""
    found = []
    for topic in topics:
        for each in topic.partitions:
            if len(each.isr) < len(each.replicas) or each.leader not in live:
                found.append(topic)
                break
    return found


def _summarize_brokers(image: Image, inter_broker: str) -> dict[int, BrokerSummary]:
    return {node: summarize_broker(each, inter_broker) for node, each in sorted(image.brokers.items())}


def summarize_broker(broker: BrokerImage, inter_broker: str) -> BrokerSummary:
    """Returns what clients see of a broker. Its address is that of a listener for clients, if it has one."""
    state = LIVE if broker.live else FENCED if broker.alive else STOPPED
    address = min(broker.listeners.items(), key=lambda each: each[0] == inter_broker, default=("", None))[1]
    return BrokerSummary(broker.node_id, state, address, broker.rack or None, broker.is_disk_full, broker.process)


def _group_figures(figures: Iterable[ReportedFigure]) -> dict[str, Any]:
    """Returns figures by their names; those with a label by name and label."""
    found: dict[str, Any] = {}
    for each in figures:
        if each.label:
            found.setdefault(each.name, {})[each.label] = each.value
        else:
            found[each.name] = each.value
    return found


def _http_of(broker: BrokerImage, scheme: str) -> str | None:
    """Returns the address at which browsers reach a broker, None if it has none. All brokers have one scheme."""
    return broker.advertised_http or (f"{scheme}://{broker.http}" if broker.http else None)


async def fetch_reports(request: HttpRequest, image: Image) -> list[BrokerReport]:
    """Returns what each live broker reports on itself."""
    own = request.context.broker.settings.node_id
    others = [node for node, each in sorted(image.brokers.items()) if each.live and node != own]
    return [_report_self(request, image), *await asyncio.gather(*(_fetch_report(request, node) for node in others))]


def _report_self(request: HttpRequest, image: Image) -> BrokerReport:
    broker = request.context.broker
    losses = tuple(
        PossibleLoss(*tp, *loss)
        for tp, loss in unacknowledged_losses(image).items()
        if request.may(Operation.DESCRIBE, ResourceType.TOPIC, tp.topic)
    )
    if not request.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return BrokerReport(broker.settings.node_id, (), losses=losses, hides_health=True)
    health, found = broker.self_reports.read()
    since_ms = health.details["store_unreachable_since_ms"]
    figures = tuple(ReportedFigure(*each) for each in found)
    return BrokerReport(
        broker.settings.node_id,
        tuple(health.own_problems),
        -1 if since_ms is None else since_ms,
        losses,
        figures=figures,
    )


async def _fetch_report(request: HttpRequest, node: int) -> BrokerReport:
    ask = DescribeClusterRequest(include_health=True)
    try:
        got = await request.context.remote_brokers.send_request(
            node, ask, DescribeClusterResponse, DESCRIBE_CLUSTER, caller=request.caller
        )
    except (Unavailable, Refused) as fault:
        return BrokerReport(node, (f"does not report its health: {fault}",), has_replied=False)
    return build_report(node, got)
