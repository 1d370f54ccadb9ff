"""Operators of a run that change a cluster in use, as the options say: reassignments, brokers that join and leave, and
settings."""

from __future__ import annotations

from collections.abc import Collection

from tests.sim.cluster.broker_changes import BrokerChanges
from tests.sim.cluster.expected import ExpectedTopics
from tests.sim.cluster.model import ClusterModel
from tests.sim.cluster.moves import Reassigner, Reassignments
from tests.sim.cluster.observer import Findings
from tests.sim.cluster.options import ClusterOptions
from tests.sim.cluster.settings_changes import SettingsChanges
from tests.sim.cluster.world import SimHost, SimWorld
from tiered.metadata.parts.topics import PartitionImage

Operator = Reassigner | BrokerChanges | SettingsChanges


class Operators:
    """The operators of one run."""

    def __init__(
        self,
        options: ClusterOptions,
        world: SimWorld,
        model: ClusterModel,
        expected: ExpectedTopics,
        findings: Findings,
    ) -> None:
        self.reassignments = Reassignments()
        self._world = world
        self._model = model
        loop, tell = world.loop, world.events.add
        for host in world.hosts.values():
            host.is_absent = host.machine_id > options.brokers
        self._by_kind: dict[str, Operator] = {}
        if options.moves:
            client = world.client("c-moves")
            self._by_kind["move"] = Reassigner(
                client, loop, options, tell, self.reassignments, self._present_ids, self.count_moving,
                lambda: model.image,
            )  # fmt: skip
        if options.joins:
            client = world.client("c-brokers")
            self._by_kind["broker"] = BrokerChanges(
                client, loop, options, tell, self.reassignments, world.hosts, lambda: model.image
            )
        if options.changes:
            client = world.client("c-settings")
            self._by_kind["settings"] = SettingsChanges(
                client, loop, options, tell, expected, findings, self._is_any_down
            )

    @property
    def all(self) -> list[Operator]:
        """Returns the operators in the order of their start."""
        return [*self._by_kind.values()]

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the operations by kind."""
        found = {f"{kind}_{name}": count for kind, each in self._by_kind.items() for name, count in each.counts.items()}
        mover = self._by_kind.get("move")
        if isinstance(mover, Reassigner):
            found |= {"moved_offsets": mover.offsets_moved, "moved_together": mover.concurrent_moves}
            found["moved_back"] = mover.returned
        return found

    def present_hosts(self) -> list[SimHost]:
        """Returns the machines of brokers that have joined and have not left."""
        return [host for host in self._world.hosts.values() if not host.is_absent]

    def count_moving(self, lost_for_good: Collection[int] = ()) -> int:
        """Returns how many partitions move now. A move to a broker that is lost for good does not end."""
        return sum(
            each.is_reassigning and not waits_for_lost(each, lost_for_good)
            for topic in self._model.image.topics.values()
            for each in topic.partitions
        )

    def _present_ids(self) -> list[int]:
        return [host.node_id for host in self.present_hosts()]

    def _is_any_down(self) -> bool:
        return not all(host.up for host in self.present_hosts())


def waits_for_lost(partition: PartitionImage, lost_for_good: Collection[int]) -> bool:
    """True if a reassignment cannot end: each replica that it adds is in sync, or on a broker that is lost for good."""
    missing = {*partition.adding} - {*partition.isr}
    return bool(missing) and missing <= {*lost_for_good}
