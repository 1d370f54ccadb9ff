"""Model of the metadata log and the cold data, read from the bucket at each write.

Every slot is applied to one image in the order in which slots took effect, so this image is correct by definition. I24:
slots are dense, each is written once, and each applies. I25: controller epochs never go back. The images of the brokers
are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tests.sim.cluster.cold_cleans import ColdCleans, ColdLog
from tests.sim.cluster.compacted_logs import CompactedLog, read_compacted_log
from tests.sim.cluster.disk_logs import LOG_DIR, batches_of, read_disk_log
from tests.sim.cluster.expiry import LogBatch, Retention
from tests.sim.cluster.model_of_copies import ModelOfCopies, ReportFinding
from tests.sim.harness.bucket_rules import BucketRules
from tests.sim.harness.clock import EPOCH_MS
from tests.sim.harness.disk import SimDisk
from tests.sim.harness.store import SimBucket
from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.compaction.cleanable_range import DELETE
from tiered.config.settings import Settings, TopicConfig
from tiered.errors import Corrupt
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.changes import (
    ALL_BROKERS,
    NO_LEADER,
    BrokerConfigChanged,
    Change,
    PartitionChanged,
    TopicConfigChanged,
)
from tiered.metadata.effective_config import broker_settings, topic_config
from tiered.metadata.image import Image
from tiered.metadata.layout import decode_entry
from tiered.metadata.parts.topics import TopicImage
from tiered.metadata.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tiered.upkeep.chain_deletion import names_chain
from tiered.wal.layout import ChainId, Window

IMAGES_KEPT = 4_000
NO_CONFIGS: Mapping[str, str] = {}
DECISION_DELAY_NS = 40_000_000_000
"""Maximum time between the decision of a log start and its write: the broker may act late, and the bucket may reply
late."""


class LogStart(NamedTuple):
    """A log start in a manifest, from a time on."""

    at_ns: int
    offset: int
    epoch: int


class ConfigInForce(NamedTuple):
    """Configuration of a topic from `at_ns` on."""

    at_ns: int
    config: TopicConfig


class ClusterModel(BucketRules):
    """Watches the bucket. `copies` has the reference model of each partition, `told` the offsets from which losses were
    reported."""

    def __init__(self, bucket: SimBucket, settings: Settings, report: ReportFinding, now: Callable[[], int]) -> None:
        super().__init__(bucket)
        self.image = Image()
        self.images: dict[int, Image] = {}
        self.copies: dict[PartitionId, ModelOfCopies] = {}
        self.compacted_topics: frozenset[str] = frozenset()
        self.compacted_logs: dict[PartitionId, CompactedLog] = {}
        self.cold_cleans = ColdCleans(lambda: bucket.objects, report)
        self.lives: dict[str, int] = {}
        """By incarnation: the number of that process on its machine."""
        self.max_clock_skew_ms: Callable[[], int] = lambda: 0
        """Largest difference between the clocks of brokers so far."""
        self.requested_start: Callable[[TopicPartition], int] = lambda tp: 0
        """Highest offset below which a client requested deletion."""
        self._log_starts: dict[PartitionId, list[LogStart]] = {}
        self._manifest_epochs: dict[PartitionId, int] = {}
        self._checked_images: dict[str, Image] = {}
        """By process: the image that the last check found in it."""
        self.applied_slot: Callable[[int], int] = lambda node: self.image.slot
        """Slot up to which a broker has applied the log."""
        self.on_image: Callable[[Image, Image], None] = lambda old, new: None
        """Callback for each slot, with the images before and after it."""
        self.is_controller: Callable[[int], bool] = lambda node: False
        """True if a broker considers itself the active controller."""
        self.unclean_election_times: list[int] = []
        """Times of unclean elections that a topic allowed: the elected leader may lack committed records."""
        self._configs: dict[TopicId, list[ConfigInForce]] = {}
        self._last_configs: dict[TopicId, tuple[Mapping[str, str], Mapping[str, str]]] = {}
        self._config_images: dict[TopicId, Image] = {}
        self._defaults: tuple[Mapping[str, str] | None, TopicConfig] = (None, settings.topic_defaults())
        self._written_ns: dict[int, int] = {}
        """By slot: the time of its write."""
        self._settings = settings
        self.report = self._report = report
        self._now = now
        bucket.memory.on_write = self._check_write
        bucket.memory.on_delete = self._check_delete_call

    def copies_of(self, partition_id: PartitionId) -> ModelOfCopies:
        """Returns the model of one partition."""
        found = self.copies.get(partition_id)
        if found is None:
            topic = self.image.topics_by_id.get(partition_id.topic_id)
            name = f"{topic.name if topic else partition_id.topic_id}-{partition_id.partition}"
            found = self.copies[partition_id] = ModelOfCopies(name, self._report, self._now)
        return found

    def is_modelled(self, partition_id: PartitionId) -> bool:
        """True if the model covers this partition. Other rules apply to committed offsets of groups."""
        topic = self.image.topics_by_id.get(partition_id.topic_id)
        return topic is not None and topic.name not in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)

    def compacted_log(self, partition_id: PartitionId) -> CompactedLog | None:
        """Returns the whole history of a partition that compaction may clean; None for any other."""
        found = self.compacted_logs.get(partition_id)
        if found is None:
            topic = self.image.topics_by_id.get(partition_id.topic_id)
            if topic is None or topic.name not in self.compacted_topics:
                return None
            name = f"{topic.name}-{partition_id.partition}"
            found = self.compacted_logs[partition_id] = CompactedLog(name, self._report)
        return found

    def read_disk_log(self, partition_id: PartitionId, disk: SimDisk, directory: str) -> tuple[int, list[LogBatch]]:
        """Returns the start of the log in a partition's directory, and the valid batches that it stands for."""
        compacted = self.compacted_log(partition_id)
        if compacted is None:
            return read_disk_log(disk, directory)
        start, held = read_compacted_log(disk, f"{LOG_DIR}/{directory}")
        return start, compacted.restore(start, held)[0]

    def config(self, topic_id: TopicId) -> TopicConfig:
        """Returns the configuration of a topic in the metadata log: nothing else counts for `min.insync.replicas`."""
        return self._config_history(topic_id)[-1].config

    def configs_since(self, topic_id: TopicId, since_ns: int) -> list[TopicConfig]:
        """Returns all configurations in force since then."""
        known = self._config_history(topic_id)
        first = max((number for number, each in enumerate(known) if each.at_ns < since_ns), default=0)
        return [each.config for each in known[first:]]

    def behind_since_ns(self, node: int) -> int:
        """Returns the time since when a broker has unapplied changes; now if it has none."""
        return self._written_ns.get(self.applied_slot(node) + 1, self._now())

    def min_isr(self, partition_id: PartitionId, node: int, leader_min_isr: int, replicas: int) -> int:
        """Returns how many replicas must have a record before it is committed, if `node` leads with `leader_min_isr`
        and that many replicas. R3: the value of the metadata log, now or when the broker last applied it."""
        if self.applied_slot(node) >= self.image.slot:
            replicas = len(self.image.topics_by_id[partition_id.topic_id].partitions[partition_id.partition].replicas)
        wanted = min(leader_min_isr, replicas)
        if leader_min_isr == self.config(partition_id.topic_id).min_insync_replicas:
            return wanted
        allowed = {
            each.min_insync_replicas for each in self.configs_since(partition_id.topic_id, self.behind_since_ns(node))
        }
        if leader_min_isr not in allowed:
            self._report(
                "R3",
                f"{self.copies_of(partition_id).name}: b{node} leads by min.insync.replicas={leader_min_isr}, "
                f"the metadata log says {sorted(allowed)}",
            )  # fmt: skip
        return wanted

    def flush(self, partition_id: PartitionId) -> set[str]:
        """Returns all values that `flush` of the topic ever had, including the present one."""
        return {each.config.flush for each in self._config_history(partition_id.topic_id)}

    def on_log_start(self, partition_id: PartitionId, offset: int) -> None:
        """Records a log start that a broker or a manifest states."""
        copies = self.copies_of(partition_id)
        if offset <= copies.log_start:
            return
        configs = self.configs_since(partition_id.topic_id, self._now() - DECISION_DELAY_NS)
        keeps = sorted(
            {
                Retention(each.retention_bytes, each.retention_ms) if DELETE in each.cleanup_policy else Retention()
                for each in configs
            }
        )
        name = self.image.topics_by_id[partition_id.topic_id].name
        asked = self.requested_start(TopicPartition(name, partition_id.partition))
        now_ms, compacted = EPOCH_MS + self._now() // 1_000_000, self.compacted_log(partition_id)
        remains_of = compacted.remains_of if compacted is not None else lambda batch: batch
        copies.on_log_start(offset, keeps, now_ms, self.max_clock_skew_ms(), asked, remains_of)

    def on_local_log_start(self, partition_id: PartitionId, offset: int) -> None:
        """I21: a log on a disk starts no higher than its manifest, once that names a segment: reads below go to the
        bucket. A manifest without segments is from when the topic became tiered."""
        start, end = self._cold_bounds.get(partition_id, (offset, 0))
        if offset > start < end:
            self._report(
                "I21",
                f"{self.copies_of(partition_id).name}: a log starts at {offset} on a disk, the manifest says {start}",
            )
        self.on_log_start(partition_id, offset)

    def incarnation(self, node: int) -> str:
        """Returns the incarnation that the cluster knows."""
        broker = self.image.brokers.get(node)
        return broker.incarnation if broker is not None else ""

    def expiry_of(self, partition_id: PartitionId, base_offset: int, key: str) -> LogStart | None:
        """Returns the log start that expired a segment, or when a clean replaced it; None if it never expired, or if no
        manifest ever named it."""
        replaced = self.cold_cleans.replaced.get(key)
        if replaced is not None:
            return LogStart(replaced.at_ns, replaced.next_offset, replaced.epoch)
        next_offset, home = self._segment_objects.get((partition_id, base_offset), (0, ""))
        return next(
            (each for each in self._log_starts.get(partition_id, ()) if home == key and next_offset <= each.offset),
            None,
        )

    def check_image(self, name: str, image: Image) -> None:
        """M5, I24: the image of a broker is a prefix of the log."""
        if self._checked_images.get(name) is image:
            return
        self._checked_images[name] = image
        known = self.images.get(image.slot)
        if image.slot > self.image.slot:
            self._report("M5", f"{name} goes by slot {image.slot}, the log ends at {self.image.slot}")
        elif known is not None and known is not image and known != image:
            self._report("I24", f"{name} has another image of slot {image.slot} than the log")

    # -- inside -------------------------------------------------------------------------------------------------------

    def _config_history(self, topic_id: TopicId) -> list[ConfigInForce]:
        """Returns all configurations that a topic ever had, the last one as the log has it now."""
        seen = self._config_images.get(topic_id)
        if seen is self.image:
            return self._configs[topic_id]
        self._config_images[topic_id] = self.image
        topic, for_all = self.image.topics_by_id[topic_id], self.image.broker_configs.get(ALL_BROKERS, NO_CONFIGS)
        known, last = self._configs.setdefault(topic_id, []), self._last_configs.get(topic_id)
        if last is None or last != (topic.configs, for_all):
            self._last_configs[topic_id] = topic.configs, for_all
            config = topic_config(topic, self._defaults_with(for_all))
            if not known or known[-1].config != config:
                known.append(ConfigInForce(self._now(), config))
        return known

    def _defaults_with(self, for_all: Mapping[str, str]) -> TopicConfig:
        if self._defaults[0] is not for_all:
            self._defaults = for_all, broker_settings(self.image, self._settings, ALL_BROKERS).topic_defaults()
        return self._defaults[1]

    def _check_write(self) -> None:
        try:
            self._check()
        except AssertionError as error:
            self._seen = len(self._bucket.written)
            self._report_error(error)

    def _check_delete_call(self, keys: Sequence[str]) -> None:
        self.cold_cleans.on_delete(keys, self._now(), self._settings.tiered_object_delete_delay_ms)
        try:
            self._check_delete(keys)
        except AssertionError as error:
            self._report_error(error)

    def _report_error(self, error: AssertionError) -> None:
        rule, _, what = str(error).partition(":")
        self._report(rule if what else "bucket", str(error))

    def _check_window_delete(self, key: str, chain: ChainId, window: Window) -> None:
        """I38: the metadata log names the chain for no partition whose segments lack records of the window. The owner
        may know the log as it was."""
        known = self.images.get(self.applied_slot(chain.node_id), self.image)
        for extent in window.extents:
            if not self.is_modelled(extent.partition):
                continue
            needed = all(names_chain(image, extent.partition, chain) for image in (self.image, known))
            cold_end = self.copies_of(extent.partition).cold_end
            assert not needed or extent.end_offset <= cold_end, (
                f"I38: {key} goes, {extent.partition} needs it up to {extent.end_offset}, segments end at {cold_end}"
            )

    def _check_slot(self, key: str, body: bytes) -> None:
        slot = int(key.rpartition("/")[2])
        super()._check_slot(key, body)
        if slot <= self._boundary.collected:
            return
        entry = decode_entry(body, slot)
        old = self.image
        if slot != old.slot + 1:
            self._report("I24", f"slot {slot} is written, the log ended at {old.slot}")
            return
        try:
            self.image = new = old.apply(entry.changes, slot)
        except Corrupt as error:
            self._report("I24", f"slot {slot} does not apply: {error}")
            return
        self.images[slot] = new
        self.images.pop(slot - IMAGES_KEPT, None)
        self._written_ns[slot] = self._now()
        self.on_image(old, new)
        brokers_changed = new.brokers != old.brokers
        between: dict[PartitionId, set[int]] = {}
        for change in entry.changes:
            if isinstance(change, PartitionChanged):
                between.setdefault(PartitionId(change.topic_id, change.partition), set()).update(change.isr)
        allowed = self._find_unclean_within(old, entry.changes, slot)
        for topic in new.topics.values():
            if topic.name == OFFSETS_TOPIC:
                before = old.topics_by_id.get(topic.topic_id)
                self._on_offsets_loss(topic, before)
                self._note_spares(topic, before)
                continue
            everything = brokers_changed or new.broker_configs != old.broker_configs
            if everything or old.topics.get(topic.name) is not topic:
                before = old.topics_by_id.get(topic.topic_id)
                self._update_topic(topic, before, between, everything, unclean=topic.topic_id in allowed)

    def _note_spares(self, topic: TopicImage, before: TopicImage | None) -> None:
        """Notes the partitions of committed offsets in which a spare broker took a place."""
        for p, (was, now) in enumerate(
            zip(before.partitions if before is not None else (), topic.partitions, strict=False)
        ):
            if was.is_in_bucket and now.leader not in (NO_LEADER, *was.replicas):
                self.copies_of(PartitionId(topic.topic_id, p)).has_spare = True

    def _find_unclean_within(self, old: Image, changes: Sequence[Change], slot: int) -> set[TopicId]:
        """Returns the topics that any replica may lead at some moment within a slot, perhaps not at its end."""
        found: set[TopicId] = set()
        for number, change in enumerate(changes, 1):
            if isinstance(change, BrokerConfigChanged | TopicConfigChanged):
                image = old.apply(changes[:number], slot)
                defaults = self._defaults_with(image.broker_configs.get(ALL_BROKERS, NO_CONFIGS))
                topics = image.topics.values()
                found |= {
                    each.topic_id for each in topics if topic_config(each, defaults).unclean_leader_election_enable
                }
        return found

    def _on_offsets_loss(self, topic: TopicImage, before: TopicImage | None) -> None:
        """Records that an unclean election may take commits, if the settings of all brokers allow one."""
        told = [each.loss for each in before.partitions] if before is not None else [None] * len(topic.partitions)
        lost = any(each.loss != known for each, known in zip(topic.partitions, told, strict=False))
        if lost and self.config(topic.topic_id).unclean_leader_election_enable:
            self.unclean_election_times.append(self._now())

    def _update_topic(
        self,
        topic: TopicImage,
        before: TopicImage | None,
        between: Mapping[PartitionId, set[int]],
        everything: bool,
        *,
        unclean: bool,
    ) -> None:
        topic_id = topic.topic_id
        was = self._configs[topic_id][-1].config if topic_id in self._configs else None
        now = self.config(topic_id)
        unclean = unclean or any(each is not None and each.unclean_leader_election_enable for each in (was, now))
        flush_changed = was is not None and was.flush != now.flush
        live = [node for node, broker in sorted(self.image.brokers.items()) if broker.live]
        lives = {node: self.lives.get(broker.incarnation, 0) for node, broker in self.image.brokers.items()}
        for number, partition in enumerate(topic.partitions):
            old = before.partitions[number] if before and number < len(before.partitions) else None
            partition_id = PartitionId(topic.topic_id, number)
            if flush_changed:
                self.copies_of(partition_id).on_flush_changed()
            if everything or old is not partition:
                copies = self.copies_of(partition_id)
                parted = copies.parted
                copies.on_partition_change(partition, live, lives, between.get(partition_id, ()), unclean=unclean)
                if copies.parted != parted:
                    self.unclean_election_times.append(self._now())

    def _may_replace(self, partition_id: PartitionId) -> bool:
        return self.compacted_log(partition_id) is not None

    def cold_log(self, partition_id: PartitionId) -> ColdLog | None:
        """Returns a compacted partition for the checks of its objects; None for any other."""
        compacted = self.compacted_log(partition_id)
        if compacted is None:
            return None
        copies = self.copies_of(partition_id)
        configs = self.configs_since(partition_id.topic_id, self._now() - DECISION_DELAY_NS)
        return ColdLog(compacted, copies.committed, copies.committed_end, configs, self.max_clock_skew_ms())

    def _check_cleaned_manifest(self, manifest: Manifest, log: ColdLog) -> None:
        """Judges the manifest of a compacted partition, with its sub-manifests: a clean may rewrite any of them."""
        segments = list(self.segments(manifest))
        for entry in segments:
            self._segment_objects[manifest.partition_id, entry.base_offset] = entry.next_offset, entry.key
        self.cold_cleans.on_manifest(manifest, segments, log, self._now())

    def _check_manifest(self, manifest: Manifest) -> None:
        known = (
            {base for partition_id, base in self._segment_objects if partition_id == manifest.partition_id}
            if self.is_modelled(manifest.partition_id)
            else None
        )
        super()._check_manifest(manifest)
        if known is None:
            return
        copies = self.copies_of(manifest.partition_id)
        newest = self._manifest_epochs.get(manifest.partition_id, -1)
        self._manifest_epochs[manifest.partition_id] = max(newest, manifest.leader_epoch)
        log = self.cold_log(manifest.partition_id)
        if log is not None:
            self._check_cleaned_manifest(manifest, log)
        for entry in manifest.entries if log is None else ():
            if entry.base_offset not in known:
                self._check_cold(copies, entry)
                if entry.leader_epoch < newest:
                    self._report("I16", f"{copies.name}: {entry.key} is named, the manifest was under epoch {newest}")
        copies.on_cold_end(manifest.cold_end_offset)
        starts = self._log_starts.setdefault(manifest.partition_id, [])
        if manifest.log_start_offset > (starts[-1].offset if starts else 0):
            starts.append(LogStart(self._now(), manifest.log_start_offset, manifest.leader_epoch))
        self.on_log_start(manifest.partition_id, manifest.log_start_offset)

    def _check_cold(self, copies: ModelOfCopies, entry: SegmentEntry) -> None:
        """I20: uploaded records are committed. (So a broker that does not lead uploads nothing, and no leader uploads
        above the high watermark.)"""
        data = self._bucket.objects[entry.key].data[: entry.log_bytes]
        for batch in batches_of(data):
            if batch.last < entry.base_offset:
                continue
            if copies.committed.get(batch.base) != batch:
                committed = copies.committed.get(batch.base)
                self._report("I20", f"{copies.name}: {entry.key} holds {batch}, committed is {committed}")
                return
