"""I35: a machine holds one replica of a partition, whatever its number of processes, and counts as one copy.

The simulator knows the machine of each broker from its own hosts, and asks neither the broker nor the metadata log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.sim.cluster.model_of_copies import ReportFinding
from tests.sim.cluster.observer import acting_node, patched
from tiered.metadata.image import Image
from tiered.replication.leader_state import LeaderState


class MachinesChecker:
    """Checks each metadata image when it is written, and each high watermark when it moves. `machines` has the machine
    of each broker; a broker that is not in it has a machine of its own."""

    def __init__(self, machines: Mapping[int, int], report: ReportFinding) -> None:
        self.images = 0
        """Number of images that were checked."""
        self._machines = machines
        self._report = report

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Checks all moves of high watermarks within the context."""
        with patched(LeaderState, "_advance_high_watermark", self._move):
            yield

    def on_image(self, old: Image, new: Image) -> None:
        """Checks the partitions that a slot of the metadata log has changed."""
        self.images += 1
        for topic in new.topics.values():
            before = old.topics_by_id.get(topic.topic_id)
            if before is topic:
                continue
            for number, partition in enumerate(topic.partitions):
                if before is not None and number < len(before.partitions) and before.partitions[number] is partition:
                    continue
                for what, nodes in (
                    ("replicas", partition.replicas),
                    ("target replicas", partition.target_replicas),
                    ("ISR", partition.isr),
                ):
                    if self.count(nodes) < len(nodes):
                        self._report("I35", f"{topic.name}-{number}: {what} {list(nodes)} have a machine twice")

    def count(self, nodes: Collection[int]) -> int:
        """Returns the number of machines of these brokers."""
        return len({self._machines.get(node, node) for node in nodes})

    def _move(self, original: Any) -> Any:
        def move(state: LeaderState, min_isr: int) -> bool:
            moved: bool = original(state, min_isr)
            if moved and self.count(state.isr) < min(min_isr, len(state.replicas)):
                self._report(
                    "I35", f"b{acting_node()} commits up to {state.high_watermark} with {sorted(state.isr)} in sync on"
                    f" {self.count(state.isr)} machines, min.insync.replicas is {min_isr}",
                )  # fmt: skip
            return moved

        return move
