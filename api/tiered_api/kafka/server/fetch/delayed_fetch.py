"""One fetch under way: what it found so far, what it waits for, and when it is enough.

A wake-up only marks a partition; the reading is done once per turn of the loop, so that a produce request over many
partitions makes one answer of many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ports import FileSlice
from tiered.replication.follower_reads import ReadSource
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.server.fetch import frames
from tiered_api.kafka.server.fetch.cold_reads import Load
from tiered_api.kafka.server.fetch.frames import FetchAsk, Found, Part, Topic, Wanted
from tiered_api.kafka.server.leader_hints import ELSEWHERE, NO_TAGS, NewLeaders

if TYPE_CHECKING:
    from tiered_api.kafka.server.connection import Connection, Slot
    from tiered_api.kafka.server.handlers.fetch import Fetches

COLD_WAIT_MS = 500
"""A fetch that has to wait for the bucket waits at least so long (Kafka's `remote.fetch.max.wait.ms`)."""
WAIT_MAX_MS = 300_000
LEADERS_FROM, LEADER_TAG = 16, 1
"""From that version on an answer tells who leads instead (KIP-951), under that tag."""
NAME = "Fetch"
FENCED = Code.FENCED_LEADER_EPOCH.number
UNKNOWN_EPOCH = Code.UNKNOWN_LEADER_EPOCH.number


class Poll:
    """One request until its answer. `places` has a partition of it each, `founds` what is known of it."""

    __slots__ = (
        "_ask",
        "_cold",
        "_connection",
        "_correlation_id",
        "_dirty",
        "_due",
        "_enough",
        "_failed",
        "_fetches",
        "_founds",
        "_left",
        "_places",
        "_replicas",
        "_short",
        "_slot",
        "_timer",
        "_total",
        "_version",
        "_watched",
    )

    def __init__(
        self,
        fetches: Fetches,
        connection: Connection,
        version: int,
        correlation_id: int,
        ask: FetchAsk,
        at_end: Sequence[ReadSource] = (),
    ) -> None:
        """`at_end`: all its partitions, if it is known that nobody has to `read` them yet."""
        self._fetches = fetches
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._ask = ask
        self._places: list[tuple[Topic, Wanted]] = [(topic, each) for topic in ask.topics for each in topic.wanted]
        self._founds: list[Found | None] = [None] * len(self._places)
        self._replicas: list[ReadSource | None] = list(at_end) or [None] * len(self._places)
        self._left = min(ask.max_bytes, fetches.site.node.settings.fetch_max_bytes)
        self._enough = min(ask.min_bytes, self._left)
        self._total = 0
        self._failed = False
        self._short = False
        """Whether something had to be left for the next fetch."""
        self._cold: dict[int, Load] = {}
        self._watched: list[tuple[ReadSource, int]] = []
        self._dirty: dict[int, None] = {}
        self._due = False
        """Whether it will have a look soon."""
        self._timer: asyncio.TimerHandle | None = None
        self._slot: Slot | None = None

    @property
    def size(self) -> int:
        """How many partitions it asks for."""
        return len(self._places)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Reads every partition once. The first in turn gets its bytes first; turns change when bytes ran out."""
        count = len(self._places)
        first = self._connection.turn % count if count > 1 else 0
        for place in range(first, count):
            self._read(place)
        for place in range(first):
            self._read(place)

    def is_done(self) -> bool:
        """Whether there is enough to answer, or an error, which is told at once."""
        if self._failed or self._total >= self._enough or not self._places:
            return True
        return self._ask.max_wait_ms <= 0 and not self._cold

    def answer(self) -> list[Part]:
        """The answer with what was found."""
        if self._short:
            self._connection.turn += 1
        self._fetches.site.fetched_bytes += self._total
        if self._total:
            note_sent(self._founds, self._replicas)
        topics, at = self._ask.topics, 0
        founds = self._all_founds()
        told: list[tuple[bytes, list[Found | bytes]]] = []
        for topic in topics:
            end = at + len(topic.wanted)
            told.append((topic.echo, founds[at:end]))
            at = end
        tags = self._tell_leaders(told) if self._failed and self._version >= LEADERS_FROM else NO_TAGS
        committed = self._ask.read_committed
        once = self._fetches.read_once if self._connection.may_hold else None
        return frames.answer(
            self._version, self._correlation_id, told, len(topics), read_committed=committed, tags=tags, once=once
        )

    def _all_founds(self) -> list[Found | bytes]:
        return [found or self._nothing(place) for place, found in enumerate(self._founds)]

    def _tell_leaders(self, told: list[tuple[bytes, list[Found | bytes]]]) -> bytes:
        """Says of partitions that are led elsewhere who leads them; returns the tagged fields of the answer."""
        leaders: NewLeaders | None = None
        for echo, founds in told:
            for place, found in enumerate(founds):
                if isinstance(found, Found) and found.code in ELSEWHERE:
                    if leaders is None:
                        image = self._fetches.site.node.image
                        leaders = NewLeaders(image, self._connection.listener, LEADER_TAG)
                    founds[place] = found._replace(tags=leaders.by_id(echo, found.partition))
        return NO_TAGS if leaders is None else leaders.endpoints()

    def _nothing(self, place: int) -> bytes:
        """The answer for a partition whose end was asked for, as it is by now."""
        replica = self._replicas[place]
        assert replica is not None
        return frames.nothing(self._version, replica.partition, *replica.offset_snapshot(), self._ask.read_committed)

    def _read(self, place: int) -> None:
        """What is found stays None at the end of a partition."""
        topic, (index, offset, max_bytes, epoch) = self._places[place]
        replica = self._replicas[place]
        try:
            if replica is None:
                replica = self._replicas[place] = self._fetches.find(self._version, topic, index, self._ask.rack)
            elif replica.is_stopped:
                rack, before = self._ask.rack, replica
                replica = self._replicas[place] = self._fetches.find_again(self._version, topic, index, rack, before)
            if epoch >= 0 and epoch != replica.state.leader_epoch:
                code = FENCED if epoch < replica.leader_epoch else UNKNOWN_EPOCH
                self._founds[place] = Found(index, code)
                self._failed = True
                return
            if self._is_elsewhere(place, replica, offset):
                return
            if replica.is_at_end(offset):
                self._founds[place] = None
                return
            self._founds[place] = self._read_from(place, replica, offset, max_bytes)
        except Refused as refused:
            self._fail(place, index, refused, replica)
        except Corrupt as error:
            self._fail(place, index, Refused(Code.CORRUPT_MESSAGE, str(error)), None)
        except Unavailable as error:
            self._fail(place, index, Refused(Code.KAFKA_STORAGE_ERROR, str(error)), None)

    def _is_elsewhere(self, place: int, source: ReadSource, offset: int) -> bool:
        """Whether the consumer is told, at once, to read from a replica that is nearer."""
        rack = self._ask.rack
        other = self._fetches.nearest(self._connection, source, rack, offset) if rack else None
        if other is not None:
            self._founds[place] = _without(source, source.partition)._replace(preferred=other)
            self._failed = True
        return other is not None

    def _read_from(self, place: int, replica: ReadSource, offset: int, max_bytes: int) -> Found:
        most = min(max_bytes, self._left)
        committed = self._ask.read_committed
        if self._total and most <= 0:
            self._short = True
            return _without(replica, self._places[place][1].partition)
        shared = self._fetches.shared
        if shared is not None:
            known = shared.get((replica, offset, committed))
            if known is not None and known[1] <= most:
                self._total += known[1]
                self._left -= known[1]
                return known[0]
        fetched = replica.read_now(offset, most, committed)
        if fetched is None:
            assert isinstance(replica, LeaderReplica), "a follower answers for its own disk only"
            return self._read_cold(place, replica, offset, most)
        data, high_watermark, log_start, stable = fetched
        size = data.length if isinstance(data, FileSlice) else len(data)
        if size > most and self._total:
            self._short, data, size = True, b"", 0
        self._total += size
        self._left -= size
        found = Found(replica.partition, 0, high_watermark, stable, log_start, data)
        if shared is not None and size:
            shared[replica, offset, committed] = found, size
        return found

    def _read_cold(self, place: int, replica: LeaderReplica, offset: int, most: int) -> Found:
        loads = self._fetches.loads
        load = loads.want(replica, offset, max(most, 0))
        data = b""
        if load is None:
            self._short = True
        elif load.refused is not None:
            loads.take(load)
            raise load.refused
        elif load.data is None:
            self._cold[place] = load
        elif len(load.data) > most and self._total:
            self._short = True
        else:
            data = load.data
            loads.take(load)
            self._cold.pop(place, None)
            self._total += len(data)
            self._left -= len(data)
        return _without(replica, replica.partition)._replace(data=data)

    def _fail(self, place: int, index: int, refused: Refused, replica: ReadSource | None) -> None:
        self._failed = True
        found = Found(index, refused.code.number)
        if refused.code is Code.OFFSET_OUT_OF_RANGE and replica is not None:
            found = _without(replica, index)._replace(code=refused.code.number)
        self._founds[place] = found

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Keeps the answer's place, and answers when there is enough or the time is up."""
        self._slot = self._connection.reserve(self.leave)
        self._fetches.waiting[self] = None
        self._fetches.parked += self.size
        wait_ms = max(self._ask.max_wait_ms, COLD_WAIT_MS) if self._cold else self._ask.max_wait_ms
        loop = asyncio.get_running_loop()
        guard = self._fetches.guard
        self._timer = loop.call_later(min(wait_ms, WAIT_MAX_MS) / 1000, guard, self._connection, self.finish, NAME)
        for load in self._cold.values():
            load.calls.append(self._loaded)
        try:
            for place in range(len(self._places)):
                self._watch(place)
        except Refused:
            self._failed = True
            self._soon()

    def leave(self) -> None:
        """Waits no more; nobody is there to be answered."""
        if self in self._fetches.waiting:
            del self._fetches.waiting[self]
            self._fetches.parked -= self.size
        for replica, place in self._watched:
            replica.remove_listener(self, place)
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._slot = None

    def finish(self) -> None:
        """Answers with what there is."""
        slot = self._slot
        if slot is not None:
            self.leave()
            self._connection.answer(slot, self.answer())

    def _watch(self, place: int) -> None:
        found, replica = self._founds[place], self._replicas[place]
        if replica is None or place in self._cold or (found is not None and found.code):
            return
        replica.add_listener(self, place)
        self._watched.append((replica, place))

    def woken(self, place: int) -> None:
        """There may be more of that partition."""
        self._dirty[place] = None
        if not self._due:
            self._soon()

    def _loaded(self) -> None:
        self._soon()

    def _soon(self) -> None:
        if not self._due and self._slot is not None:
            self._due = True
            self._fetches.soon(self._connection, self.look)

    def look(self) -> None:
        """Reads again what may have more now."""
        self._due = False
        if self._slot is None:
            return
        dirty, self._dirty = self._dirty, {}
        came = [place for place, load in self._cold.items() if load.done] if self._cold else []
        for place in (*dirty, *came):
            self._again_at(place)
        if came or self.is_done():
            self.finish()

    def _again_at(self, place: int) -> None:
        """What was found there before does not count any more."""
        before = self._founds[place]
        if before is not None:
            data = before.data
            size = data.length if isinstance(data, FileSlice) else len(data)
            self._total -= size
            self._left += size
        self._read(place)


def _without(replica: ReadSource, index: int) -> Found:
    """A partition as it is, without records."""
    return Found(index, 0, *replica.offset_snapshot())


def note_sent(founds: Sequence[Found | bytes | None], sources: Sequence[ReadSource | None]) -> None:
    """Counts the bytes that an answer gives of each partition as read from there."""
    for found, source in zip(founds, sources, strict=True):
        if isinstance(found, Found) and source is not None:
            source.traffic.bytes_out += found.data.length if isinstance(found.data, FileSlice) else len(found.data)
