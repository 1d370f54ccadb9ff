"""Scenarios of cleans in the bucket that wait until they are worth their requests: each comes in time (I32), and keeps
the last record of each key (I26)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.sim.cluster.observer import Finding
from tests.sim.harness.loop import process_context
from tests.sim.scenarios.judged import AT, Judged, run_judged
from tests.sim.scenarios.test_compacted_logs import last_of_each, read
from tests.sim.scenarios.three import SimBroker
from tiered.cold.manifest import Manifest
from tiered.compaction.cleanable_range import CleanableRange
from tiered.records.batch import encode_batch
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica

DAY_MS = 86_400_000
KEYS = 2
LATE_SECONDS = 5.0
"""A clean that is due comes within this time, if it need not wait."""
SMALL_BUFFER = 32 << 10
"""A clean that reads or writes more than 64 KiB at once uses a thread, and a simulation has none."""
CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1024",
    "min.cleanable.dirty.ratio": "0.1",
}


class Waiting:
    """A compacted topic in the bucket on three brokers. `longest_ms` is how long a clean may wait, and garbage stay."""

    def __init__(self, judged: Judged, longest_ms: int) -> None:
        self.judged = judged
        self.written: list[tuple[int, bytes, bytes]] = []
        self._longest_ms = longest_ms
        self._late_since = -1.0
        judged.model.compacted_topics = frozenset((AT.topic,))

    @property
    def leader(self) -> SimBroker:
        return self.judged.three.brokers[self.judged.now.leader]

    @property
    def replica(self) -> LeaderReplica:
        return self.judged.leader(self.leader)

    @property
    def manifest(self) -> Manifest:
        found = self.replica.manifest
        assert found is not None
        return found

    @property
    def age_ms(self) -> int:
        """Returns the time since the last clean."""
        return self.leader.machine.clock.wall_ms() - self.manifest.cleaned_ms

    async def begin(self, value_bytes: int, count: int, **configs: str) -> None:
        """Creates the topic, and waits for the first clean, which never waits."""
        await self.judged.create(self.judged.a, self.judged.b, self.judged.c, **CONFIGS | configs)
        await self.judged.wait(lambda: self.judged.leads(self.judged.a))
        await self.write(count, value_bytes)
        await self.wait(lambda: self.replica.manifest is not None and self.manifest.clean_to > 0)

    async def write(self, count: int, value_bytes: int) -> None:
        for _ in range(count):
            number = len(self.written)
            key, value = b"k%d" % (number % KEYS), (b"%06d" % number).ljust(value_bytes, b".")
            appending = self.replica.append(bytearray(encode_batch([(1_000, key, value, ())])), acks=ACKS_ALL)
            task = self.judged.three.loop.create_task(appending, context=process_context(self.leader.process))
            self.written.append(((await task).base_offset, key, value))
            self.judge()

    async def upload_all(self) -> None:
        """Waits until every closed segment is in the bucket."""
        end = self.replica.log.active_view.base_offset
        await self.wait(lambda: self.replica.cold_end_offset >= end)

    async def wait(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        await self.judged.wait(lambda: self.judge() or condition(), seconds)

    async def pass_time(self, days: float = 0.0, *, seconds: float = 8.0) -> None:
        """Sets all clocks forward, then lets brokers look some times."""
        for each in self.judged.three.brokers.values():
            each.machine.clock.jump(round(days * DAY_MS))
        end = self.judged.three.now + seconds
        await self.wait(lambda: self.judged.three.now >= end)

    def judge(self) -> bool:
        """Reports a clean that is later than it may be (I32)."""
        leader = self.judged.now.leader
        found = self._cleanable() if leader >= 0 and self.judged.leads(self.leader) else None
        late = found is not None and found.dirty_bytes > 0 and self.age_ms > self._longest_ms
        if not late:
            self._late_since = -1.0
        elif self._late_since < 0:
            self._late_since = self.judged.three.now
        elif self.judged.three.now - self._late_since > LATE_SECONDS:
            what = f"{found} waits {self.age_ms / DAY_MS:.1f} days after the last clean"
            self.judged.found.append(Finding("I32", what))
        return False

    def _cleanable(self) -> CleanableRange | None:
        return self.leader.node.log_cleaner.find_cleanable(self.replica)

    async def check_state(self) -> None:
        """Checks the state that a reader gets who begins at the log start (I26)."""
        seen = await read(self.replica)
        assert last_of_each(self.written) <= set(seen) <= set(self.written) and seen == sorted(seen)


def run_waiting(scenario: Callable[[Waiting], Awaitable[None]], longest_days: float) -> None:
    async def judged_scenario(judged: Judged) -> None:
        await scenario(Waiting(judged, round(longest_days * DAY_MS)))

    settings = {"log_cleaner_backoff_ms": 200, "remote_log_manager_task_interval_ms": 500}
    run_judged(judged_scenario, **settings, log_cleaner_io_buffer_size=SMALL_BUFFER)


def test_clean_waits_a_week_at_most_also_under_a_new_leader() -> None:
    async def scenario(waiting: Waiting) -> None:
        await waiting.begin(60, 40, **{"local.retention.bytes": "1"})
        await waiting.write(40, 60)
        await waiting.upload_all()
        before = waiting.manifest
        for days in (0, 3):
            await waiting.pass_time(days)
            assert waiting.manifest.cleaned_ms == before.cleaned_ms, "it waits"
        await waiting.leader.node.hand_over()
        await waiting.judged.wait(lambda: waiting.judged.now.leader == waiting.judged.b.node_id)
        await waiting.judged.wait(lambda: waiting.judged.leads(waiting.judged.b))
        await waiting.check_state()
        await waiting.pass_time(3)
        assert waiting.manifest.cleaned_ms == before.cleaned_ms, "the new leader waits for the rest of the week"
        await waiting.pass_time(1, seconds=0)
        await waiting.wait(lambda: waiting.manifest.cleaned_ms > before.cleaned_ms)
        assert waiting.manifest.clean_to >= before.cold_end_offset
        await waiting.check_state()

    run_waiting(scenario, 7)


def test_clean_waits_no_longer_once_storage_costs_more_than_its_requests() -> None:
    """Its five requests cost as much as 40 MiB for a day. It frees 8 MiB."""

    async def scenario(waiting: Waiting) -> None:
        await waiting.begin(30_000, 40, **{"internal.segment.bytes": str(1 << 20)})
        await waiting.write(280, 30_000)
        await waiting.upload_all()
        before = waiting.manifest
        for _ in range(2):
            await waiting.pass_time(2.2)
            assert waiting.manifest.cleaned_ms == before.cleaned_ms and before.cold_bytes > 8_000_000, "it waits"
        await waiting.pass_time(1, seconds=0)
        await waiting.wait(lambda: waiting.manifest.cleaned_ms > before.cleaned_ms)
        assert waiting.manifest.cold_bytes < 2 << 20
        await waiting.check_state()

    run_waiting(scenario, 5.3)


def test_clean_waits_no_longer_once_it_is_few_requests() -> None:
    async def scenario(waiting: Waiting) -> None:
        await waiting.begin(60, 40)
        before, waits = waiting.manifest, 0
        while waiting.manifest.cleaned_ms == before.cleaned_ms:
            await waiting.write(20, 60)
            await waiting.upload_all()
            await waiting.pass_time(seconds=1)
            waits += waiting.manifest.cleaned_ms == before.cleaned_ms
            assert waits < 30, "it is never worth its requests"
        assert waits > 1
        await waiting.check_state()

    run_waiting(scenario, 1)
