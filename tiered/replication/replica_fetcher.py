"""Copies partitions from their leaders: for each leader a few questions at a time, each for many partitions.

A question waits at the leader until there is something. Partitions that had something last time ask together, those
that had nothing too, so that a quiet one is not asked for with each batch of a busy one. What fails is asked again
after a growing pause; who leads by then is the image's to say.
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
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.follower_step import NoAction, RestoreFromBucket, Retry
from tiered.replication.replication_quota import UNLIMITED, ReplicationQuota
from tiered.replication.storage import ColdTier

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 4
"""Questions to one leader that are under way."""
LAST_FETCH_WAIT_MS = 50
"""How long the last of them may wait at the leader: whoever comes due meanwhile can only ask after it. Twice as long
with each that brings nothing, for where all is quiet nobody comes due; who does all the same gives that one up."""
RESTORES_MAX = 4
"""Logs that begin anew from the bucket at the same time."""
BACKOFF_SECONDS = (0.05, 2.0)
FAILURES_BEFORE_LOG = 6
"""In a row, within about two seconds: from then on it is logged that a leader does not give what it is asked for."""
REPLY_SECONDS = 10.0
"""How long an answer may take beyond what the leader was allowed to wait."""


@dataclass(frozen=True)
class FetcherSettings:
    """Who asks, and for how much at most: bytes of a partition and of an answer, and the wait for the first of them;
    `throttled_rate` is in bytes per second, of copies that are held to it."""

    node_id: int
    incarnation: int
    max_wait_ms: int = 500
    max_bytes: int = 10 << 20
    partition_max_bytes: int = 1 << 20
    throttled_rate: int = UNLIMITED


class FetcherPorts(NamedTuple):
    """What the fetchers of one broker share. `address_of` is where a broker answers others now, "" when nobody knows;
    `broken` hears of a log that can only be judged by opening it anew, and whether the disk is done for; `lost` of a
    broker that answered and does no more, `heard` when it does again."""

    peers: Peers
    address_of: Callable[[int], str]
    cold: ColdTier
    clock: Clock
    on_log_broken: Callable[[FollowerReplica, bool], None]
    on_leader_lost: Callable[[int], None]
    on_leader_answered: Callable[[int], None]


@dataclass(slots=True)
class _FetchState:
    """One partition in its fetcher."""

    replica: FollowerReplica
    busy: bool = False
    idle: bool = False
    failures: int = 0
    retry_at_ns: int = 0


class ReplicaFetchers:
    """Every partition that this broker follows, by leader."""

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
            "tiered_replica_failures_total", "Partitions that could not be copied when asked for."
        )
        metrics.gauge("tiered_replica_troubles", "Followed partitions that do not go on.").set_function(
            lambda: float(sum(fetcher.failing_partitions for fetcher in self._fetchers.values()))
        )

    def follow(self, replica: FollowerReplica) -> None:
        """Copies it from its leader until it is `gone`."""
        fetcher = self._fetchers.get(replica.leader)
        if fetcher is None:
            fetcher = self._fetchers[replica.leader] = ReplicaFetcher(replica.leader, self)
            self._fetcher_added.set()
        fetcher.add(replica)

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            running: dict[int, ReplicaFetcher] = {}
            while True:
                self._fetcher_added.clear()
                for leader, fetcher in self._fetchers.items():
                    if running.get(leader) is not fetcher:
                        running[leader] = fetcher
                        group.create_task(fetcher.run(), name=f"fetcher-{leader}")
                await self._fetcher_added.wait()

    # -- what a fetcher asks ------------------------------------------------------------------------------------------

    @property
    def ports(self) -> FetcherPorts:
        return self._ports

    @property
    def settings(self) -> FetcherSettings:
        """As the settings say now."""
        return self._settings()

    @property
    def restore_slots(self) -> asyncio.Semaphore:
        return self._restore_slots

    @property
    def rng(self) -> Random:
        return self._rng

    def record_fetched(self, count: int, replica: FollowerReplica, *, was_behind: bool) -> None:
        """Bytes came; those of a replica that is held to a rate, and was or is behind, count against it."""
        self._bytes.inc(count)
        if (was_behind or replica.lag) and replica.config.follower_replication_throttled_replicas:
            settings, now_ns = self._settings(), self._ports.clock.mono_ns()
            if replica.is_throttled(settings.node_id):
                self._quota.set_rate(settings.throttled_rate, now_ns).record(count, now_ns)

    def find_throttled(self, replicas: Iterable[FollowerReplica], now_ns: int) -> tuple[int, set[FollowerReplica]]:
        """How long copies that are held to a rate have to wait (KIP-73), and which those are: only who is behind is."""
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
        """It has nothing more to copy."""
        if self._fetchers.get(leader) is fetcher:
            del self._fetchers[leader]


class ReplicaFetcher:
    """All that is copied from one leader. Ends by itself when that is nothing."""

    def __init__(self, leader: int, fetchers: ReplicaFetchers) -> None:
        self.leader = leader
        self._fetchers = fetchers
        self._ports = fetchers.ports
        self._states: dict[TopicPartition, _FetchState] = {}
        self._in_flight = 0
        self._last_wait_ms = LAST_FETCH_WAIT_MS
        self._last_timeout: asyncio.Timeout | None = None
        """Of the last question, while it waits longer than whoever comes due should."""
        self._leader_answers = False
        self._jitter = 0.0
        self._wake = asyncio.Event()
        self._log_limiter = LogLimiter(self._ports.clock)

    @property
    def failing_partitions(self) -> int:
        return sum(bool(state.replica.fetch_error) for state in self._states.values())

    def add(self, replica: FollowerReplica) -> None:
        """One more; it takes the place of an earlier copy of the same partition."""
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
        """Who asks now, those apart that had something last time; all together where only one question is left."""
        now_ns = self._ports.clock.mono_ns()
        free = [state for state in self._states.values() if not state.busy and state.retry_at_ns <= now_ns]
        pause_ns, throttled = self._fetchers.find_throttled((state.replica for state in free), now_ns)
        for state in free if throttled else ():
            if state.replica in throttled:
                state.retry_at_ns = now_ns + pause_ns
        free = [state for state in free if state.retry_at_ns <= now_ns]
        room = IN_FLIGHT_MAX - self._in_flight
        if free and not room and self._last_timeout is not None:
            last, self._last_timeout = self._last_timeout, None  # once: one that is about to end takes no other time
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
        """Seconds until somebody's pause is over; None while nobody pauses."""
        pauses = [state.retry_at_ns for state in self._states.values() if not state.busy]
        if not pauses or (self._in_flight >= IN_FLIGHT_MAX and self._last_timeout is None):
            return None
        return max(0.001, (min(pauses) - self._ports.clock.mono_ns()) / 1e9)

    # -- one question -------------------------------------------------------------------------------------------------

    async def _run_fetch(self, states: Sequence[_FetchState], last: bool, group: asyncio.TaskGroup) -> None:
        """Those that fail pause for the same time, to ask together again: each question that waits for only one of
        them would keep another from being asked."""
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
        """Those that may ask: what they say to have is as durable as their topics want, and so is every cut."""
        waiting = [state for state in states if not state.replica.is_durable]
        results = await asyncio.gather(*(state.replica.make_durable() for state in waiting), return_exceptions=True)
        for state, result in zip(waiting, results, strict=True):
            if isinstance(result, Unavailable):
                self._back_off(state, str(result))
            elif isinstance(result, BaseException):
                raise result
        now_ns = self._ports.clock.mono_ns()
        return [each for each in states if not each.replica.is_stopped and each.retry_at_ns <= now_ns]

    async def _send_fetch(self, states: dict[tuple[TopicId, int], _FetchState], *, last: bool) -> list[_FetchState]:
        """Asks, does what follows, and returns those that have to begin anew from the bucket."""
        settings, restoring = self._fetchers.settings, []
        address = self._ports.address_of(self.leader)
        if not address:
            raise Unavailable(f"nobody knows where broker {self.leader} answers")
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
        answered = {(part.topic_id, part.partition) for part in parts}
        for key, state in states.items():
            if key not in answered:  # there is nothing new
                state.idle, state.failures, state.replica.fetch_error = True, 0, ""
        for part in parts:
            key = (part.topic_id, part.partition)
            if key in states:
                if self._apply_reply(states[key], partition_requests[key], part):
                    restoring.append(states[key])
                if part.records:
                    await self._ports.clock.sleep(0)  # others have their turn between two large ones
        if last:
            quiet = all(state.idle for state in states.values())
            self._last_wait_ms = min(2 * self._last_wait_ms, settings.max_wait_ms) if quiet else LAST_FETCH_WAIT_MS
        return restoring

    def _report_contact(self, *, leader_answers: bool) -> None:
        if leader_answers != self._leader_answers:
            self._leader_answers = leader_answers
            (self._ports.on_leader_answered if leader_answers else self._ports.on_leader_lost)(self.leader)

    def _apply_reply(self, state: _FetchState, request: PartitionFetch, part: FetchedPartition) -> bool:
        """Whether it has to begin anew from the bucket."""
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
        if state.replica.log.write_failure:
            self._ports.on_log_broken(state.replica, not isinstance(error, Unavailable) or error.final)

    def _back_off(self, state: _FetchState, why: str, *, is_transient: bool = False) -> None:
        """It asks again after a pause. `passing`: a new leader says no until it is ready, so it is logged later."""
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
                "partition is not copied partition=%s leader=%d failures=%d unsaid=%d why=%s",
                state.replica.tp, self.leader, state.failures, suppressed, why,
            )  # fmt: skip
