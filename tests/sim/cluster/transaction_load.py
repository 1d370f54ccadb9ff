"""The transactional part of a run: producers, copiers and readers of committed records over topics of their own, and
what must hold of them at the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.sim.cluster import transaction_checker as checker
from tests.sim.cluster.committed_reader import CommittedPoll, CommittedReader, read_whole_log
from tests.sim.cluster.copiers import Copier, fetch_chain_offset
from tests.sim.cluster.key_checker import KeyedRequest, check_keys
from tests.sim.cluster.keyed_writers import KeyedWriter
from tests.sim.cluster.moves import OFFSETS
from tests.sim.cluster.observer import Finding
from tests.sim.cluster.options import SOURCE_TOPIC, TARGET_TOPIC
from tests.sim.cluster.rivals import RivalOffsets, make_rivals
from tests.sim.cluster.transaction_checker import Logs, ShownOffset, WholeLog
from tests.sim.cluster.transactional_client import SimTransaction, TransactionalSession, TransactionalWireClient
from tests.sim.cluster.transactional_producers import TransactionalProducer, count_outcomes
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tiered.replication.leader_replica import LeaderReplica

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
FIRST_VERSION_SHARE = 0.4
"""Share of the clients that know transaction version 1 at most."""
TIMEOUT_MS = 5_000
DECIDED_SECONDS = 40.0
"""Time until the last transaction is decided and its markers are written: its timeout, and a few retries."""
COPIED_SECONDS = 40.0
READ_SECONDS = 60.0
LOOK_SECONDS = 0.7


class TransactionLoad:
    """The transactional clients of a run, and their history."""

    def __init__(self, run: ClusterRun) -> None:
        self.transactions: list[SimTransaction] = []
        self.polls: list[CommittedPoll] = []
        self.shown: list[ShownOffset] = []
        self.producers: list[TransactionalProducer] = []
        self.copiers: list[Copier] = []
        self.readers: list[CommittedReader] = []
        self.keyed_requests: list[KeyedRequest] = []
        self.keyed_writers: list[KeyedWriter] = []
        self._run = run
        self._rng = random.Random(f"{run.options.seed}/transactional-clients")
        self._looks = False
        self.sources = [TopicPartition(SOURCE_TOPIC, number) for number in range(run.options.source_partitions)]
        self.targets = [TopicPartition(TARGET_TOPIC, number) for number in range(run.options.source_partitions)]
        self.rivals = RivalOffsets(run.loop, self.sources[0], lambda: run.sole_epoch(OFFSETS))

    @property
    def counts(self) -> dict[str, int]:
        """Counts of events."""
        own: Counter[str] = Counter()
        for each in self.producers:
            own.update({f"txn_{name}": count for name, count in each.counts.items()})
        own.update({"txn_shown": len(self.shown), "txn_polls": len(self.polls)})
        own["txn_aborted_ranges"] = sum(bool(each.aborted) for each in self.polls)
        for writer in self.keyed_writers:
            own.update({f"key_{name}": count for name, count in writer.counts.items()})
        own["key_replies"] = sum(len(each.replies) for each in self.keyed_requests)
        own["key_transactions"] = sum(each.is_transaction for each in self.keyed_requests)
        return dict(own) | count_outcomes(self.transactions) | self.rivals.counts

    def begin(self) -> None:
        """Starts all clients."""
        run, options = self._run, self._run.options
        if not options.transactional_producers:
            return
        for number in range(options.transactional_producers):
            self.producers.append(
                TransactionalProducer(self._session(f"p{number}"), run.loop, lambda: self.sources, options.send_rate)
            )
        if options.copies:
            for number, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
                session = self._session(f"k{number}")
                reader = CommittedReader(f"k{number}/reader", session._client, run.loop, self.polls, list)
                self.copiers.append(Copier(session, reader, run.loop, source, target))
        client = run.world.client("c-committed", TransactionalWireClient)
        self.readers.append(
            CommittedReader("committed", client, run.loop, self.polls, lambda: [*self.sources, *self.targets])
        )
        self.keyed_writers += [
            KeyedWriter(
                f"h{number}", run.world, SOURCE_TOPIC, options.source_partitions, options.send_rate, self.keyed_requests
            )
            for number in range(options.keyed_writers)
        ]
        run.clients += [*self.producers, *self.copiers, *self.readers, *self.keyed_writers]
        if self.copiers:
            run.clients.append(OffsetLooker(self))
        if options.rivals:
            sessions = [self._session(f"v{number}", self.rivals.transactions) for number in range(options.rivals)]
            run.clients += make_rivals(sessions, run.world.client("c-rivals"), run.loop, self.rivals)

    def _session(self, name: str, history: list[SimTransaction] | None = None) -> TransactionalSession:
        run, transactions = self._run, self.transactions if history is None else history
        return TransactionalSession(
            name, name, run.world.client(f"c-{name}", TransactionalWireClient), run.loop, TIMEOUT_MS,
            transactions, run.history.count_code, is_first=self._rng.random() < FIRST_VERSION_SHARE,
        )  # fmt: skip

    # -- the end ------------------------------------------------------------------------------------------------------

    @property
    def is_lossless(self) -> bool:
        """True if no committed record can be gone, in the topics of this load and in those of the coordinators."""
        model, judged = self._run.model, {SOURCE_TOPIC, TARGET_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC}
        lost = {model.image.topics_by_id[each.topic_id].name for each in model.image.losses}
        return not lost & judged and not model.unclean_election_times

    @property
    def can_all_be_cold(self) -> bool:
        """True if no transaction may stay open: its coordinator may have lost it, and its records then go nowhere."""
        return not self.producers or self.is_lossless

    async def settle(self) -> None:
        """I19: after the faults no transaction hangs, and the copiers reach the end."""
        run = self._run
        if not self.producers:
            return
        for each in self.producers:
            each.stays = True
        ending = (TransactionalProducer.__name__, KeyedWriter.__name__)
        tasks = [task for task in run._tasks if task.get_name() in ending]
        for each in self.producers:
            each.working = False
        for writer in self.keyed_writers:
            writer.working = False
        await run.wait_until(
            lambda: all(task.done() for task in tasks), COPIED_SECONDS, "every transactional producer comes to an end"
        )
        if not self.is_lossless:
            return
        ends = {tp: self._end_of(tp) for tp in self.sources}
        await run.wait_until(
            lambda: not any(self._find_undecided(self.sources)), DECIDED_SECONDS, "every transaction is decided"
        )
        for copier in self.copiers:
            # A copy may take more than a second (a slow network, cold sources), and many may be left.
            while (position := copier.position) < ends[copier.source]:
                await run.wait_until(
                    lambda copier=copier, position=position: copier.position > position,  # type: ignore[misc]
                    COPIED_SECONDS, "every copier reaches the end",
                )  # fmt: skip

    def _end_of(self, tp: TopicPartition) -> int:
        return max((each.log.end_offset for each in self._leaders(tp)), default=0)

    def _leaders(self, tp: TopicPartition) -> list[LeaderReplica]:
        return [each for _, node in self._run.world.nodes() for each in node.leader_replicas() if each.tp == tp]

    def _find_undecided(self, partitions: list[TopicPartition]) -> Iterator[str]:
        for tp in partitions:
            for replica in self._leaders(tp):
                if replica.last_stable_offset < replica.log.end_offset:
                    yield f"{tp} is stable to {replica.last_stable_offset} of {replica.log.end_offset}"

    async def check_all(self) -> None:
        """Checks the whole history, after all clients ended."""
        run = self._run
        if not self.producers:
            return
        for finding in checker.check_replies(self.polls):
            run.findings.report(*finding)
        if not self.is_lossless:
            return
        await run.wait_until(
            lambda: not any(self._find_undecided([*self.sources, *self.targets])), DECIDED_SECONDS,
            "every transaction is decided",
        )  # fmt: skip
        await run.wait_until(
            lambda: not any(self._find_pending()), DECIDED_SECONDS, "no offset of a transaction is pending"
        )
        task = asyncio.create_task(self._read_all(), name="whole logs")
        try:
            await run.wait_until(task.done, READ_SECONDS, "the transactional topics can be read")
            logs, offsets = task.result()
        finally:
            task.cancel()
        for finding in self._check_history(logs, offsets):
            run.findings.report(*finding)

    def _find_pending(self) -> Iterator[str]:
        for host, node in self._run.world.nodes():
            for shard in node.group_coordinators.host.shards():
                if shard.log_state.pending:
                    yield f"{host.name} has pending offsets"

    async def _read_all(self) -> tuple[Logs, dict[TopicPartition, int]]:
        client = self._run.world.client("c-whole", TransactionalWireClient)
        logs = {tp: WholeLog.of((await read_whole_log(client, tp))[0]) for tp in (*self.sources, *self.targets)}
        offsets = {}
        for copier in self.copiers:
            while copier.source not in offsets:
                try:
                    offsets[copier.source] = await fetch_chain_offset(client, copier.source, stable=True)
                except REQUEST_ERRORS:
                    await asyncio.sleep(0.5)
        if self._run.options.rivals:
            await self.rivals.fetch_last(client)
        await client.close()
        return logs, offsets

    def _check_history(self, logs: Logs, offsets: dict[TopicPartition, int]) -> Iterator[Finding]:
        yield from check_keys(self.keyed_requests, logs)
        yield from checker.check_all_or_none(self.transactions, logs)
        yield from checker.check_each_once(logs)
        yield from checker.check_committed_reads(self.polls, logs)
        yield from checker.check_nothing_early(self.transactions, self.polls)
        yield from checker.check_offsets_shown(self.transactions, self.shown)
        yield from self.rivals.check()
        for copier in self.copiers:
            yield from checker.check_copies(copier.source, copier.target, offsets[copier.source], logs)


class OffsetLooker:
    """Asks for the offsets of the chain again and again, stable ones or not, until `working` is unset."""

    def __init__(self, load: TransactionLoad) -> None:
        self.working = True
        self._load = load
        self._client = load._run.world.client("c-looks", TransactionalWireClient)
        self._rng = random.Random(f"{load._run.options.seed}/looks")

    async def work(self) -> None:
        while self.working:
            tp = self._rng.choice(self._load.sources)
            try:
                offset = await fetch_chain_offset(self._client, tp, stable=self._rng.random() < 0.5)
                self._load.shown.append(ShownOffset(tp, offset, self._load._run.loop.now_ns))
            except REQUEST_ERRORS:
                pass
            await asyncio.sleep(LOOK_SECONDS)
        await self._client.close()
