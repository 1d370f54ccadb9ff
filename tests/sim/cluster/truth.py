"""What the cluster has agreed on, read from the bucket as it is written: the metadata log, and what is cold.

Every slot is applied to one image in the order in which slots took effect, so that this is the only image that nobody
can be wrong about. I24: slots are dense, each written once, and apply. I25: controller epochs never go back. Brokers'
own images are held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from tests.sim.bucket_rules import BucketRules
from tests.sim.clock import EPOCH_MS
from tests.sim.cluster.copies import Copies, Red
from tests.sim.cluster.expiry import Batch, Keeps
from tests.sim.store import SimBucket
from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.config import Settings, TopicConfig
from tiered.errors import Corrupt
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.changes import PartitionChanged
from tiered.metadata.image import Image, TopicImage
from tiered.metadata.layout import decode_entry
from tiered.metadata.settings import topic_config
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.ports import Buffer
from tiered.records.native import walk

IMAGES_KEPT = 4_000
_CRC = Struct(">I")
_CRC_AT = 17


def batches_of(data: Buffer, *, prove: bool = False) -> list[Batch]:
    """The whole batches of some bytes of a log, up to the first that does not prove itself."""
    return [
        Batch(
            each.base_offset,
            each.last_offset,
            each.leader_epoch,
            _CRC.unpack_from(data, each.at + _CRC_AT)[0],
            each.size,
            each.max_timestamp,
        )
        for each in walk(data, check_crc=prove).batches
    ]


class LogStart(NamedTuple):
    """A manifest said so from then on."""

    at_ns: int
    offset: int
    epoch: int


class Truth(BucketRules):
    """Watches the bucket. `copies` has the reference model of each partition, `told` from where on losses were
    reported."""

    def __init__(self, bucket: SimBucket, settings: Settings, red: Red, now: Callable[[], int]) -> None:
        super().__init__(bucket)
        self.image = Image()
        self.images: dict[int, Image] = {}
        self.copies: dict[PartitionId, Copies] = {}
        self.told: dict[PartitionId, list[int]] = {}
        self.lives: dict[str, int] = {}
        """By incarnation: which life of its machine that is."""
        self.clocks_apart_ms: Callable[[], int] = lambda: 0
        """How far the clocks of brokers were ever apart, at most."""
        self.asked_to_go: Callable[[TopicPartition], int] = lambda where: 0
        """Below which offset somebody asked records to be deleted."""
        self._log_starts: dict[PartitionId, list[LogStart]] = {}
        self._fenced: dict[PartitionId, int] = {}
        self._checked: dict[str, Image] = {}
        """By process: the image that it went by when last it was asked."""
        self._configs: dict[TopicId, tuple[TopicImage, TopicConfig]] = {}
        self._defaults = settings.topic_defaults()
        self._red = red
        self._now = now
        bucket.memory.observer = self._judge
        bucket.memory.deleting = self._judge_delete

    def of(self, pid: PartitionId) -> Copies:
        """The model of one partition."""
        found = self.copies.get(pid)
        if found is None:
            topic = self.image.topics_by_id.get(pid.topic_id)
            name = f"{topic.name if topic else pid.topic_id}-{pid.partition}"
            found = self.copies[pid] = Copies(name, self._red, self._now)
        return found

    def follows(self, pid: PartitionId) -> bool:
        """Whether the model speaks of this partition. Offsets of groups obey rules of their own."""
        topic = self.image.topics_by_id.get(pid.topic_id)
        return topic is not None and topic.name != OFFSETS_TOPIC

    def min_isr(self, pid: PartitionId) -> int:
        """How many replicas must hold a record before it is committed."""
        topic, config = self._config(pid.topic_id)
        return min(config.min_insync_replicas, len(topic.partitions[pid.partition].replicas))

    def flush(self, pid: PartitionId) -> str:
        return self._config(pid.topic_id)[1].flush

    def starts(self, pid: PartitionId, offset: int) -> None:
        """A log starts here, a broker or a manifest says."""
        config = self._config(pid.topic_id)[1]
        keeps = Keeps(config.retention_bytes, config.retention_ms)
        name = self.image.topics_by_id[pid.topic_id].name
        asked = self.asked_to_go(TopicPartition(name, pid.partition))
        self.of(pid).starts(offset, keeps, EPOCH_MS + self._now() // 1_000_000, self.clocks_apart_ms(), asked)

    def incarnation(self, node: int) -> str:
        """The one that the cluster knows of."""
        broker = self.image.brokers.get(node)
        return broker.incarnation if broker is not None else ""

    def gone_since(self, pid: PartitionId, base_offset: int, key: str) -> LogStart | None:
        """What made a segment expire; None for one that never did, or that no manifest ever named."""
        next_offset, home = self._home.get((pid, base_offset), (0, ""))
        return next(
            (each for each in self._log_starts.get(pid, ()) if home == key and next_offset <= each.offset), None
        )

    def check_image(self, name: str, image: Image) -> None:
        """M5, I24: what a broker goes by is a prefix of the log."""
        if self._checked.get(name) is image:
            return
        self._checked[name] = image
        known = self.images.get(image.slot)
        if image.slot > self.image.slot:
            self._red("M5", f"{name} goes by slot {image.slot}, the log ends at {self.image.slot}")
        elif known is not None and known is not image and known != image:
            self._red("I24", f"{name} has another image of slot {image.slot} than the log")

    # -- inside -------------------------------------------------------------------------------------------------------

    def _config(self, topic_id: TopicId) -> tuple[TopicImage, TopicConfig]:
        """A topic as the log has it now, and what it goes by."""
        topic, known = self.image.topics_by_id[topic_id], self._configs.get(topic_id)
        if known is None or known[0] is not topic:
            known = self._configs[topic_id] = topic, topic_config(topic, self._defaults)
        return known

    def _judge(self) -> None:
        try:
            self._check()
        except AssertionError as error:
            self._seen = len(self._bucket.written)
            self._broken(error)

    def _judge_delete(self, keys: Sequence[str]) -> None:
        try:
            self._may_go(keys)
        except AssertionError as error:
            self._broken(error)

    def _broken(self, error: AssertionError) -> None:
        rule, _, what = str(error).partition(":")
        self._red(rule if what else "bucket", str(error))

    def _slot(self, key: str, body: bytes) -> None:
        slot = int(key.rpartition("/")[2])
        super()._slot(key, body)
        if slot <= self._boundary.collected:
            return
        entry = decode_entry(body, slot)
        old = self.image
        if slot != old.slot + 1:
            self._red("I24", f"slot {slot} is written, the log ended at {old.slot}")
            return
        try:
            self.image = new = old.apply(entry.changes, slot)
        except Corrupt as error:
            self._red("I24", f"slot {slot} does not apply: {error}")
            return
        self.images[slot] = new
        self.images.pop(slot - IMAGES_KEPT, None)
        brokers_changed = new.brokers != old.brokers
        between: dict[PartitionId, set[int]] = {}
        for change in entry.changes:
            if isinstance(change, PartitionChanged):
                between.setdefault(PartitionId(change.topic_id, change.partition), set()).update(change.isr)
        for topic in new.topics.values():
            if topic.name != OFFSETS_TOPIC and (brokers_changed or old.topics.get(topic.name) is not topic):
                self._settle(topic, old.topics_by_id.get(topic.topic_id), between, brokers_changed)

    def _settle(
        self, topic: TopicImage, before: TopicImage | None, between: Mapping[PartitionId, set[int]], everything: bool
    ) -> None:
        live = [node for node, broker in sorted(self.image.brokers.items()) if broker.live]
        lives = {node: self.lives.get(broker.incarnation, 0) for node, broker in self.image.brokers.items()}
        for number, partition in enumerate(topic.partitions):
            old = before.partitions[number] if before and number < len(before.partitions) else None
            pid = PartitionId(topic.topic_id, number)
            if partition.loss is not None and (old is None or old.loss != partition.loss):
                self.told.setdefault(pid, []).append(partition.loss.from_offset)
            if everything or old is not partition:
                self.of(pid).settled(partition, live, lives, between.get(pid, ()))

    def _manifest(self, manifest: Manifest) -> None:
        known = {base for pid, base in self._home if pid == manifest.pid} if self.follows(manifest.pid) else None
        super()._manifest(manifest)
        if known is None:
            return
        copies = self.of(manifest.pid)
        newest = self._fenced.get(manifest.pid, -1)
        self._fenced[manifest.pid] = max(newest, manifest.leader_epoch)
        for entry in manifest.entries:
            if entry.base_offset not in known:
                self._check_cold(copies, entry)
                if entry.leader_epoch < newest:
                    self._red("I16", f"{copies.name}: {entry.key} is named, the manifest was under epoch {newest}")
        copies.cold(manifest.cold_end_offset)
        starts = self._log_starts.setdefault(manifest.pid, [])
        if manifest.log_start_offset > (starts[-1].offset if starts else 0):
            starts.append(LogStart(self._now(), manifest.log_start_offset, manifest.leader_epoch))
        self.starts(manifest.pid, manifest.log_start_offset)

    def _check_cold(self, copies: Copies, entry: SegmentEntry) -> None:
        """I20: what goes up is what is committed. (And so: by a leader that was none, or above the high watermark,
        nothing does.)"""
        data = self._bucket.objects[entry.key].data[: entry.log_bytes]
        for batch in batches_of(data):
            if batch.last < entry.base_offset:
                continue
            if copies.committed.get(batch.base) != batch:
                committed = copies.committed.get(batch.base)
                self._red("I20", f"{copies.name}: {entry.key} holds {batch}, committed is {committed}")
                return
