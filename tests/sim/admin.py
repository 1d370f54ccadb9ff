"""Administration of the topics of a single-broker run: creates, deletes and grows topics, changes settings, deletes
records.

Records every reply. A reply is a fact from then on. A request without a reply leaves two states possible until the next
start of the broker, which has decided every pending request before it (rule M2).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.clients import Clients
from tests.sim.ledger import Ledger
from tests.sim.options import SingleOptions
from tiered.broker.broker import Broker
from tiered.controller.requests import AlterTopicConfigs, CreatePartitions, CreateTopic, DeleteTopic
from tiered.errors import Corrupt, Fenced, Refused, Unavailable
from tiered.ids import PartitionId, TopicId
from tiered.metadata.image import Image, TopicImage

NAMES = ("x0", "x1", "x2")
SEGMENT_BYTES = ("1024", "2048", "4096")
PARTITIONS_MAX = 4


@dataclass
class KnownTopic:
    """One name: its present topic, if another one may have replaced it, and its possible shapes."""

    topic_id: TopicId | None = None
    undecided: bool = False
    partitions: tuple[int, int] = (0, 0)
    segment_bytes: frozenset[str] = frozenset()


class TopicAdmin:
    """Sends requests until the clients stop."""

    def __init__(
        self,
        options: SingleOptions,
        ledger: Ledger,
        clients: Clients,
        node: Callable[[], Broker | None],
        log_event: Callable[[str], None],
    ) -> None:
        self.counts = {"made": 0, "deleted": 0, "grown": 0, "altered": 0, "cut": 0}
        self.delete_requested: dict[PartitionId, int] = {}
        self.delete_answered: dict[PartitionId, int] = {}
        self._options = options
        self._ledger = ledger
        self._clients = clients
        self._node = node
        self._log_event = log_event
        self._known = {name: KnownTopic() for name in NAMES}

    async def work(self) -> None:
        rng = random.Random(f"{self._options.seed}/admin")
        while self._clients.working:
            await asyncio.sleep(rng.expovariate(0.7))
            node = self._node()
            if node is None:
                continue
            verb = rng.choice((self._create, self._delete, self._add_partitions, self._alter, self._delete_records))
            name = rng.choice(NAMES)
            try:
                await verb(node, name, rng)
            except (Refused, Unavailable, Corrupt, Fenced) as error:  # Fenced: by a later life of the broker
                self._log_event(f"admin {verb.__name__} {name} why={error}")

    async def _create(self, node: Broker, name: str, rng: random.Random) -> None:
        known, count = self._known[name], rng.randint(1, 2)
        if known.topic_id is not None and not known.undecided:
            return
        known.undecided = True
        made: TopicImage = await node.submit(CreateTopic(name, count, configs=self._options.topic_configs))
        self.counts["made"] += 1
        # Nobody else gives or takes this name, so what was open before is decided by this answer.
        segment_bytes = frozenset({made.configs["internal.segment.bytes"]})
        self._known[name] = KnownTopic(made.topic_id, False, (count, count), segment_bytes)
        for _ in range(rng.randint(0, 12)):
            partition_id = PartitionId(made.topic_id, rng.randrange(count))
            body, values = self._clients.make_batch(rng, partition_id, -1, -1)
            replica = next((each for each in node.leader_replicas() if each.partition_id == partition_id), None)
            if replica is not None:
                await self._clients.send(replica.tp, partition_id, body, values, retry=False)

    async def _delete(self, node: Broker, name: str, _: random.Random) -> None:
        known = self._known[name]
        if known.topic_id is None or known.undecided:
            return
        known.undecided = True
        await node.submit(DeleteTopic(name))
        self.counts["deleted"] += 1
        self._known[name] = KnownTopic()

    async def _add_partitions(self, node: Broker, name: str, _: random.Random) -> None:
        known = self._known[name]
        least, most = known.partitions
        if known.topic_id is None or known.undecided or most >= PARTITIONS_MAX:
            return
        known.partitions = (least, most + 1)
        await node.submit(CreatePartitions(name, most + 1))
        known.partitions = (most + 1, most + 1)
        self.counts["grown"] += 1

    async def _alter(self, node: Broker, name: str, rng: random.Random) -> None:
        known, value = self._known[name], rng.choice(SEGMENT_BYTES)
        if known.topic_id is None or known.undecided:
            return
        known.segment_bytes |= {value}
        await node.submit(AlterTopicConfigs(name, {"internal.segment.bytes": value}))
        known.segment_bytes = frozenset({value})
        self.counts["altered"] += 1

    async def _delete_records(self, node: Broker, _: str, rng: random.Random) -> None:
        """Deletes records of a random partition: acknowledged deletions stay, and all other records stay too."""
        replicas = node.leader_replicas()
        if not replicas or rng.random() < 0.5:
            return
        replica = rng.choice(replicas)
        before = rng.randint(replica.log_start_offset, replica.high_watermark)
        self.delete_requested[replica.partition_id] = max(before, self.delete_requested.get(replica.partition_id, 0))
        self._ledger.allow_expiry(replica.partition_id, before)
        await replica.delete_records(before)
        self.delete_answered[replica.partition_id] = max(before, self.delete_answered.get(replica.partition_id, 0))
        self.counts["cut"] += 1

    def check(self, image: Image) -> None:
        """Checks at a start that the image has every acknowledged change. The start decides every pending one."""
        for name, known in self._known.items():
            topic = image.topics.get(name)
            if known.undecided:
                self._known[name] = KnownTopic() if topic is None else _known_from_image(topic)
                continue
            assert (topic and topic.topic_id) == known.topic_id, f"M5: {name} is {topic}, told was {known}"
            if topic is not None:
                least, most = known.partitions
                assert least <= len(topic.partitions) <= most, f"M5: {name} has {len(topic.partitions)}, not {known}"
                assert topic.configs["internal.segment.bytes"] in known.segment_bytes, (
                    f"M5: {name} {topic.configs}, not {known}"
                )
                self._known[name] = _known_from_image(topic)


def _known_from_image(topic: TopicImage) -> KnownTopic:
    count = len(topic.partitions)
    return KnownTopic(topic.topic_id, False, (count, count), frozenset({topic.configs["internal.segment.bytes"]}))
