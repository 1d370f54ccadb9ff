"""The replica fetchers of a broker: one for each leader that it follows, with a few fetch requests in flight.

The leader parks a request until there are records. Partitions that had records last time share a request, and so do
those that had none; otherwise an idle partition would be requested again with every batch of a busy one. A partition
that fails is fetched again after a growing pause. Does not choose the leader: the metadata image does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicId, TopicPartition
from tiered.log_limiter import LogLimiter
from tiered.metrics import Metrics
from tiered.peers import FetchedPartition, PartitionFetch, Peers, ReplicaFetch
from tiered.ports import Clock, Rng
from tiered.replication.cold_tier import ColdTier
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.follower_step import NoAction, RestoreFromBucket, Retry
from tiered.replication.replication_quota import UNLIMITED, ReplicationQuota

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 4
"""Maximum number of requests in flight to one leader."""
LAST_FETCH_WAIT_MS = 50
"""The time for which the leader may park the last of these requests: a partition that becomes due meanwhile has to wait
for it. The time doubles with each reply without records, because nothing becomes due while all partitions are idle. A
partition that does become due then cancels the request."""
RESTORES_MAX = 4
"""Maximum number of logs that are restored from the bucket at the same time."""
BACKOFF_SECONDS = (0.05, 2.0)
FAILURES_BEFORE_LOG = 6
"""Failures in a row, within about two seconds, after which the log says that a leader does not serve the partition."""
REPLY_SECONDS = 10.0
"""The time that a reply may take beyond the time for which the leader may park the request."""


@dataclass(frozen=True)
class FetcherSettings:
    """The identity of this broker, and limits of its fetches: bytes of one partition, bytes of one reply, and how long
    the leader may wait for records. `throttled_rate` limits throttled replicas, in bytes per second."""

    node_id: int
    incarnation: int
    max_wait_ms: int = 500
    max_bytes: int = 10 << 20
    partition_max_bytes: int = 1 << 20
    throttled_rate: int = UNLIMITED


class FetcherPorts(NamedTuple):
    """Dependencies that all fetchers of a broker share.

    `address_of` returns the address at which a broker serves other brokers now, "" if it is not known. `on_log_broken`
    is called with a log that must be opened again before it can be trusted; its second argument is True if the disk
    must not be used any more. `on_leader_lost` is called when a broker that replied stops doing so,
    `on_leader_answered` when it replies again.
    """

    peers: Peers
    address_of: Callable[[int], str]
    cold: ColdTier
    clock: Clock
    on_log_broken: Callable[[FollowerReplica, bool], None]
    on_leader_lost: Callable[[int], None]
    on_leader_answered: Callable[[int], None]


@dataclass(slots=True)
class _FetchState:
    """One partition in its fetcher. It is `busy` while a request or a restore is in progress, `idle` if its last reply
    had no records."""

    replica: FollowerReplica
    busy: bool = False
    idle: bool = False
    failures: int = 0
    retry_at_ns: int = 0


class ReplicaFetchers:
    """All partitions that this broker follows, by leader."""

    def __init__(
        self, settings: Callable[[], FetcherSettings], ports: FetcherPorts, rng: Rng, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._ports = ports
        self._rng = rng.stream("fetchers")
        self._restore_slots = asyncio.Semaphore(RESTORES_MAX)
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._fetcher_added = asyncio.Event()
        self._quota = ReplicationQuota()
        self._bytes = metrics.counter("tiered_replica_copied_bytes_total", "Bytes of log copied from leaders.")
        self._failed = metrics.counter(
            "tiered_replica_failures_total", "Partitions that could not be copied when requested."
        )
        metrics.gauge("tiered_replica_troubles", "Followed partitions that make no progress.").set_function(
            lambda: float(sum(fetcher.failing_partitions for fetcher in self._fetchers.values()))
        )

    def follow(self, replica: FollowerReplica) -> None:
        """Copies a partition from its leader until the replica is stopped."""
        fetcher = self._fetchers.get(replica.leader)
        if fetcher is None:
            fetcher = self._fetchers[replica.leader] = ReplicaFetcher(replica.leader, self)
            self._fetcher_added.set()
        fetcher.add(replica)

    async def run(self) -> None:
        """Runs one task for each fetcher, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            running: dict[int, ReplicaFetcher] = {}
            while True:
                self._fetcher_added.clear()
                for leader, fetcher in self._fetchers.items():
                    if running.get(leader) is not fetcher:
                        running[leader] = fetcher
                        group.create_task(fetcher.run(), name=f"fetcher-{leader}")
                await self._fetcher_added.wait()

    # -- shared by the fetchers ---------------------------------------------------------------------------------------

    @property
    def ports(self) -> FetcherPorts:
        return self._ports

    @property
    def settings(self) -> FetcherSettings:
        """The settings in force now."""
        return self._settings()

    @property
    def restore_slots(self) -> asyncio.Semaphore:
        return self._restore_slots

    @property
    def rng(self) -> Random:
        return self._rng

    def record_fetched(self, count: int, replica: FollowerReplica, *, was_behind: bool) -> None:
        """Counts copied bytes. Bytes of a throttled replica count against the quota if it was behind or still is."""
        self._bytes.inc(count)
        if (was_behind or replica.lag) and replica.config.follower_replication_throttled_replicas:
            settings, now_ns = self._settings(), self._ports.clock.mono_ns()
            if replica.is_throttled(settings.node_id):
                self._quota.set_rate(settings.throttled_rate, now_ns).record(count, now_ns)

    def find_throttled(self, replicas: Iterable[FollowerReplica], now_ns: int) -> tuple[int, set[FollowerReplica]]:
        """Returns how long throttled replicas have to pause (KIP-73), and which those are. Only a replica that is
        behind is throttled."""
        settings = self._settings()
        if settings.throttled_rate >= UNLIMITED:
            return 0, set()
        pause_ns = self._quota.set_rate(settings.throttled_rate, now_ns).pause_ns(now_ns)
        if not pause_ns:
            return 0, set()
        return pause_ns, {replica for replica in replicas if replica.lag and replica.is_throttled(settings.node_id)}

    def count_failures(self, count: int) -> None:
        self._failed.inc(count)

    def remove_fetcher(self, leader: int, fetcher: ReplicaFetcher) -> None:
        """Removes a fetcher that has nothing more to copy."""
        if self._fetchers.get(leader) is fetcher:
            del self._fetchers[leader]


class ReplicaFetcher:
    """Copies all partitions that one broker leads. Ends when there are none left."""

    def __init__(self, leader: int, fetchers: ReplicaFetchers) -> None:
        self.leader = leader
        self._fetchers = fetchers
        self._ports = fetchers.ports
        self._states: dict[TopicPartition, _FetchState] = {}
        self._in_flight = 0
        self._last_wait_ms = LAST_FETCH_WAIT_MS
        self._last_timeout: asyncio.Timeout | None = None
        """The timeout of the last request, while the leader may park it for longer than a due partition should wait."""
        self._leader_answers = False
        self._jitter = 0.0
        self._wake = asyncio.Event()
        self._log_limiter = LogLimiter(self._ports.clock)

    @property
    def failing_partitions(self) -> int:
        return sum(bool(state.replica.fetch_error) for state in self._states.values())

    def add(self, replica: FollowerReplica) -> None:
        """Adds a partition; replaces an earlier replica of the same partition."""
        self._states[replica.tp] = _FetchState(replica)
        self._last_wait_ms = LAST_FETCH_WAIT_MS
        self._wake.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                self._states = {tp: state for tp, state in self._states.items() if not state.replica.is_stopped}
                if not self._states:
                    self._fetchers.remove_fetcher(self.leader, self)
                    return
                for due in self._take_due():
                    self._in_flight += 1
                    group.create_task(
                        self._run_fetch(due, self._in_flight == IN_FLIGHT_MAX, group), name=f"fetch-{self.leader}"
                    )
                try:
                    async with asyncio.timeout(self._seconds_until_due()):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    def _take_due(self) -> list[list[_FetchState]]:
        """Takes the partitions to fetch now, one list for each request. Those that had records last time are apart from
        the others. If only one request is left, all are together."""
        now_ns = self._ports.clock.mono_ns()
        free = [state for state in self._states.values() if not state.busy and state.retry_at_ns <= now_ns]
        pause_ns, throttled = self._fetchers.find_throttled((state.replica for state in free), now_ns)
        for state in free if throttled else ():
            if state.replica in throttled:
                state.retry_at_ns = now_ns + pause_ns
        free = [state for state in free if state.retry_at_ns <= now_ns]
        room = IN_FLIGHT_MAX - self._in_flight
        if free and not room and self._last_timeout is not None:
            last, self._last_timeout = self._last_timeout, None  # once: a timeout that is ending cannot be rescheduled
            if not last.expired():
                last.reschedule(asyncio.get_running_loop().time())
        if not free or not room:
            return []
        found = [free]
        if room > 1:
            found = [[state for state in free if not state.idle], [state for state in free if state.idle]]
        for state in free:
            state.busy = True
        return [each for each in found if each]

    def _seconds_until_due(self) -> float | None:
        """Returns the seconds until the next pause is over; None if no partition pauses."""
        pauses = [state.retry_at_ns for state in self._states.values() if not state.busy]
        if not pauses or (self._in_flight >= IN_FLIGHT_MAX and self._last_timeout is None):
            return None
        return max(0.001, (min(pauses) - self._ports.clock.mono_ns()) / 1e9)

    # -- one request --------------------------------------------------------------------------------------------------

    async def _run_fetch(self, states: Sequence[_FetchState], last: bool, group: asyncio.TaskGroup) -> None:
        """Sends one request and handles its reply. Partitions that fail pause for the same time, so that they share the
        next request. Otherwise requests for single partitions would use up the requests in flight."""
        restoring: list[_FetchState] = []
        self._jitter = self._fetchers.rng.random()
        try:
            ready = {
                (each.replica.topic_id, each.replica.tp.partition): each for each in await self._make_durable(states)
            }
            if ready:
                restoring = await self._send_fetch(ready, last=last)
        except (Unavailable, Refused, Corrupt) as error:
            for state in states:
                self._back_off(state, str(error))
        finally:
            self._in_flight -= 1
            for state in states:
                state.busy = any(state is each for each in restoring)
            self._wake.set()
        for state in restoring:
            group.create_task(self._restore(state), name=f"restore-{state.replica.tp}")

    async def _make_durable(self, states: Sequence[_FetchState]) -> list[_FetchState]:
        """Returns the partitions that may be fetched: what their requests claim is as durable as their topics demand,
        and so is every truncation."""
        waiting = [state for state in states if not state.replica.is_durable]
        if waiting:
            results = await asyncio.gather(*(state.replica.make_durable() for state in waiting), return_exceptions=True)
            for state, result in zip(waiting, results, strict=True):
                if isinstance(result, Unavailable):
                    self._back_off(state, str(result))
                elif isinstance(result, BaseException):
                    raise result
        now_ns = self._ports.clock.mono_ns()
        return [each for each in states if not each.replica.is_stopped and each.retry_at_ns <= now_ns]

    async def _send_fetch(self, states: dict[tuple[TopicId, int], _FetchState], *, last: bool) -> list[_FetchState]:
        """Sends the request, carries out the reply, and returns the partitions that must be restored from the
        bucket."""
        settings, restoring = self._fetchers.settings, []
        address = self._ports.address_of(self.leader)
        if not address:
            raise Unavailable(f"the address of broker {self.leader} is not known")
        partition_requests = {key: state.replica.build_fetch() for key, state in states.items()}
        wait_ms = min(settings.max_wait_ms, self._last_wait_ms) if last else settings.max_wait_ms
        request = ReplicaFetch(
            settings.node_id, settings.incarnation, wait_ms, settings.max_bytes, settings.partition_max_bytes,
            tuple(partition_requests.values()),
        )  # fmt: skip
        try:
            async with asyncio.timeout(None) as timeout:
                self._last_timeout = timeout if last and wait_ms > LAST_FETCH_WAIT_MS else self._last_timeout
                parts = await self._ports.peers.fetch(address, request, settings.max_wait_ms / 1000 + REPLY_SECONDS)
        except TimeoutError:
            return []
        except Unavailable:
            self._report_contact(leader_answers=False)
            raise
        finally:
            self._last_timeout = None if self._last_timeout is timeout else self._last_timeout
        self._report_contact(leader_answers=True)
        replied = {(part.topic_id, part.partition) for part in parts}
        for key, state in states.items():
            if key not in replied:  # no news for this partition
                state.idle, state.failures, state.replica.fetch_error = True, 0, ""
        for part in parts:
            key = (part.topic_id, part.partition)
            if key in states:
                if self._apply_reply(states[key], partition_requests[key], part):
                    restoring.append(states[key])
                if part.records:
                    await self._ports.clock.sleep(0)  # other tasks have a turn between two large parts
        if last:
            all_idle = all(state.idle for state in states.values())
            self._last_wait_ms = min(2 * self._last_wait_ms, settings.max_wait_ms) if all_idle else LAST_FETCH_WAIT_MS
        return restoring

    def _report_contact(self, *, leader_answers: bool) -> None:
        if leader_answers != self._leader_answers:
            self._leader_answers = leader_answers
            (self._ports.on_leader_answered if leader_answers else self._ports.on_leader_lost)(self.leader)

    def _apply_reply(self, state: _FetchState, request: PartitionFetch, part: FetchedPartition) -> bool:
        """Carries out the reply for one partition. Returns True if the partition must be restored from the bucket."""
        replica = state.replica
        before, was_behind = replica.log.end_offset, replica.lag > 0
        try:
            found = replica.apply_reply(request, part)
        except (Unavailable, Refused, Corrupt) as error:
            self._on_error(state, error)
            return False
        if isinstance(found, Retry):
            self._back_off(state, found.why, is_transient=True)
            return False
        state.failures = 0
        state.idle = isinstance(found, NoAction)
        if replica.log.end_offset > before:
            self._fetchers.record_fetched(len(part.records), replica, was_behind=was_behind)
        return isinstance(found, RestoreFromBucket)

    async def _restore(self, state: _FetchState) -> None:
        try:
            async with self._fetchers.restore_slots:
                await state.replica.restore_from_bucket(self._ports.cold)
            state.idle = False
        except (Unavailable, Refused, Corrupt) as error:
            self._on_error(state, error)
        finally:
            state.busy = False
            self._wake.set()

    def _on_error(self, state: _FetchState, error: Unavailable | Refused | Corrupt) -> None:
        self._back_off(state, str(error))
        if state.replica.log.status.write_failure:
            self._ports.on_log_broken(state.replica, not isinstance(error, Unavailable) or error.final)

    def _back_off(self, state: _FetchState, why: str, *, is_transient: bool = False) -> None:
        """Pauses a partition after a failure. A transient failure is logged later: a new leader refuses fetches until
        it is ready."""
        shortest, longest = BACKOFF_SECONDS
        state.failures = min(state.failures + 1, 16)
        pause = min(longest, shortest * 2 ** (state.failures - 1)) * (0.5 + self._jitter / 2)
        state.retry_at_ns = self._ports.clock.mono_ns() + int(pause * 1e9)
        state.idle, state.replica.fetch_error = False, why
        self._last_wait_ms = LAST_FETCH_WAIT_MS
        self._fetchers.count_failures(1)
        if is_transient and state.failures < FAILURES_BEFORE_LOG:
            return
        suppressed = self._log_limiter.admit()
        if suppressed is not None:
            log.warning(
                "partition is not copied partition=%s leader=%d failures=%d suppressed=%d why=%s",
                state.replica.tp, self.leader, state.failures, suppressed, why,
            )  # fmt: skip
