"""The log of one partition, hot and cold: where its records are, from the log start to the log end.

The first part of the log may lie in the bucket only, the last part on the local disk only; the two overlap. Does not
know what is committed: `leader_state` does.
"""

from __future__ import annotations

from tiered.cold.manifest import Manifest
from tiered.config.settings import TopicConfig
from tiered.hot.disk_log import DiskLog
from tiered.hot.segment_view import SegmentView
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.replication.cold_tier import ColdTier


class UnifiedLog:
    """The local log `hot` and the cold segments that `manifest` names, as one log (Kafka: UnifiedLog). `manifest` is
    the newest known one; None if the partition has no cold segments as far as is known."""

    __slots__ = ("cold", "hot", "manifest", "partition_id", "topic_id", "tp")

    def __init__(
        self, tp: TopicPartition, topic_id: TopicId, hot: DiskLog, cold: ColdTier, manifest: Manifest | None
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.partition_id = PartitionId(topic_id, tp.partition)
        self.hot = hot
        self.cold = cold
        self.manifest = manifest

    def update_manifest(self, manifest: Manifest) -> None:
        """Keeps the newer of the two manifests. Several tasks change the manifest, so a late reply may carry one that
        is older than the known one."""
        if self.manifest is None or manifest.sequence >= self.manifest.sequence:
            self.manifest = manifest

    @property
    def config(self) -> TopicConfig:
        """The topic settings in force; they may change at any time."""
        return self.hot.config

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read, hot or cold."""
        manifest = self.manifest
        if manifest is None:
            return self.hot.local_start_offset
        start = manifest.log_start_offset
        return start if manifest.nodes else max(start, self.hot.local_start_offset)

    @property
    def cold_end_offset(self) -> int:
        """All records from the log start up to here are in the bucket; 0 if none ever was."""
        return self.manifest.cold_end_offset if self.manifest is not None else 0

    @property
    def cold_bytes(self) -> int:
        return self.manifest.cold_bytes if self.manifest is not None else 0

    @property
    def cold_segments(self) -> int:
        return self.manifest.segment_count if self.manifest is not None else 0

    @property
    def newest_record_ms(self) -> int:
        """The greatest timestamp in the newest segment that has records, hot or cold; 0 if none is known. It is never
        later than the upload of a cold one: producers may have clocks that are ahead."""
        for segment in (self.hot.segments.active, *reversed(self.hot.segments.closed())):
            if segment.size:
                return max(segment.max_timestamp, 0)
        entries = self.manifest.entries if self.manifest is not None else ()
        return max(min(entries[-1].newest_ms, entries[-1].uploaded_ms), 0) if entries else 0

    @property
    def bytes_above_cold(self) -> int:
        """Bytes of log that are only on this disk. Leaves out a segment of which an earlier leader uploaded a part:
        bytes that were counted twice would make retention by size delete other records."""
        views = (*self.hot.segments.closed(above=self.cold_end_offset), self.hot.segments.active)
        return sum(segment.size for segment in views if segment.base_offset >= self.cold_end_offset)

    @property
    def waiting_segments(self) -> int:
        """The number of closed segments that wait for their upload."""
        return len(self._segments_to_upload())

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the closed segments that wait for their upload."""
        return sum(segment.size for segment in self._segments_to_upload())

    def _segments_to_upload(self) -> list[SegmentView]:
        if not self.config.copies_to_bucket:
            return []
        return self.hot.segments.closed(above=self.cold_end_offset)

    @property
    def upload_lag_since_ms(self) -> int | None:
        """When the oldest record that should be in the bucket and is not was written here; None if there is no such
        record."""
        first = max(self.cold_end_offset, self.log_start_offset)
        if not self.config.copies_to_bucket or first >= self.hot.end_offset:
            return None
        return self.hot.segments.created_ms(first)
