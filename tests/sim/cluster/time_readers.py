"""Readers that ask for offsets by time, and by the largest timestamp, while tiering, deletions and cleans run (I33).

Most look-ups come in bursts over several connections: then all but one of them wait for a slot, and records
move between the tiers meanwhile. They ask for any time of the run, also for the last seconds, whose records move next.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from tests.sim.cluster.checkers import LossPredicate
from tests.sim.cluster.history import Send, SendVerdict
from tests.sim.cluster.observer import Finding, patched
from tests.sim.harness.clock import EPOCH_MS
from tests.sim.harness.loop import SimLoop
from tiered.cold import reader
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.leader_routing import list_offsets

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
MAX_TIMESTAMP = -3
MAX_TIMESTAMP_CHANCE, RECENT_CHANCE = 0.15, 0.4
RECENT_MS = 2_000
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.3, 1.0
CONNECTIONS, SLOTS = 8, 1
"""Look-ups in a burst, and look-ups of one broker that may read the bucket at once."""


def one_lookup_at_once() -> AbstractContextManager[None]:
    """Makes the look-ups of a broker wait for each other, within the context."""
    return patched(reader, "LOOKUPS_MAX", lambda _: SLOTS)


class TimeLookup(NamedTuple):
    """One look-up and its reply. `log_start` is the true log start when the reply came."""

    tp: TopicPartition
    timestamp: int
    asked_ns: int
    answered_ns: int
    offset: int
    found_timestamp: int
    log_start: int


class TimeReader:
    """Looks up times until `working` is unset. `log_start` returns the true log start of a partition; `sole_epoch` its
    leader epoch while only one broker can reply for it, else -1."""

    def __init__(
        self,
        make_client: Callable[[str], KafkaClient],
        loop: SimLoop,
        partitions: Callable[[], list[TopicPartition]],
        log_start: Callable[[TopicPartition], int],
        sole_epoch: Callable[[TopicPartition], int],
    ) -> None:
        self.working = True
        self.lookups: list[TimeLookup] = []
        self._loop = loop
        self._partitions = partitions
        self._log_start = log_start
        self._sole_epoch = sole_epoch
        self._rng = random.Random(f"{loop.seed}/time-reader")
        self._clients = [make_client(f"c-time{number}") for number in range(CONNECTIONS)]

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(min(self._rng.expovariate(1 / PAUSE_SECONDS), PAUSE_SECONDS_MAX))
            partitions = self._partitions()
            if self.working and partitions:
                count = self._rng.choice((1, CONNECTIONS, CONNECTIONS))
                wanted = [(self._rng.choice(partitions), self._draw_timestamp()) for _ in range(count)]
                await asyncio.gather(*map(self._look_up, self._clients, wanted))
        for client in self._clients:
            await client.close()

    def _draw_timestamp(self) -> int:
        now_ms, chance = self._loop.now_ns // 1_000_000, self._rng.random()
        if chance < MAX_TIMESTAMP_CHANCE:
            return MAX_TIMESTAMP
        is_recent = chance < MAX_TIMESTAMP_CHANCE + RECENT_CHANCE
        return EPOCH_MS + self._rng.randint(max(0, now_ms - RECENT_MS) if is_recent else 0, now_ms)

    async def _look_up(self, client: KafkaClient, wanted: tuple[TopicPartition, int]) -> None:
        (tp, timestamp), asked_ns = wanted, self._loop.now_ns
        before = self._sole_epoch(tp)
        try:
            answer = (await list_offsets(client, {tp: timestamp}))[tp]
        except REQUEST_ERRORS:
            return
        if not isinstance(answer, Refused) and 0 <= before == self._sole_epoch(tp):
            reply = asked_ns, self._loop.now_ns, *answer, self._log_start(tp)
            self.lookups.append(TimeLookup(tp, timestamp, *reply))


def check_lookups(
    lookups: Sequence[TimeLookup],
    sends: Sequence[Send],
    may_be_gone: LossPredicate,
    cleaned: Mapping[TopicPartition, Collection[int]],
) -> Iterator[Finding]:
    """I33: no record that was committed before a look-up, and is late enough, is between the log start and the answer.

    An acknowledged record counts, unless it may be lost. `cleaned` has the offsets that the last reader of each
    compacted partition got, and that no clean has removed from any copy: other records of these may have been gone. The
    record of an answer is itself late enough.
    """
    known: dict[TopicPartition, list[Send]] = {}
    for send in sends:
        if send.acks == -1 and send.verdict is SendVerdict.OK and send.base_offset >= 0:
            known.setdefault(send.tp, []).append(send)
    for each in lookups:
        if each.offset >= 0 and each.found_timestamp < each.timestamp:
            yield Finding("I33", f"{each.tp}: the record of the answer is too early: {each}")
        for send in known.get(each.tp, ()):
            first = _first_alive(send, each.log_start, cleaned.get(each.tp))
            if first is None or send.done_ns >= each.asked_ns or not _is_passed_over(each, send, first):
                continue
            if not may_be_gone(each.tp, first, send.invoked_ns):
                yield Finding(
                    "I33", f"{each.tp}: the record at {first} of {_timestamp_of(send)} is late enough: {each}"
                )


def _first_alive(send: Send, log_start: int, kept: Collection[int] | None) -> int | None:
    """Returns the offset of the first record of a batch that a reader can get."""
    offsets = range(max(send.base_offset, log_start), send.base_offset + len(send.values))
    return next((offset for offset in offsets if kept is None or offset in kept), None)


def _is_passed_over(lookup: TimeLookup, send: Send, first: int) -> bool:
    """True if a record at `first` is a better answer."""
    is_above = lookup.offset < 0 or lookup.offset > first
    if lookup.timestamp == MAX_TIMESTAMP:
        timestamp = _timestamp_of(send)
        return timestamp > lookup.found_timestamp or (timestamp == lookup.found_timestamp and is_above)
    return is_above and _timestamp_of(send) >= lookup.timestamp


def _timestamp_of(send: Send) -> int:
    """Returns the timestamp of the records of a batch."""
    return EPOCH_MS + send.invoked_ns // 1_000_000
