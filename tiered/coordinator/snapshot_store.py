"""Images of group coordinators in the bucket: finds, reads, writes and deletes them, and makes a log agree with them.

An image is there for the day on which the log is not, so it counts as written only when the store has said so: the log
is cut, and older images go, after that. A leader deletes no image of an epoch above its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

from tiered.coordinator.snapshot import (
    SnapshotName,
    choose_snapshot,
    decode_snapshot,
    encode_batches,
    encode_snapshot,
    parse_key,
    topic_prefix,
)
from tiered.errors import Corrupt, Unavailable
from tiered.groups.records import CoordinatorRecord
from tiered.hot.disk_log import DiskLog
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.metrics import Metrics
from tiered.ports import Clock, ConditionFailed, Listed, NotFound, ObjectStore, Ok
from tiered.replication.become_leader import LeaderStart
from tiered.replication.leader_state import RestartAtColdEnd

log = logging.getLogger(__name__)

READ_ATTEMPTS = 8
"""What is wrong on its way here is right the next time; what is wrong in the bucket is not."""
KEPT_SNAPSHOTS = 2
"""Images of a partition that stay: the newest, and the one before it for the day on which the newest does not prove
itself."""


class SnapshotBase(NamedTuple):
    """What a leader begins with: the image below its log, its batches where they were read already, and all images that
    there are."""

    name: SnapshotName | None
    batches: list[bytes] | None
    names: tuple[SnapshotName, ...]


class CoordinatorSnapshotStore:
    """The images of one broker's coordinators."""

    def __init__(self, store: ObjectStore, clock: Clock, metrics: Metrics) -> None:
        self._store = store
        self._clock = clock
        self._listing_lock = asyncio.Lock()
        self._listed: tuple[TopicId, dict[int, list[SnapshotName]]] | None = None
        self._bases: dict[PartitionId, SnapshotBase] = {}
        self._written = metrics.counter("tiered_group_images_total", "Images of groups by outcome.", ("outcome",))
        self._bytes = metrics.counter("tiered_group_image_bytes_total", "Bytes of images of groups.")

    # -- where to begin -----------------------------------------------------------------------------------------------

    def invalidate_listing(self) -> None:
        """What was listed is of an earlier leadership. Those that begin together share one listing."""
        self._listed = None

    async def reconcile(self, hot: DiskLog, pid: PartitionId) -> LeaderStart:
        """Makes a log of `__consumer_offsets` agree with its images before it is led, as rule R5 does with what is
        cold: offsets that an image covers are never given again. `Unavailable` when the bucket does not say."""
        names = await self._partition_names(pid)
        candidates = list(names)
        while True:
            choice = choose_snapshot(candidates, hot.local_start_offset, hot.end_offset, hot.epochs)
            if choice.base is None or not choice.restarts_log:
                self._bases[pid] = SnapshotBase(choice.base, None, names)
                return LeaderStart(None, None)
            try:
                batches = await self.read(choice.base)  # before the log goes for it
            except Corrupt as error:
                log.error("image of groups is passed over key=%s why=%s", choice.base.key, error)
                candidates.remove(choice.base)
                continue
            restart = RestartAtColdEnd(choice.base.offset, f"the log ends at {hot.end_offset}, below its image")
            at = TopicPartition(OFFSETS_TOPIC, pid.partition)
            log.warning(
                "the image wins over the local log partition=%s offset=%d why=%s", at, restart.offset, restart.why
            )
            hot.truncate_fully_and_start_at(restart.offset, (), None)
            await hot.flush()
            self._bases[pid] = SnapshotBase(choice.base, batches, names)
            return LeaderStart(None, restart)

    def take_base(self, pid: PartitionId) -> SnapshotBase:
        """What `begin` found, once; nothing for a log that is new."""
        return self._bases.pop(pid, SnapshotBase(None, None, ()))

    async def _partition_names(self, pid: PartitionId) -> tuple[SnapshotName, ...]:
        async with self._listing_lock:
            if self._listed is None or self._listed[0] != pid.topic_id:
                self._listed = pid.topic_id, await self._list_topic(pid.topic_id)
            return tuple(self._listed[1].get(pid.partition, ()))

    async def _list_topic(self, topic_id: TopicId) -> dict[int, list[SnapshotName]]:
        prefix, names = topic_prefix(topic_id), dict[int, list[SnapshotName]]()
        page: list[Listed] = []
        while page := await self._store.list(prefix, page[-1].key if page else ""):
            for name in filter(None, (parse_key(each.key) for each in page)):
                names.setdefault(name.pid.partition, []).append(name)
        return names

    # -- one image ----------------------------------------------------------------------------------------------------

    async def read(self, name: SnapshotName) -> list[bytes]:
        """Its batches. `Corrupt` when it is gone, or does not prove itself however often it is read; `Unavailable`."""
        for attempt in range(1, READ_ATTEMPTS + 1):
            got = await self._store.get(name.key)
            if isinstance(got, NotFound):
                raise Corrupt("image is gone", where=name.key)
            try:
                return decode_snapshot(name, got.data)
            except Corrupt as error:
                if attempt == READ_ATTEMPTS:
                    raise
                log.warning("image of groups is read again key=%s why=%s", name.key, error)
        raise AssertionError("unreachable")

    async def write(self, name: SnapshotName, records: list[CoordinatorRecord]) -> None:
        """Returns once it is in the bucket. `Unavailable` when the store did not say so: it may be there, or come.

        One name stands for one state, and only the leader of its epoch writes it: what is there already is the same,
        and nothing is written over it."""
        now_ms = self._clock.wall_ms()
        batches: list[bytes] = []
        for each in encode_batches(records, now_ms):
            batches.append(each)
            await self._clock.sleep(0)
        body = encode_snapshot(name, batches, len(records), now_ms)
        result = await self._store.put(name.key, body, if_absent=True)
        if not isinstance(result, Ok | ConditionFailed):
            self._written.inc(1, "failed")
            raise Unavailable(f"image {name.key} was not stored: {result!r}")
        self._written.inc(1, "written")
        self._bytes.inc(len(body))

    async def delete_older(self, names: Iterable[SnapshotName], newest: SnapshotName) -> tuple[SnapshotName, ...]:
        """Deletes what is older than the newest two; what there is then. `Unavailable`."""
        kept = sorted({*names, newest}, reverse=True)
        newer = [name for name in kept if name > newest]
        own_or_older = kept[len(newer) :]
        if own_or_older[KEPT_SNAPSHOTS:]:
            await self._store.delete([name.key for name in own_or_older[KEPT_SNAPSHOTS:]])
        return tuple(newer + own_or_older[:KEPT_SNAPSHOTS])
