"""A cluster at one moment, as its health is judged: its brokers with their states, and its topics.

Pure. Metadata names the live brokers and every partition. DescribeCluster names registered brokers that are fenced
(KIP-1073, Kafka 4.0 and newer). A broker with replicas that neither names is `away` as well.
"""

from __future__ import annotations

from dataclasses import replace

from tiered.ids import machine_of
from tiered.value import value
from tiered_api.kafka.client.client import Address
from tiered_api.kafka.protocol.messages.describe_cluster import (
    DescribeClusterResponse,
    PossibleLoss,
    ReportedCertificate,
    ReportedFigure,
)
from tiered_api.kafka.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

LIVE, FENCED, STOPPED, AWAY = "live", "fenced", "stopped", "away"


@value
class BrokerSummary:
    """One broker. `state`: live; fenced; stopped cleanly (only our brokers tell it from fenced); or away: it has
    replicas, but the cluster reports nothing of it."""

    node_id: int
    state: str
    address: str | None = None
    rack: str | None = None
    is_disk_full: bool = False
    process: int = 0
    """Its number among the processes of its machine."""
    fenced_since_ms: int = -1
    """Since when it is fenced, -1 if it is not or if that is not known."""

    @property
    def machine(self) -> int:
        """The machine that it runs on: the node id of the first process there."""
        return machine_of(self.node_id, self.process)


@value
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
    figures: tuple[ReportedFigure, ...] = ()
    """Numbers of the broker, under the names of its metrics."""


@value
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

    def machines(self) -> dict[int, int]:
        """Returns broker -> machine of the brokers that are processes of a machine with others."""
        return {node: broker.machine for node, broker in self.brokers.items() if broker.process}

    def brokers_of_machines(self) -> dict[int, list[int]]:
        """Returns machine -> brokers of the machines with several processes."""
        several = set(self.machines().values())
        found: dict[int, list[int]] = {machine: [] for machine in sorted(several)}
        for node, broker in self.brokers.items():
            if broker.machine in several:
                found[broker.machine].append(node)
        return found

    def state(self, node: int) -> str:
        """Returns one of the four states."""
        known = self.brokers.get(node)
        return known.state if known is not None else AWAY


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
        known[broker.broker_id] = BrokerSummary(
            broker.broker_id, state, where, broker.rack, broker.is_disk_full, broker.process,
            broker.fenced_since_ms,
        )  # fmt: skip
    gone = {broker.broker_id for broker in registered.brokers if broker.is_fenced} if registered is not None else set()
    for here in got.brokers:
        if here.node_id not in gone:
            told = known.get(here.node_id, BrokerSummary(here.node_id, LIVE))
            where = str(Address(here.host, here.port))
            known[here.node_id] = replace(told, state=LIVE, address=where, rack=here.rack)
    return ClusterView(
        got.controller_id, dict(sorted(known.items())), sorted(got.topics, key=lambda each: each.name or "")
    )


def build_report(node_id: int, got: DescribeClusterResponse) -> BrokerReport:
    """Returns the report in the reply of a broker to a request for its health."""
    certificates = None if got.certificates is None else tuple(got.certificates)
    return BrokerReport(
        node_id, tuple(got.problems or ()), got.store_away_since_ms, tuple(got.losses or ()), certificates,
        got.hides_topics, got.hides_health, figures=tuple(got.figures or ()),
    )  # fmt: skip
