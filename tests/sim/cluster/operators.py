"""Everybody who changes a cluster in use, as the options say: moves of partitions, brokers that come and go,
and settings."""

from __future__ import annotations

from tests.sim.cluster.broker_changes import BrokerChanges
from tests.sim.cluster.expected import Expected
from tests.sim.cluster.model import Truth
from tests.sim.cluster.moves import Mover, Moves
from tests.sim.cluster.observer import Findings
from tests.sim.cluster.options import Options
from tests.sim.cluster.settings_changes import SettingsChanges
from tests.sim.cluster.world import Host, World

Operator = Mover | BrokerChanges | SettingsChanges


class Operators:
    """Those of one run."""

    def __init__(self, options: Options, world: World, truth: Truth, expected: Expected, findings: Findings) -> None:
        self.moves = Moves()
        self._world = world
        self._truth = truth
        loop, tell = world.loop, world.story.tell
        for host in world.hosts.values():
            host.absent = host.node_id > options.brokers
        self._made: dict[str, Operator] = {}
        if options.moves:
            client = world.client("c-moves")
            self._made["move"] = Mover(client, loop, options, tell, self.moves, self._brokers, self.moving)
        if options.joins:
            client = world.client("c-brokers")
            self._made["broker"] = BrokerChanges(
                client, loop, options, tell, self.moves, world.hosts, lambda: truth.image
            )
        if options.changes:
            client = world.client("c-settings")
            self._made["settings"] = SettingsChanges(client, loop, options, tell, expected, findings, self._is_away)

    @property
    def all(self) -> list[Operator]:
        """In the order in which they begin."""
        return [*self._made.values()]

    @property
    def counts(self) -> dict[str, int]:
        """What they did."""
        found = {f"{kind}_{name}": count for kind, each in self._made.items() for name, count in each.counts.items()}
        mover = self._made.get("move")
        if isinstance(mover, Mover):
            found |= {"moved_offsets": mover.offsets_moved, "moved_together": mover.together}
        return found

    def present(self) -> list[Host]:
        """The machines of brokers that have joined and have not left."""
        return [host for host in self._world.hosts.values() if not host.absent]

    def moving(self) -> int:
        """How many partitions are on their way."""
        return sum(each.is_reassigning for topic in self._truth.image.topics.values() for each in topic.partitions)

    def _brokers(self) -> list[int]:
        return [host.node_id for host in self.present()]

    def _is_away(self) -> bool:
        return not all(host.up for host in self.present())
