"""The compacted topic of a run: writers that write few keys again and again, readers that begin at the log start, an
operator that changes its policy, and what must hold at the end (I26)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.sim.cluster.committed_reader import fetch_answer
from tests.sim.cluster.deleting import RecordDeleter
from tests.sim.cluster.history import ClientHistory, Send, SendVerdict
from tests.sim.cluster.observer import Finding, patched
from tests.sim.cluster.options import COMPACTED_TOPIC
from tests.sim.cluster.senders import SimProducer
from tests.sim.cluster.settings_changes import Edit, SettingsChanges
from tests.sim.cluster.transactional_client import SimTransaction, TransactionalSession, TransactionalWireClient
from tests.sim.cluster.transactional_producers import TransactionalProducer
from tests.sim.cluster.world import ObservedClient
from tests.sim.harness.compaction_rules import StoredBatch, read_stored
from tests.sim.harness.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.hot.log_cleaning import CleanerResources
from tiered.ids import TopicPartition
from tiered.records.pure_compact import SLOT_BYTES
from tiered.upkeep.log_cleaner import LogCleaner
from tiered_api.kafka.client.leader_routing import EARLIEST, list_offsets_at

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
KEYS = 7
TOMBSTONE_SHARE = 0.2
TXN_TIMEOUT_MS = 5_000
FIRST_VERSION_SHARE = 0.4
PASS_PAUSE_SECONDS = 4.0
CHANGE_SECONDS = 4.0
PAUSE_SECONDS_MAX = 10.0
RETRY_SECONDS = 0.3
CLEAN_SECONDS, SETTLED_SECONDS = 30.0, 40.0
READ_SECONDS = 60.0
Pair = tuple[bytes, bytes | None]
Row = tuple[int, bytes, bytes | None]

POLICY_EDITS: tuple[Edit, ...] = (
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "delete"},
    {"cleanup.policy": "compact,delete"},
    {"min.cleanable.dirty.ratio": "0.01"},
    {"min.cleanable.dirty.ratio": "0.5"},
    {"delete.retention.ms": "0"},
    {"delete.retention.ms": "4000"},
    {"max.compaction.lag.ms": "3000"},
    {"internal.segment.bytes": "4096"},
)
"""Changes of the topic while it is in use."""


def pair_of(label: bytes) -> Pair:
    """Returns key and value of a record that is named `KEY/NAME:`: a tombstone, if the name says so."""
    key, _, rest = label.partition(b"/")
    return key, None if rest.startswith(b"-") else label


def draw_label(rng: random.Random, name: str, number: int) -> bytes:
    """Returns the name of a new record."""
    sign = "-" if rng.random() < TOMBSTONE_SHARE else ""
    return b"k%d/%s%s.%d:" % (rng.randrange(KEYS), sign.encode(), name.encode(), number) + b"x" * rng.choice((0, 60))


class KeyedProducer(SimProducer):
    """A producer that writes few keys. `written` has each batch with its CRC."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.written: list[tuple[Send, int]] = []

    def _draw_pairs(self) -> list[tuple[bytes | None, bytes | None]]:
        pairs = list[tuple[bytes | None, bytes | None]]()
        for _ in range(self._rng.randint(1, self._batch_records)):
            self._count += 1
            pairs.append(pair_of(draw_label(self._rng, self.name, self._count)))
        return pairs

    def _make_batch(self, tp: TopicPartition, sequence: int) -> tuple[Send, bytes]:
        send, data = super()._make_batch(tp, sequence)
        self.written.append((send, int.from_bytes(data[17:21], "big")))
        return send, data


class KeyedTransactions(TransactionalProducer):
    """A transactional producer that writes few keys."""

    def _make_values(self) -> list[bytes]:
        labels = []
        for _ in range(self._rng.randint(1, 2)):
            self._count += 1
            labels.append(draw_label(self._rng, self.name, self._count))
        return labels


class StateReader:
    """Reads each partition from the log start to its stable end, again and again, until `working` is unset."""

    def __init__(self, client: ObservedClient, loop: SimLoop, load: CompactionLoad) -> None:
        self.working = True
        self.passes = 0
        self._client = client
        self._loop = loop
        self._load = load
        self._rng = random.Random(f"{loop.seed}/state-reader")

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(min(self._rng.expovariate(1 / PASS_PAUSE_SECONDS), PAUSE_SECONDS_MAX))
            tp = self._rng.choice(self._load.partitions)
            if self.working:
                await self.read_state(tp, self._loop.now_ns + round(READ_SECONDS * 1e9 / 4))
        await self._client.close()

    async def read_whole_state(self, tp: TopicPartition, until_ns: int) -> bool:
        """Begins anew if the log start moves meanwhile. False if all of it took too long."""
        while self._loop.now_ns < until_ns:
            if await self.read_state(tp, until_ns):
                return True
            await asyncio.sleep(RETRY_SECONDS)
        return False

    async def read_state(self, tp: TopicPartition, until_ns: int) -> bool:
        """Reads one partition and judges what came. False if that took too long, or the log start moved meanwhile."""
        end, offset, rows = -1, -1, list[Row]()
        judge = self._load.begin_pass(tp)
        while self._loop.now_ns < until_ns:
            try:
                if offset < 0:
                    offset = (await list_offsets_at(self._client, [tp], EARLIEST))[tp]
                answer = await fetch_answer(self._client, tp, offset, committed=True)
            except REQUEST_ERRORS as error:
                if isinstance(error, Refused) and error.code is Code.OFFSET_OUT_OF_RANGE:
                    return False
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if end < 0:
                end = answer.last_stable_offset
            batches = [each for each in read_stored(bytes(answer.records or b"")) if each.last >= offset]
            aborted = {(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()}
            rows += keep_committed_rows(batches, aborted, offset)
            offset = batches[-1].last + 1 if batches else offset
            if offset >= end:
                self.passes += 1
                judge(end, rows)
                self._load.last_offsets[tp] = {offset for offset, _, _ in rows}
                return True
            if not batches:
                await asyncio.sleep(RETRY_SECONDS)
        return False


def keep_committed_rows(batches: list[StoredBatch], aborted: set[tuple[int, int]], position: int) -> list[Row]:
    """Returns the records that a consumer of committed records shows."""
    rows = list[Row]()
    ended: dict[int, list[int]] = {}
    for batch in batches:
        if batch.is_control and batch.commit is False:
            ended.setdefault(batch.producer_id, []).append(batch.base)
    for batch in batches:
        if batch.is_control:
            continue
        if batch.is_transactional:
            starts = [first for producer, first in aborted if producer == batch.producer_id and first <= batch.base]
            ends = [end for end in ended.get(batch.producer_id, ()) if end < batch.base]
            if starts and max(starts) > max(ends, default=-1):
                continue
        rows += [(each.offset, each.key or b"", each.value) for each in batch.records if each.offset >= position]
    return rows


class PolicyChanges(SettingsChanges):
    """Changes the policy of the compacted topic until `working` is unset."""

    async def work(self) -> None:
        rng = random.Random(f"{self._options.seed}/policy-changes")
        while self.working:
            await asyncio.sleep(min(rng.expovariate(1 / CHANGE_SECONDS), PAUSE_SECONDS_MAX))
            if self.working:
                await self._change(COMPACTED_TOPIC, "policy", rng.choice(POLICY_EDITS))
        await self._client.close()


class CompactionLoad:
    """The clients of the compacted topic, and their history."""

    def __init__(self, run: ClusterRun) -> None:
        self._run = run
        self.history = ClientHistory()
        self.transactions: list[SimTransaction] = []
        self.producers: list[KeyedProducer] = []
        self.judged = 0
        """Passes of readers that could be judged."""
        self.last_offsets: dict[TopicPartition, set[int]] = {}
        """Offsets of the records that the last pass of a reader got, for each partition."""
        self.transactional: list[KeyedTransactions] = []
        self.reader: StateReader | None = None
        self.changes: PolicyChanges | None = None
        self.deleter: RecordDeleter | None = None
        shape = run.options.compacted
        self.partitions = [TopicPartition(COMPACTED_TOPIC, each) for each in range(shape.partitions if shape else 0)]

    @property
    def counts(self) -> dict[str, int]:
        """Counts of events."""
        logs = self._run.model.compacted_logs.values()
        own: Counter[str] = Counter(
            compacted_cold_cleans=self._run.model.cold_cleans.cleans,
            compacted_cleans=sum(each.cleans for each in logs),
            compacted_records_removed=sum(each.records_removed for each in logs),
            compacted_passes=self.reader.passes if self.reader is not None else 0,
            compacted_acked=sum(each.verdict is SendVerdict.OK for each in self.history.sends),
            compacted_judged=self.judged,
            compacted_late=sum(each.is_late for each in logs),
            compacted_transactions=len(self.transactions),
        )
        if self.deleter is not None:
            own.update({f"compacted_deletes_{name}": count for name, count in self.deleter.counts.items()})
        if self.changes is not None:
            own.update({f"compacted_{name}": count for name, count in self.changes.counts.items()})
        return dict(own)

    def watch(self) -> AbstractContextManager[None]:
        """Gives each clean so little memory for keys that it takes several cleans, if the options say so."""
        slots = self._run.options.key_map_slots

        def make(original: Callable[[LogCleaner], CleanerResources]) -> Callable[[LogCleaner], CleanerResources]:
            def resources(cleaner: LogCleaner) -> CleanerResources:
                found = original(cleaner)
                return replace(found, map_bytes=slots * SLOT_BYTES, load_factor=0.9) if slots else found

            return resources

        return patched(LogCleaner, "_resources", make)

    def begin(self) -> None:
        """Starts all clients."""
        run, options = self._run, self._run.options
        if options.compacted is None:
            return
        rng = random.Random(f"{options.seed}/compaction-clients")
        for number, acks in enumerate((-1, -1 if rng.random() < 0.5 else 1)):
            self.producers.append(self._make_producer(f"cs{number}", acks, acks == -1 and rng.random() < 0.7))
        for number in range(options.compaction_transactions):
            client = run.world.client(f"c-cp{number}", TransactionalWireClient)
            session = TransactionalSession(
                f"cp{number}", f"cp{number}", client, run.loop, TXN_TIMEOUT_MS, self.transactions,
                self.history.count_code, is_first=rng.random() < FIRST_VERSION_SHARE,
            )  # fmt: skip
            session.pair_of = pair_of
            self.transactional.append(
                KeyedTransactions(session, run.loop, lambda: self.partitions, options.send_rate / 2)
            )
        self.reader = StateReader(run.world.client("c-state"), run.loop, self)
        run.clients += [*self.producers, *self.transactional, self.reader]
        if options.compaction_deletes:
            self.deleter = run.reply_observer.make_deleter("compaction-deleter", lambda: self.partitions)
            run.clients.append(self.deleter)
        if options.policy_changes:
            self.changes = PolicyChanges(
                run.world.client("c-policy"), run.loop, options, run.world.events.add, run.expected, run.findings,
                lambda: False,
            )  # fmt: skip
            run.clients.append(self.changes)

    def _make_producer(self, name: str, acks: int, idempotent: bool) -> KeyedProducer:
        run = self._run
        return KeyedProducer(
            name, run.world.client(f"c-{name}"), run.loop, self.history, lambda: self.partitions,
            rate=run.options.send_rate, acks=acks, idempotent=idempotent, in_flight=run.options.in_flight,
            on_resend=run.reply_observer.on_resend if idempotent else None,
        )  # fmt: skip

    def begin_pass(self, tp: TopicPartition) -> Callable[[int, list[Row]], None]:
        """Returns what judges a pass of a reader that begins now. After a loss nothing can be said about it."""
        run = self._run
        partition_id = run.partition_id(tp)
        log = run.model.compacted_log(partition_id) if partition_id is not None else None
        if partition_id is None or log is None:
            return lambda end, rows: None
        copies = run.model.copies_of(partition_id)

        def judge(end: int, rows: list[Row]) -> None:
            if log.is_late or copies.losses or run.model.unclean_election_times:
                return
            self.judged += 1
            batches = [each for _, each in sorted(copies.committed.items()) if each.last >= copies.log_start]
            log.check_read(batches, copies.log_start, end, rows, "a reader from the start")
            known = {(offset, key): value for offset, key, value in log.committed_records(batches)}
            for offset, key, value in rows:
                if offset >= copies.log_start and known.get((offset, key), b"?") != value:
                    run.findings.report("I26", f"{tp}: a reader gets {key!r} at {offset}, which was not committed")
                    return

        return judge

    async def settle(self) -> None:
        """Ends the transactional producers, which may wait for several coordinators one after the other."""
        for each in self.transactional:
            each.stays, each.working = True, False
        tasks = [task for task in self._run._tasks if task.get_name() == KeyedTransactions.__name__]
        await self._run.wait_until(
            lambda: all(task.done() for task in tasks), SETTLED_SECONDS, "every transactional producer comes to an end"
        )

    # -- the end ------------------------------------------------------------------------------------------------------

    async def check_all(self) -> None:
        """Waits until everything is clean, and checks the state that a reader gets, and all acknowledged batches."""
        run = self._run
        if run.options.compacted is None:
            return
        await run.wait_until(lambda: not any(self._find_due()), CLEAN_SECONDS, "every compacted log is clean")
        for host, node in run.world.nodes():
            bugs = [tp for tp, why in node.log_cleaner.uncleanable.items() if "internal error" in why]
            assert not bugs, f"{host.name}: a bug ended the clean of {bugs}"
        await self.check_state()
        for finding in self._check_acked():
            run.findings.report(*finding)

    async def check_state(self) -> None:
        """Checks the state that a reader gets that begins at the log start."""
        run = self._run
        reader = StateReader(run.world.client("c-last-state"), run.loop, self)
        for tp in self.partitions:
            until_ns = run.loop.now_ns + round(READ_SECONDS * 1e9)
            task = run.loop.create_task(reader.read_whole_state(tp, until_ns), name="state")
            await run.wait_until(task.done, READ_SECONDS + 1, "the compacted topic can be read")
            assert task.result(), f"liveness: {tp} is not read to its end"
        await reader._client.close()

    def _find_due(self) -> Iterator[str]:
        for host, node in self._run.world.nodes():
            for replica in node.hosted_replicas.list_replicas():
                found = node.log_cleaner.find_cleanable(replica)
                if found is not None and found.is_due(replica.config):
                    yield f"{host.name} has to clean {replica.tp}: {found}"

    def _check_acked(self) -> Iterator[Finding]:
        """I1: each acknowledged batch is in the history at its offset, cleaned or not."""
        model = self._run.model
        for producer in self.producers:
            for send, crc in producer.written:
                if send.verdict is not SendVerdict.OK or send.base_offset < 0 or send.acks != -1:
                    continue
                partition_id = self._run.partition_id(send.tp)
                assert partition_id is not None
                copies = model.copies_of(partition_id)
                found, last = copies.committed.get(send.base_offset), send.base_offset + len(send.values) - 1
                # Its beginning may be deleted before the rest is lost: a loss begins at the log start then.
                if (found is None or found.crc != crc) and not copies.may_be_gone(last, send.invoked_ns):
                    yield Finding("I1", f"{send.tp}: the batch at {send.base_offset} was acknowledged, is {found}")
