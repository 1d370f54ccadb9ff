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
from tiered.log_limiter import Quiet
from tiered.metrics import Metrics
from tiered.peers import FetchedPart, FetchFrom, Peers, ReplicaFetch
from tiered.ports import Clock, Rng
from tiered.replication.follower_replica import Copy
from tiered.replication.follower_step import FromBucket, Nothing, Retry
from tiered.replication.replication_quota import UNLIMITED, Throttle
from tiered.replication.storage import ColdTier

log = logging.getLogger(__name__)

ROUNDS_MAX = 4
"""Questions to one leader that are under way."""
LAST_WAIT_MS = 50
"""How long the last of them may wait at the leader: whoever comes due meanwhile can only ask after it. Twice as long
with each that brings nothing, for where all is quiet nobody comes due; who does all the same gives that one up."""
RESTORES_MAX = 4
"""Logs that begin anew from the bucket at the same time."""
PAUSE_SECONDS = (0.05, 2.0)
PASSING_FAILURES = 6
"""In a row, within about two seconds: from then on it is logged that a leader does not give what it is asked for."""
ANSWER_SECONDS = 10.0
"""How long an answer may take beyond what the leader was allowed to wait."""


@dataclass(frozen=True)
class Asking:
    """Who asks, and for how much at most: bytes of a partition and of an answer, and the wait for the first of them;
    `throttled_rate` is in bytes per second, of copies that are held to it."""

    node_id: int
    incarnation: int
    max_wait_ms: int = 500
    max_bytes: int = 10 << 20
    partition_max_bytes: int = 1 << 20
    throttled_rate: int = UNLIMITED


class Ports(NamedTuple):
    """What the fetchers of one broker share. `address_of` is where a broker answers others now, "" when nobody knows;
    `broken` hears of a log that can only be judged by opening it anew, and whether the disk is done for; `lost` of a
    broker that answered and does no more, `heard` when it does again."""

    peers: Peers
    address_of: Callable[[int], str]
    cold: ColdTier
    clock: Clock
    broken: Callable[[Copy, bool], None]
    lost: Callable[[int], None]
    heard: Callable[[int], None]


@dataclass(slots=True)
class _Place:
    """One partition in its fetcher."""

    copy: Copy
    busy: bool = False
    quiet: bool = False
    failures: int = 0
    not_before_ns: int = 0


class Fetchers:
    """Every partition that this broker follows, by leader."""

    def __init__(self, asking: Callable[[], Asking], ports: Ports, rng: Rng, metrics: Metrics) -> None:
        self._asking = asking
        self._ports = ports
        self._chance = rng.stream("fetchers")
        self._restores = asyncio.Semaphore(RESTORES_MAX)
        self._fetchers: dict[int, Fetcher] = {}
        self._begun = asyncio.Event()
        self._throttle = Throttle()
        self._bytes = metrics.counter("tiered_replica_copied_bytes_total", "Bytes of log copied from leaders.")
        self._failed = metrics.counter(
            "tiered_replica_failures_total", "Partitions that could not be copied when asked for."
        )
        metrics.gauge("tiered_replica_troubles", "Followed partitions that do not go on.").read(
            lambda: float(sum(fetcher.troubles for fetcher in self._fetchers.values()))
        )

    def follow(self, copy: Copy) -> None:
        """Copies it from its leader until it is `gone`."""
        fetcher = self._fetchers.get(copy.leader)
        if fetcher is None:
            fetcher = self._fetchers[copy.leader] = Fetcher(copy.leader, self)
            self._begun.set()
        fetcher.add(copy)

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            running: dict[int, Fetcher] = {}
            while True:
                self._begun.clear()
                for leader, fetcher in self._fetchers.items():
                    if running.get(leader) is not fetcher:
                        running[leader] = fetcher
                        group.create_task(fetcher.run(), name=f"fetcher-{leader}")
                await self._begun.wait()

    # -- what a fetcher asks ------------------------------------------------------------------------------------------

    @property
    def ports(self) -> Ports:
        return self._ports

    @property
    def asking(self) -> Asking:
        """As the settings say now."""
        return self._asking()

    @property
    def restores(self) -> asyncio.Semaphore:
        return self._restores

    @property
    def chance(self) -> Random:
        return self._chance

    def copied(self, count: int, copy: Copy, *, was_behind: bool) -> None:
        """Bytes came; those of a replica that is held to a rate, and was or is behind, count against it."""
        self._bytes.inc(count)
        if (was_behind or copy.lag) and copy.config.follower_replication_throttled_replicas:
            asking, now_ns = self._asking(), self._ports.clock.mono_ns()
            if copy.throttled(asking.node_id):
                self._throttle.at(asking.throttled_rate, now_ns).took(count, now_ns)

    def held(self, copies: Iterable[Copy], now_ns: int) -> tuple[int, set[Copy]]:
        """How long copies that are held to a rate have to wait (KIP-73), and which those are: only who is behind is."""
        asking = self._asking()
        if asking.throttled_rate >= UNLIMITED:
            return 0, set()
        pause_ns = self._throttle.at(asking.throttled_rate, now_ns).pause_ns(now_ns)
        if not pause_ns:
            return 0, set()
        return pause_ns, {copy for copy in copies if copy.lag and copy.throttled(asking.node_id)}

    def failed(self, count: int) -> None:
        self._failed.inc(count)

    def ended(self, leader: int, fetcher: Fetcher) -> None:
        """It has nothing more to copy."""
        if self._fetchers.get(leader) is fetcher:
            del self._fetchers[leader]


class Fetcher:
    """All that is copied from one leader. Ends by itself when that is nothing."""

    def __init__(self, leader: int, all_of_them: Fetchers) -> None:
        self.leader = leader
        self._all = all_of_them
        self._ports = all_of_them.ports
        self._places: dict[TopicPartition, _Place] = {}
        self._rounds = 0
        self._last_wait_ms = LAST_WAIT_MS
        self._last: asyncio.Timeout | None = None
        """Of the last question, while it waits longer than whoever comes due should."""
        self._answers = False
        self._drawn = 0.0
        self._wake = asyncio.Event()
        self._quiet = Quiet(self._ports.clock)

    @property
    def troubles(self) -> int:
        return sum(bool(place.copy.trouble) for place in self._places.values())

    def add(self, copy: Copy) -> None:
        """One more; it takes the place of an earlier copy of the same partition."""
        self._places[copy.at] = _Place(copy)
        self._last_wait_ms = LAST_WAIT_MS
        self._wake.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                self._places = {at: place for at, place in self._places.items() if not place.copy.gone}
                if not self._places:
                    self._all.ended(self.leader, self)
                    return
                for due in self._due():
                    self._rounds += 1
                    group.create_task(self._round(due, self._rounds == ROUNDS_MAX, group), name=f"fetch-{self.leader}")
                try:
                    async with asyncio.timeout(self._until_next()):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    def _due(self) -> list[list[_Place]]:
        """Who asks now, those apart that had something last time; all together where only one question is left."""
        now_ns = self._ports.clock.mono_ns()
        free = [place for place in self._places.values() if not place.busy and place.not_before_ns <= now_ns]
        pause_ns, held = self._all.held((place.copy for place in free), now_ns)
        for place in free if held else ():
            if place.copy in held:
                place.not_before_ns = now_ns + pause_ns
        free = [place for place in free if place.not_before_ns <= now_ns]
        room = ROUNDS_MAX - self._rounds
        if free and not room and self._last is not None:
            last, self._last = self._last, None  # once: one that is about to end takes no other time
            last.reschedule(asyncio.get_running_loop().time())
        if not free or not room:
            return []
        found = [free]
        if room > 1:
            found = [[place for place in free if not place.quiet], [place for place in free if place.quiet]]
        for place in free:
            place.busy = True
        return [each for each in found if each]

    def _until_next(self) -> float | None:
        """Seconds until somebody's pause is over; None while nobody pauses."""
        pauses = [place.not_before_ns for place in self._places.values() if not place.busy]
        if not pauses or (self._rounds >= ROUNDS_MAX and self._last is None):
            return None
        return max(0.001, (min(pauses) - self._ports.clock.mono_ns()) / 1e9)

    # -- one question -------------------------------------------------------------------------------------------------

    async def _round(self, places: Sequence[_Place], last: bool, group: asyncio.TaskGroup) -> None:
        """Those that fail pause for the same time, to ask together again: each question that waits for only one of
        them would keep another from being asked."""
        restoring: list[_Place] = []
        self._drawn = self._all.chance.random()
        try:
            asked = {(each.copy.topic_id, each.copy.at.partition): each for each in await self._durable(places)}
            if asked:
                restoring = await self._ask(asked, last=last)
        except (Unavailable, Refused, Corrupt) as error:
            for place in places:
                self._failure(place, str(error))
        finally:
            self._rounds -= 1
            for place in places:
                place.busy = any(place is each for each in restoring)
            self._wake.set()
        for place in restoring:
            group.create_task(self._restore(place), name=f"restore-{place.copy.at}")

    async def _durable(self, places: Sequence[_Place]) -> list[_Place]:
        """Those that may ask: what they say to have is as durable as their topics want, and so is every cut."""
        waiting = [place for place in places if not place.copy.is_durable]
        results = await asyncio.gather(*(place.copy.make_durable() for place in waiting), return_exceptions=True)
        for place, result in zip(waiting, results, strict=True):
            if isinstance(result, Unavailable):
                self._failure(place, str(result))
            elif isinstance(result, BaseException):
                raise result
        now_ns = self._ports.clock.mono_ns()
        return [each for each in places if not each.copy.gone and each.not_before_ns <= now_ns]

    async def _ask(self, places: dict[tuple[TopicId, int], _Place], *, last: bool) -> list[_Place]:
        """Asks, does what follows, and returns those that have to begin anew from the bucket."""
        asking, restoring = self._all.asking, []
        address = self._ports.address_of(self.leader)
        if not address:
            raise Unavailable(f"nobody knows where broker {self.leader} answers")
        asks = {key: place.copy.asks() for key, place in places.items()}
        wait_ms = min(asking.max_wait_ms, self._last_wait_ms) if last else asking.max_wait_ms
        ask = ReplicaFetch(
            asking.node_id, asking.incarnation, wait_ms, asking.max_bytes, asking.partition_max_bytes,
            tuple(asks.values()),
        )  # fmt: skip
        try:
            async with asyncio.timeout(None) as given_up:
                self._last = given_up if last and wait_ms > LAST_WAIT_MS else self._last
                parts = await self._ports.peers.fetch(address, ask, asking.max_wait_ms / 1000 + ANSWER_SECONDS)
        except TimeoutError:
            return []
        except Unavailable:
            self._told(answers=False)
            raise
        finally:
            self._last = None if self._last is given_up else self._last
        self._told(answers=True)
        answered = {(part.topic_id, part.partition) for part in parts}
        for key, place in places.items():
            if key not in answered:  # there is nothing new
                place.quiet, place.failures, place.copy.trouble = True, 0, ""
        for part in parts:
            key = (part.topic_id, part.partition)
            if key in places:
                if self._take(places[key], asks[key], part):
                    restoring.append(places[key])
                if part.records:
                    await self._ports.clock.sleep(0)  # others have their turn between two large ones
        if last:
            quiet = all(place.quiet for place in places.values())
            self._last_wait_ms = min(2 * self._last_wait_ms, asking.max_wait_ms) if quiet else LAST_WAIT_MS
        return restoring

    def _told(self, *, answers: bool) -> None:
        if answers != self._answers:
            self._answers = answers
            (self._ports.heard if answers else self._ports.lost)(self.leader)

    def _take(self, place: _Place, asked: FetchFrom, part: FetchedPart) -> bool:
        """Whether it has to begin anew from the bucket."""
        copy = place.copy
        before, was_behind = copy.log.end_offset, copy.lag > 0
        try:
            found = copy.take(asked, part)
        except (Unavailable, Refused, Corrupt) as error:
            self._failed(place, error)
            return False
        if isinstance(found, Retry):
            self._failure(place, found.why, passing=True)
            return False
        place.failures = 0
        place.quiet = isinstance(found, Nothing)
        if copy.log.end_offset > before:
            self._all.copied(len(part.records), copy, was_behind=was_behind)
        return isinstance(found, FromBucket)

    async def _restore(self, place: _Place) -> None:
        try:
            async with self._all.restores:
                await place.copy.begin_behind_cold(self._ports.cold)
            place.quiet = False
        except (Unavailable, Refused, Corrupt) as error:
            self._failed(place, error)
        finally:
            place.busy = False
            self._wake.set()

    def _failed(self, place: _Place, error: Unavailable | Refused | Corrupt) -> None:
        self._failure(place, str(error))
        if place.copy.log.write_failure:
            self._ports.broken(place.copy, not isinstance(error, Unavailable) or error.final)

    def _failure(self, place: _Place, why: str, *, passing: bool = False) -> None:
        """It asks again after a pause. `passing`: a new leader says no until it is ready, so it is logged later."""
        shortest, longest = PAUSE_SECONDS
        place.failures = min(place.failures + 1, 16)
        pause = min(longest, shortest * 2 ** (place.failures - 1)) * (0.5 + self._drawn / 2)
        place.not_before_ns = self._ports.clock.mono_ns() + int(pause * 1e9)
        place.quiet, place.copy.trouble = False, why
        self._last_wait_ms = LAST_WAIT_MS
        self._all.failed(1)
        if passing and place.failures < PASSING_FAILURES:
            return
        unsaid = self._quiet.unsaid()
        if unsaid is not None:
            log.warning(
                "partition is not copied partition=%s leader=%d failures=%d unsaid=%d why=%s",
                place.copy.at, self.leader, place.failures, unsaid, why,
            )  # fmt: skip
