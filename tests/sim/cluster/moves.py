"""Reassignments during a run, of partitions and of committed offsets of groups: AlterPartitionReassignments over the
wire, and the replicas that must result."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping

from tests.sim.cluster.options import ClusterOptions, TopicShape
from tests.sim.harness.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import PROCESS_STEP, TopicPartition
from tiered.metadata.image import Image
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered_api.kafka.client.client import KafkaClient, code_from_number
from tiered_api.kafka.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
PAUSE_SECONDS_MAX = 10.0
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
OFFSETS_CHANCE = 0.4
SEVERAL_CHANCE = 0.7
RETRY_SECONDS = 0.2
SHARED_MACHINE_CHANCE = 0.3
"""Chance that replicas are drawn without regard to machines."""
RETURN_CHANCE, RETURN_SECONDS = 0.5, 0.3
"""Chance that a replica in sync is removed and added again, and mean time in between."""
Replicas = tuple[int, ...]


class ExpectedReplicas:
    """The replicas that may result: those of the last granted request, and those of each request without a reply
    (None). A broker that was cut off may forward such a request to the controller long after a later one was granted.
    After a cancelled one nothing is known."""

    def __init__(self) -> None:
        self._granted: dict[TopicPartition, Replicas] = {}
        self._unanswered: dict[TopicPartition, set[Replicas | None]] = {}

    def on_reply(self, tp: TopicPartition, wanted: Replicas | None, code: Code | None) -> None:
        """Records a reply. `wanted` None cancels the reassignment."""
        if code is None or code in (Code.REQUEST_TIMED_OUT, Code.NOT_CONTROLLER):
            self._unanswered.setdefault(tp, set()).add(wanted)
        elif code is Code.NONE and wanted is None:
            self._granted.pop(tp, None)
        elif code is Code.NONE and wanted is not None:
            self._granted[tp] = wanted

    def find_misplaced(
        self, replicas: Callable[[TopicPartition], Replicas | None], place: Callable[[int], int] = lambda node: node
    ) -> Iterator[str]:
        """Yields partitions that still exist and are not on the replicas that were requested. Committed offsets of
        groups that have fewer replicas than their replication factor gain some, after the existing ones. `place`
        returns the machine of a broker where logs move between processes of a machine."""
        for tp, granted in self._granted.items():
            found, unanswered = replicas(tp), self._unanswered.get(tp, set())
            now = None if found is None else tuple(map(place, found))
            ends = {tuple(map(place, each)) for each in (granted, *unanswered) if each is not None}
            if (
                now is not None
                and now not in ends
                and None not in unanswered
                and not (tp == OFFSETS and any(now[: len(end)] == end for end in ends))
            ):
                yield f"{tp} was to be on {sorted(ends)}, is on {now}"


class Reassignments:
    """All reassignments of a run, of any client: one request after the other, so that the last reply is in force.
    `asked` has all partitions that were ever requested to move."""

    def __init__(self) -> None:
        self.requested: set[TopicPartition] = set()
        self.expected = ExpectedReplicas()
        self._lock = asyncio.Lock()

    async def submit(
        self, client: KafkaClient, wanted: Mapping[TopicPartition, Replicas | None]
    ) -> dict[TopicPartition, Code | None]:
        """Sends the moves and returns the reply for each; None for each one without a reply."""
        self.requested.update(wanted)
        async with self._lock:
            codes = await _alter_reassignments(client, wanted)
            for tp, replicas in wanted.items():
                self.expected.on_reply(tp, replicas, codes[tp])
        return codes


async def _alter_reassignments(
    client: KafkaClient, wanted: Mapping[TopicPartition, Replicas | None]
) -> dict[TopicPartition, Code | None]:
    topics: dict[str, ReassignableTopic] = {}
    for (name, partition), replicas in wanted.items():
        part = ReassignablePartition(partition, None if replicas is None else list(replicas))
        topics.setdefault(name, ReassignableTopic(name, [])).partitions.append(part)
    request = AlterPartitionReassignmentsRequest(5_000, topics=[*topics.values()])
    codes: dict[TopicPartition, Code | None] = dict.fromkeys(wanted)
    try:
        got = await client.send_to_controller(request, AlterPartitionReassignmentsResponse)
    except REQUEST_ERRORS:
        return codes
    if got.error_code:
        return dict.fromkeys(wanted, code_from_number(got.error_code))
    for topic in got.responses:
        for each in topic.partitions:
            codes[TopicPartition(topic.name, each.partition_index)] = code_from_number(each.error_code)
    return codes


class Reassigner:
    """Requests reassignments of the run's partitions, and of committed offsets if groups are at work, until `working`
    is unset. `brokers` are those that may have replicas, `count_moving` returns how many partitions move now. `image`
    is that of the metadata log."""

    def __init__(
        self,
        client: KafkaClient,
        loop: SimLoop,
        options: ClusterOptions,
        log_event: Callable[[str], None],
        reassignments: Reassignments,
        brokers: Callable[[], list[int]],
        count_moving: Callable[[], int],
        image: Callable[[], Image],
    ) -> None:
        self.working = True
        self.counts: dict[str, int] = {}
        self.offsets_moved = 0
        self.concurrent_moves = 0
        """Number of times at which several partitions moved at once."""
        self.returned = 0
        """Number of replicas in sync that were removed and added again."""
        self._client = client
        self._options = options
        self._log_event = log_event
        self._reassignments = reassignments
        self._brokers = brokers
        self._count_moving = count_moving
        self._image = image
        self._rng = random.Random(f"{loop.seed}/mover")
        self._offsets_rng = random.Random(f"{loop.seed}/mover-of-groups")
        self._several_rng = random.Random(f"{loop.seed}/mover-of-several")
        self._returns_rng = random.Random(f"{loop.seed}/returned-replicas")

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(min(self._rng.expovariate(0.3), PAUSE_SECONDS_MAX))
            if self._options.returns_replicas and self._returns_rng.random() < RETURN_CHANCE:
                await self._remove_and_return()
                continue
            if self._options.moves_at_once > 1 and self._several_rng.random() < SEVERAL_CHANCE:
                await self._move_several()
                continue
            shape = self._rng.choice(self._options.topics)
            tp = TopicPartition(shape.name, self._rng.randrange(shape.partitions))
            wanted = self._target(shape, self._rng) if self._rng.random() < 0.85 else None
            if self._options.members and self._offsets_rng.random() < OFFSETS_CHANCE:
                tp, wanted = OFFSETS, self._offsets_target()
            await self._submit({tp: wanted})
        await self._client.close()

    async def _remove_and_return(self) -> None:
        """Removes a follower that is in sync, and adds it again before long: its log begins anew. The leader stays, and
        acknowledges records meanwhile."""
        rng, topics = self._returns_rng, self._image().topics
        found = [
            (TopicPartition(shape.name, number), partition, node)
            for shape in self._options.topics
            if shape.name in topics
            for number, partition in enumerate(topics[shape.name].partitions)
            for node in partition.isr
            if node != partition.leader and not partition.is_reassigning
        ]
        if not found:
            return
        tp, partition, node = rng.choice(found)
        kept = tuple(each for each in partition.replicas if each != node)
        await self._submit({tp: kept})
        await asyncio.sleep(rng.expovariate(1 / RETURN_SECONDS))
        await self._submit({tp: (*kept, node)})
        self.returned += 1

    async def _move_several(self) -> None:
        """Moves partitions of all topics at once. Meanwhile some moves are cancelled, and some get another target."""
        rng = self._several_rng
        places = {
            TopicPartition(shape.name, number): shape
            for shape in self._options.topics
            for number in range(shape.partitions)
        }
        some = rng.sample(list(places), min(len(places), rng.randint(2, self._options.moves_at_once)))
        wanted: dict[TopicPartition, Replicas | None] = {tp: self._target(places[tp], rng) for tp in some}
        if self._options.members and rng.random() < OFFSETS_CHANCE:
            wanted[OFFSETS] = self._offsets_target()
        await self._submit(wanted)
        for _ in range(rng.randint(0, 3)):
            await asyncio.sleep(rng.expovariate(1 / RETRY_SECONDS))
            again = rng.sample(some, rng.randint(1, len(some)))
            await self._submit({tp: None if rng.random() < 0.5 else self._target(places[tp], rng) for tp in again})

    def _target(self, shape: TopicShape, rng: random.Random) -> Replicas:
        """Returns as many replicas as the topic has, or one fewer if the topic can do with that."""
        least = max(shape.min_isr, shape.replicas - 1)
        return tuple(self._sample(rng, rng.randint(least, shape.replicas)))

    def _offsets_target(self) -> Replicas:
        """Returns a broker of each machine in random order, or of all machines but one."""
        machines = len({node % PROCESS_STEP for node in self._brokers()})
        return tuple(self._sample(self._offsets_rng, self._offsets_rng.randint(max(1, machines - 1), machines)))

    def _sample(self, rng: random.Random, count: int) -> list[int]:
        """Returns some brokers. Where machines have several processes, two may be of one machine: the controller must
        refuse that."""
        brokers = self._brokers()
        if self._options.processes > 1 and rng.random() >= SHARED_MACHINE_CHANCE:
            by_machine = {node % PROCESS_STEP: node for node in rng.sample(brokers, len(brokers))}
            brokers = sorted(by_machine.values())
        return rng.sample(brokers, count)

    async def _submit(self, wanted: Mapping[TopicPartition, Replicas | None]) -> None:
        for tp, code in (await self._reassignments.submit(self._client, wanted)).items():
            name = "unknown" if code is None else code.name
            if code is not Code.NONE:
                self._log_event(f"move {tp} to {wanted[tp]}: {name}")
            elif wanted[tp] is None:
                name = "called_off"
            self.counts[name] = self.counts.get(name, 0) + 1
            self.offsets_moved += tp == OFFSETS and code is Code.NONE
        self.concurrent_moves += self._count_moving() > 1
