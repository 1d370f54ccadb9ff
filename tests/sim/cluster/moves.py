"""Replicas that move while all goes on, those of groups' offsets too: AlterPartitionReassignments over the wire, and
where they must end up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

from tests.sim.cluster.options import Options, TopicShape
from tests.sim.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered_api.kafka.client import Client, code_of
from tiered_api.kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

CANNOT = (Refused, Unavailable, Corrupt)
PAUSE_SECONDS_MAX = 10.0
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
OF_GROUPS_CHANCE = 0.4
Replicas = tuple[int, ...]


class Ends:
    """Where replicas may end up: where the last move that was granted leads, and each since whose answer is not known
    (None). Nothing is known after one that was cancelled."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, set[Replicas]] = {}

    def answered(self, where: TopicPartition, wanted: Replicas | None, code: Code | None) -> None:
        """`wanted` None cancels what is under way."""
        unsure = code is None or code in (Code.REQUEST_TIMED_OUT, Code.NOT_CONTROLLER)
        if wanted is None:
            if unsure or code is Code.NONE:
                self._ends.pop(where, None)
        elif code is Code.NONE:
            self._ends[where] = {wanted}
        elif unsure and where in self._ends:
            self._ends[where].add(wanted)

    def astray(self, replicas: Callable[[TopicPartition], Replicas]) -> Iterator[str]:
        """What did not end up where it was asked to be. Offsets of groups that have fewer replicas than they should
        gain some, behind those that they have."""
        for where, ends in self._ends.items():
            now = replicas(where)
            if now not in ends and not (where == OFFSETS and any(now[: len(end)] == end for end in ends)):
                yield f"{where} was to be on {sorted(ends)}, is on {replicas(where)}"


class Mover:
    """Asks for moves of the run's partitions, and where groups are at work of their offsets, until `working` is unset.
    `asked` has those that it ever asked to move."""

    def __init__(self, client: Client, loop: SimLoop, options: Options, tell: Callable[[str], None]) -> None:
        self.working = True
        self.counts: dict[str, int] = {}
        self.offsets_moved = 0
        self.asked: set[TopicPartition] = set()
        self.ends = Ends()
        self._client = client
        self._options = options
        self._tell = tell
        self._draw = random.Random(f"{loop.seed}/mover")
        self._of_groups = random.Random(f"{loop.seed}/mover-of-groups")

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(min(self._draw.expovariate(0.3), PAUSE_SECONDS_MAX))
            shape = self._draw.choice(self._options.topics)
            where = TopicPartition(shape.name, self._draw.randrange(shape.partitions))
            wanted = self._target(shape) if self._draw.random() < 0.85 else None
            if self._options.members and self._of_groups.random() < OF_GROUPS_CHANCE:
                where, wanted = OFFSETS, self._offsets_target()
            try:
                code = await self._ask(where, wanted)
            except CANNOT as error:
                self._tell(f"move {where} to {wanted}: {error}")
                code = None
            self.ends.answered(where, wanted, code)
            name = "unknown" if code is None else code.name
            self.counts[name] = self.counts.get(name, 0) + 1
            self.offsets_moved += where is OFFSETS and code is Code.NONE
        await self._client.close()

    def _target(self, shape: TopicShape) -> Replicas:
        """As many replicas as the topic has, or one less where it can do with that."""
        brokers = list(range(1, self._options.brokers + 1))
        least = max(shape.min_isr, shape.replicas - 1)
        return tuple(self._draw.sample(brokers, self._draw.randint(least, shape.replicas)))

    def _offsets_target(self) -> Replicas:
        """All brokers, in whatever order, or all but one."""
        brokers = list(range(1, self._options.brokers + 1))
        return tuple(self._of_groups.sample(brokers, self._of_groups.randint(max(1, len(brokers) - 1), len(brokers))))

    async def _ask(self, where: TopicPartition, wanted: Replicas | None) -> Code:
        self.asked.add(where)
        part = ReassignablePartition(where.partition, None if wanted is None else list(wanted))
        request = AlterPartitionReassignmentsRequest(5_000, topics=[ReassignableTopic(where.topic, [part])])
        got = await self._client.ask_controller(request, AlterPartitionReassignmentsResponse)
        return code_of(got.error_code or got.responses[0].partitions[0].error_code)
