"""The state of a cluster for `tiered cluster brokers` and `health`: its brokers with their states, and its topics.

Metadata names the live brokers and every partition. DescribeCluster names registered brokers that are fenced (KIP-1073,
Kafka 4.0 and newer). A broker with replicas that neither names is `away` as well.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from tiered.errors import Code, Refused, Unavailable
from tiered_api.kafka.client.client import Address, KafkaClient, to_refused
from tiered_api.kafka.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    PossibleLoss,
    ReportedCertificate,
)
from tiered_api.kafka.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

REPORT_SECONDS = 5.0
DOWN_SECONDS = 2.0
"""Longest wait for the report of a broker that is not live."""
LIVE, FENCED, STOPPED, AWAY = "live", "fenced", "stopped", "away"


@dataclass(frozen=True, slots=True)
class BrokerSummary:
    """One broker. `state`: live; fenced; stopped cleanly (only our brokers tell it from fenced); or away: it has
    replicas, but the cluster reports nothing of it."""

    node_id: int
    state: str
    address: str | None = None
    rack: str | None = None
    is_disk_full: bool = False


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """The report of one broker on itself: sentences, and since when (ms) its bucket is unreachable, -1 if it is not.
    `losses` are those of the cluster, by this broker's metadata. `certificates` are None if it does not report them."""

    node_id: int
    problems: tuple[str, ...]
    store_unreachable_since_ms: int = -1
    losses: tuple[PossibleLoss, ...] = ()
    certificates: tuple[ReportedCertificate, ...] | None = None
    hides_topics: bool = False
    """True if the caller may not describe each topic."""
    hides_health: bool = False
    """True if the caller may not see the health."""
    has_replied: bool = True


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster at one moment: brokers by their ids, in order."""

    controller: int
    brokers: dict[int, BrokerSummary]
    topics: list[MetadataResponseTopic]

    def is_live(self, node: int) -> bool:
        """True if the broker is live."""
        return self.state(node) == LIVE

    def is_disk_full(self, node: int) -> bool:
        """True if the disk of the broker is full, as far as the cluster reports it."""
        known = self.brokers.get(node)
        return known is not None and known.is_disk_full

    def state(self, node: int) -> str:
        """Returns one of the four states."""
        known = self.brokers.get(node)
        return known.state if known is not None else AWAY


async def fetch_cluster_view(client: KafkaClient, topics: list[str] | None = None) -> ClusterView:
    """Fetches the state of all brokers and of the given topics; None: of all topics."""
    got = await client.fetch_metadata(topics)
    return build_view(await fetch_registered(client), got)


def build_view(registered: DescribeClusterResponse | None, got: MetadataResponse) -> ClusterView:
    """Combines both replies; the second is None if brokers do not know DescribeCluster. DescribeCluster decides which
    brokers are fenced: our brokers name one that has just stopped in Metadata for a moment longer."""
    known: dict[int, BrokerSummary] = {}
    for topic in got.topics:
        for each in topic.partitions:
            known.update({node: BrokerSummary(node, AWAY) for node in each.replica_nodes})
    for broker in registered.brokers if registered is not None else ():
        state = STOPPED if broker.is_stopped else FENCED if broker.is_fenced else AWAY
        where = str(Address(broker.host, broker.port))
        known[broker.broker_id] = BrokerSummary(broker.broker_id, state, where, broker.rack, broker.is_disk_full)
    full = {node for node, broker in known.items() if broker.is_disk_full}
    gone = {broker.broker_id for broker in registered.brokers if broker.is_fenced} if registered is not None else set()
    for here in got.brokers:
        if here.node_id not in gone:
            where, is_full = str(Address(here.host, here.port)), here.node_id in full
            known[here.node_id] = BrokerSummary(here.node_id, LIVE, where, here.rack, is_full)
    return ClusterView(
        got.controller_id, dict(sorted(known.items())), sorted(got.topics, key=lambda each: each.name or "")
    )


async def fetch_self_reports(client: KafkaClient, seen: ClusterView) -> list[BrokerReport]:
    """Returns the reports of all live brokers. A broker that does not reply has that problem; Kafka's brokers report
    nothing."""
    nodes = [node for node in seen.brokers if seen.is_live(node)]
    found = await asyncio.gather(*(_fetch_self_report(client, node) for node in nodes))
    return [said for said in found if said is not None]


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
        sentence = f"is fenced, and does not reply: {why}"
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
    certificates = None if got.certificates is None else tuple(got.certificates)
    return BrokerReport(
        node, tuple(got.problems or ()), got.store_away_since_ms, tuple(got.losses or ()), certificates,
        got.hides_topics, got.hides_health,
    )  # fmt: skip


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
