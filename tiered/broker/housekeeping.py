"""The broker's slow loops: rolls by time, deletion of dropped files, fsync by time, checkpoints, deleted topics.

Each looks at its plans at the interval that its setting names and performs what is due. A disk or a bucket that does
not answer is left alone until the next turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tiered.broker.tiering import UPLOAD_IN_FLIGHT_MS
from tiered.controller.requests import ForgetTopic
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.hot.producer_state import IDLE_MS
from tiered.ids import TopicId
from tiered.log_limiter import LogLimiter
from tiered.metadata.image import DeletedTopic
from tiered.metadata.layout import FORMAT_KEY
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica

if TYPE_CHECKING:
    from tiered.broker.broker import Broker

log = logging.getLogger(__name__)

RETRY_SECONDS = (1.0, 10.0)
"""Pauses between two tries at what could not be done when it was due: at first, and at most."""
SWEEP_SECONDS = 5.0
COLLECT_SECONDS = 30.0
PROBE_SECONDS = (5.0, 60.0)
"""Pauses between two looks at a bucket that does not answer: short at first, then an idle broker asks once a minute."""
WATCH_SECONDS = 61.0
"""Between two looks for a newer controller: at most one request a minute."""
SYNCED_ENTRIES_AT_ONCE = 32
"""Logs of which a change of `flush` is noted together."""
UNFLUSHED_BYTES_MAX = 64 << 20
"""Bytes of an active segment after which the next checkpoint fsyncs it too."""
FREE_AGAIN_BYTES = 64 << 20
"""Free space at which a full disk counts as healed although nobody has tried an append."""


class Housekeeping:
    """Runs for one node, in its task group."""

    def __init__(self, node: Broker) -> None:
        self._node = node
        self._flushed_ms: dict[LeaderReplica | FollowerReplica, int] = {}
        self._log_limiter = LogLimiter(node.world.clock)
        self._empty_since_ms: dict[TopicId, int] = {}
        """Since when there is nothing left of a deleted topic."""

    async def run(self) -> None:
        """Until it is cancelled."""
        settings = self._node.settings
        async with asyncio.TaskGroup() as group:
            group.create_task(self.flush_tails())
            group.create_task(self.retry_unfinished())
            group.create_task(self.report_losses())
            group.create_task(self.update_synced_entries())
            group.create_task(self._run_every(settings.log_retention_check_interval_ms / 1000, self.maintain_logs))
            group.create_task(self._run_every(settings.log_flush_scheduler_interval_ms / 1000, self.flush_due))
            group.create_task(
                self._run_every(settings.log_flush_offset_checkpoint_interval_ms / 1000, self.write_checkpoints)
            )
            group.create_task(self._run_every(SWEEP_SECONDS, self.delete_dropped_logs))
            group.create_task(self._run_every(COLLECT_SECONDS, self.delete_expired_objects))
            group.create_task(self._run_every(COLLECT_SECONDS, self.delete_topic_objects))
            group.create_task(self.watch_controller())
            group.create_task(self.probe_store())

    async def _run_every(self, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except (Unavailable, Refused) as error:
                log.warning("housekeeping goes on later turn=%s why=%s", step.__name__, error)
            await self._node.world.clock.sleep(seconds)

    async def watch_controller(self) -> None:
        """A controller that was frozen while another one took over learns it here, and everybody that the prefix is
        another cluster's now, which ends the broker. A bucket that is away tells nothing, and is asked by `ping`
        already."""
        while True:
            await self._node.world.clock.sleep(WATCH_SECONDS)
            if self._node.store.outage is None:
                try:
                    await self._node.cluster.check_store()
                except (Unavailable, Corrupt) as error:
                    log.warning("whether this broker is still in charge is asked later why=%s", error)

    async def maintain_logs(self) -> None:
        """Closes segments that are old enough, also when nothing is appended; deletes files whose delay is over;
        forgets producers that went silent. Between two logs everybody else has a turn."""
        node, now_ms = self._node, self._node.world.clock.wall_ms()
        for held in node.hosted_replicas.list_replicas():
            try:
                await node.disk.guard(self._maintain_log(held, now_ms))
            except (Unavailable, Refused) as error:
                log.warning("log is looked after later partition=%s why=%s", held.tp, error)
            if isinstance(held, LeaderReplica):
                node.tiering.wake(held)
            await node.world.clock.sleep(0)
        if node.disk.full is not None and node.world.disk.space().free >= FREE_AGAIN_BYTES:
            node.disk.mark_writable()

    async def retry_unfinished(self) -> None:
        """Leads, follows and tells what could not be led, followed or told when it was due: soon at first, then less
        often."""
        node, (pause, longest) = self._node, RETRY_SECONDS
        left: object = None
        while True:
            await node.world.clock.sleep(pause)
            try:
                await node.hosted_replicas.retry_unopened(lambda: node.image)
                await node.registration.report_losses()
            except (Unavailable, Refused) as error:
                unsaid = self._log_limiter.admit()
                if unsaid is not None:
                    log.warning("what is not led or told yet is tried again unsaid=%d why=%s", unsaid, error)
            untold = {*node.hosted_replicas.unreported_losses, *node.hosted_replicas.overstated_losses}
            before, left = left, (node.hosted_replicas.list_unserved().keys(), untold)
            pause = min(2 * pause, longest) if left == before and any(left) else RETRY_SECONDS[0]

    async def report_losses(self) -> None:
        """Tells of a loss as soon as it is known: until then its leader takes no records. `retry_unfinished` tries
        again."""
        node, due = self._node, self._node.hosted_replicas.loss_report_due
        while True:
            await due.wait()
            due.clear()
            try:
                await node.registration.report_losses()
            except (Unavailable, Refused) as error:
                log.warning("losses are told later why=%s", error)

    async def delete_dropped_logs(self) -> None:
        """Deletes the files of deleted topics once their delay is over. Soon, not with the next look at all logs: what
        waits keeps its pages in memory, and new records have to find fresh ones, which cost a multiple."""
        while await self._node.disk.guard(self._node.data_directory.delete_one_due(self._node.world.clock.wall_ms())):
            await self._node.world.clock.sleep(0)

    async def _maintain_log(self, replica: LeaderReplica | FollowerReplica, now_ms: int) -> None:
        """Deletes first: a full disk needs the room before it can take a new segment."""
        await replica.log.delete_dropped_files(now_ms)
        if replica.is_stopped:
            return
        node = self._node
        idle_ms = node.settings.producer_id_expiration_ms
        if node.hosted_replicas.producer_limits.is_nearly_full:
            idle_ms = min(idle_ms, IDLE_MS)
        replica.log.producers.remove_expired(now_ms, idle_ms)
        max_age_ms: int | None = None
        if (
            isinstance(replica, FollowerReplica) and replica.config.remote_storage_enable
        ):  # what is led here tiering closes in time
            max_age_ms = self._node.settings.tiered_upload_max_lag_ms
        if replica.log.is_roll_due(now_ms, max_age_ms=max_age_ms):
            replica.roll()
        if isinstance(replica, FollowerReplica):
            await replica.apply_local_retention()

    async def flush_tails(self) -> None:
        """Once: what an earlier process of this boot left in the page cache only. Not before all is led: earlier
        there is nothing to see."""
        await self._node.served.wait()
        for replica in self._node.hosted_replicas.list_replicas():
            if replica.log.flushed_offset < replica.log.end_offset and not replica.is_stopped:
                try:
                    await replica.flush()
                except Unavailable as error:
                    log.error("old tail is not flushed partition=%s why=%s", replica.tp, error)

    async def update_synced_entries(self) -> None:
        """Makes a change of `flush` true of each log soon, also where nobody writes (`hot/synced_logs.py`)."""
        partitions = self._node.hosted_replicas
        while True:
            await partitions.synced_entry_due.wait()
            partitions.synced_entry_due.clear()
            due = [held for held in partitions.list_replicas() if held.log.synced_entry.is_due and not held.is_stopped]
            for first in range(0, len(due), SYNCED_ENTRIES_AT_ONCE):
                some = due[first : first + SYNCED_ENTRIES_AT_ONCE]
                found = await asyncio.gather(
                    *(held.flush(held.log.end_offset) for held in some), return_exceptions=True
                )
                for held, error in zip(some, found, strict=True):
                    if isinstance(error, Unavailable):
                        log.warning("change of flush is noted later partition=%s why=%s", held.tp, error)
                    elif isinstance(error, BaseException):
                        raise error
            if any(held.log.synced_entry.is_due for held in due if not held.is_stopped):
                await self._node.world.clock.sleep(RETRY_SECONDS[0])
                partitions.synced_entry_due.set()

    async def flush_due(self) -> None:
        """fsyncs logs whose `flush.ms` or `flush.messages` is reached."""
        now_ms = self._node.world.clock.wall_ms()
        for replica in self._node.hosted_replicas.list_replicas():
            waiting = replica.log.end_offset - replica.log.flushed_offset
            since_ms = self._flushed_ms.setdefault(replica, now_ms)
            if replica.is_stopped:
                continue
            if waiting <= 0:
                self._flushed_ms[replica] = now_ms
            elif waiting >= replica.config.flush_messages or now_ms - since_ms >= replica.config.flush_ms:
                await replica.flush()
                self._flushed_ms[replica] = now_ms
        self._flushed_ms = {replica: ms for replica, ms in self._flushed_ms.items() if not replica.is_stopped}

    async def write_checkpoints(self) -> None:
        """fsyncs closed segments, and active ones of which much is unproved, and writes down how far each log is
        durable: that bounds what a start after power loss must check."""
        for replica in self._node.hosted_replicas.list_replicas():
            closed = replica.log.active_view.base_offset
            if replica.is_stopped:
                continue
            if replica.log.unproved_bytes >= UNFLUSHED_BYTES_MAX:
                await replica.flush()
            elif replica.log.flushed_offset < closed:
                await replica.flush(closed)
        await self._node.hosted_replicas.save_offsets()

    async def delete_expired_objects(self) -> None:
        """Deletes expired objects after their delay."""
        await self._node.cold_tier.collector.delete_expired()

    async def delete_topic_objects(self) -> None:
        """Deletes the objects of deleted topics after the stated delay. One that the bucket does not let go holds up no
        other."""
        node, now_ms = self._node, self._node.world.clock.wall_ms()
        if node.cluster.active_controller is None:
            self._empty_since_ms.clear()
            return  # it is the controller's to do
        for topic in list(node.image.deleted_topics.values()):
            late_ms = now_ms - topic.deleted_ms - node.settings.tiered_topic_delete_delay_ms
            if late_ms >= 0:
                try:
                    await self._delete_topic_objects(topic)
                except (Unavailable, Refused) as error:
                    log.warning("objects of a deleted topic stay for now topic=%s why=%s", topic.name, error)

    async def _delete_topic_objects(self, topic: DeletedTopic) -> None:
        """It is forgotten once nothing of it was there for so long that no upload which was under way can land any
        more, by a clock that nobody sets."""
        now_ms = self._node.world.clock.mono_ns() // 1_000_000
        count = await self._node.cold_tier.collector.delete_topic(topic.topic_id)
        if count:
            log.info(
                "objects of a deleted topic went topic=%s topic_id=%s objects=%d", topic.name, topic.topic_id, count
            )
            self._empty_since_ms.pop(topic.topic_id, None)
        elif now_ms - self._empty_since_ms.setdefault(topic.topic_id, now_ms) >= UPLOAD_IN_FLIGHT_MS:
            await self._node.submit(ForgetTopic(topic.topic_id))
            self._empty_since_ms.pop(topic.topic_id, None)

    async def probe_store(self) -> None:
        """Notices the end of an outage of the bucket although nothing else asks it."""
        store, (pause, longest) = self._node.store, PROBE_SECONDS
        while True:
            await self._node.world.clock.sleep(pause)
            await store.ping(FORMAT_KEY)
            pause = min(2 * pause, longest) if store.outage is not None else PROBE_SECONDS[0]
