"""Fetches the state of a cluster for `tiered cluster brokers` and `health`, and the reports of its brokers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tiered.controller.partition_health import SILENT_MEND
from tiered.errors import Code, Refused, Unavailable
from tiered.time_text import format_time
from tiered_api.health.view import FENCED, STOPPED, BrokerReport, BrokerSummary, ClusterView, build_report, build_view
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)

REPORT_SECONDS = 5.0
UNCONNECTED = "the controller has contact with it: compare advertised.listeners with the addresses that clients reach"
DOWN_SECONDS = 2.0
"""Longest wait for the report of a broker that is not live."""


async def fetch_cluster_view(client: KafkaClient, topics: list[str] | None = None) -> ClusterView:
    """Fetches the state of all brokers and of the given topics; None: of all topics."""
    got = await client.fetch_metadata(topics)
    return build_view(await fetch_registered(client), got)


async def fetch_self_reports(client: KafkaClient, seen: ClusterView) -> list[BrokerReport]:
    """Returns the reports of all live brokers. A broker that does not reply has that problem; Kafka's brokers report
    nothing."""
    nodes = [node for node in seen.brokers if seen.is_live(node)]
    found = await asyncio.gather(*(_fetch_self_report(client, node) for node in nodes))
    return [_advise(said, client) for said in found if said is not None]


def _advise(report: BrokerReport, client: KafkaClient) -> BrokerReport:
    """Adds what to look at if a live broker cannot be connected: the controller has contact with it."""
    if report.has_replied or report.node_id not in client.connect_faults:
        return report
    return replace(report, problems=(f"{report.problems[0]}; {UNCONNECTED}",))


async def fetch_reports_of_down(client: KafkaClient, seen: ClusterView) -> list[BrokerReport]:
    """Returns a report for each fenced or stopped broker: its own if it replies, which then says why it is cut off.

    A broker that runs and cannot join counts as stopped too, if its last run ended cleanly.
    """
    down = [each for each in seen.brokers.values() if each.state in (FENCED, STOPPED) and each.address is not None]
    return list(await asyncio.gather(*(_fetch_report_of_down(client, each) for each in down)))


async def _fetch_report_of_down(client: KafkaClient, broker: BrokerSummary) -> BrokerReport:
    host, _, port = str(broker.address).rpartition(":")
    client.add_broker(broker.node_id, host.strip("[]"), int(port))  # Metadata names live brokers alone
    report = await _fetch_self_report(client, broker.node_id, DOWN_SECONDS)
    if report is not None and report.has_replied:
        return report if report.problems else replace(report, problems=(f"is {broker.state}, and replies",))
    why = "" if report is None else report.problems[0].partition(": ")[2]
    if broker.state == STOPPED:
        sentence = f"stopped, and has not joined again ({why}): if its process runs, its log says why it cannot join"
    else:
        since = f" since {format_time(broker.fenced_since_ms)}" if broker.fenced_since_ms >= 0 else ""
        sentence = f"is fenced{since}, and does not reply: {why} ({SILENT_MEND})"
    return BrokerReport(broker.node_id, (sentence,), has_replied=False)


async def _fetch_self_report(
    client: KafkaClient, node: int, longest_seconds: float = REPORT_SECONDS
) -> BrokerReport | None:
    request = DescribeClusterRequest(include_health=True)
    seconds = min(longest_seconds, client.timeout)
    try:
        async with asyncio.timeout(seconds):
            got = await client.send(request, DescribeClusterResponse, node_id=node)
    except (TimeoutError, Unavailable) as fault:
        why = str(fault) or client.connect_faults.get(node) or f"no reply within {seconds:g} s"
        return BrokerReport(node, (f"does not report its health: {why}",), has_replied=False)
    except Refused as no:
        if no.code is Code.UNSUPPORTED_VERSION:
            return None
        raise
    if got.problems is None and not got.hides_health:
        return None
    return build_report(node, got)


async def fetch_registered(client: KafkaClient) -> DescribeClusterResponse | None:
    """Returns the registered brokers, or None if the brokers do not know the request.

    Raises Refused with the error of the reply.
    """
    try:
        got = await client.send(DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse)
    except Refused as no:
        if no.code is Code.UNSUPPORTED_VERSION:
            return None
        raise
    if got.error_code:
        raise to_refused(got.error_code, "the brokers of the cluster", got.error_message)
    return got
