"""One seed of a cluster run: everything starts, clients work, and faults overlap. Then all faults end, everything must
be live again within its deadlines, and the audit checks every log, every acknowledged record, and in some runs a
rebuild from the bucket."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, nullcontext

from tests.sim.cluster import audit, failover_checker, read_progress, rebuilding, resources
from tests.sim.cluster.administration import Administration
from tests.sim.cluster.bucket_encryption import BucketEncryption
from tests.sim.cluster.chain_intervals import short_chain_intervals
from tests.sim.cluster.committed_reader import CommittedReader
from tests.sim.cluster.committers import Committer, CommitterLoad
from tests.sim.cluster.compaction_load import CompactionLoad, PolicyChanges, StateReader
from tests.sim.cluster.consumers import Consumer
from tests.sim.cluster.copiers import Copier
from tests.sim.cluster.deleting import RecordDeleter
from tests.sim.cluster.expected import ExpectedTopics
from tests.sim.cluster.failover_checker import FailoverChecker
from tests.sim.cluster.history import ClientHistory, PollResult, SendVerdict
from tests.sim.cluster.keyed_writers import KeyedWriter
from tests.sim.cluster.machines_checker import MachinesChecker
from tests.sim.cluster.members import GROUP, GroupMember, InstanceClient, short_sessions
from tests.sim.cluster.model import ClusterModel
from tests.sim.cluster.moves import OFFSETS
from tests.sim.cluster.nemesis import Nemesis
from tests.sim.cluster.observer import (
    BrokenRules,
    Findings,
    Observer,
    has_boot_mark,
    has_torn_metadata,
    may_be_marked_clean,
)
from tests.sim.cluster.offsets_checker import OffsetsChecker
from tests.sim.cluster.offsets_reader import GroupOffsetsReader
from tests.sim.cluster.operators import Operator, Operators, waits_for_lost
from tests.sim.cluster.options import COMMON_SETTINGS, DELAY_SECONDS, ClusterOptions
from tests.sim.cluster.process_changes import ProcessChanges, node_of
from tests.sim.cluster.readers import StandaloneReader
from tests.sim.cluster.repeated_reports import RepeatedReports
from tests.sim.cluster.reply_observer import ReplyObserver
from tests.sim.cluster.rest_consumers import RestConsumer, RestLoad
from tests.sim.cluster.rivals import Rival, RivalReader
from tests.sim.cluster.senders import SimProducer
from tests.sim.cluster.shapes import command_of, draw_options
from tests.sim.cluster.swap_crashes import SwapCrashes
from tests.sim.cluster.time_readers import TimeReader, one_lookup_at_once
from tests.sim.cluster.topic_id_checker import TopicIdChecker
from tests.sim.cluster.transaction_load import OffsetLooker, TransactionLoad
from tests.sim.cluster.transactional_producers import TransactionalProducer
from tests.sim.cluster.transition_rules import TransitionRules
from tests.sim.cluster.world import SimHost, SimWorld
from tests.sim.harness.durable_logs import DurableLogs
from tests.sim.harness.loop import SimLoop
from tiered.durability.move_plan import Move
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.changes import ALL_BROKERS
from tiered.metadata.image import Image
from tiered.replication.follower_replica import FollowerReplica

TICK_SECONDS = 0.2
SYNC_NOTE_NS = 2_000_000_000
SAMPLE_NS = 1_000_000_000
"""Interval at which resources of brokers are sampled; everything else is checked at each look."""
START_SECONDS = 30.0
LIVE_SECONDS = 30.0
COLD_SECONDS = 120.0
RESEND_SHARE = 0.6
"""Share of the idempotent senders that repeat acknowledged batches."""
REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
Clients = list[
    SimProducer
    | StandaloneReader
    | GroupMember
    | Consumer
    | GroupOffsetsReader
    | RecordDeleter
    | Administration
    | Operator
    | TransactionalProducer
    | Copier
    | CommittedReader
    | OffsetLooker
    | Rival
    | RivalReader
    | KeyedWriter
    | StateReader
    | PolicyChanges
    | BucketEncryption
    | TimeReader
    | RestConsumer
    | Committer
]


class ClusterRun:
    """One seed. `main` raises if a rule is broken."""

    def __init__(self, options: ClusterOptions, loop: SimLoop) -> None:
        self.options = options
        self.loop = loop
        self.world = SimWorld(loop, options.settings(), fan=options.manifest_fan, slots=options.snapshot_slots)
        self.history = ClientHistory()
        self.findings = Findings(self.world.events.add)
        self.model = ClusterModel(self.world.bucket, COMMON_SETTINGS, self.findings.report, lambda: loop.now_ns)
        if options.compacted is not None:
            self.model.compacted_topics = frozenset((options.compacted.name,))
        self.observer = Observer(self.model)
        machines = {host.node_id: host.machine_id for host in self.world.hosts.values()}
        self.machines_checker = MachinesChecker(machines, self.findings.report)
        self.model.on_image = self.machines_checker.on_image
        self.lost_for_good: set[int] = set()
        """Brokers of a machine that is lost for good."""
        self.topic_id_checker = TopicIdChecker(self._image_of, self.findings.report)
        self.offsets_checker = OffsetsChecker(self.findings.report)
        self.nemesis = Nemesis(options, self.world, self.model)
        self.swap_crashes = SwapCrashes(options.seed, self.world, is_enabled=options.swap_crashes)
        self.process_changes = ProcessChanges(
            options.seed,
            self.world,
            lambda: self.model.image,
            self._on_process_moves,
            is_enabled=options.changes_processes,
            loses_disks="disk_lost" in options.troubles,
        )
        self.expected = ExpectedTopics(
            lambda name: self.model.image.topics.get(name),
            self.manifest_start,
            lambda: self.model.image.broker_configs.get(ALL_BROKERS, {}),
            {} if options.min_isr == 1 else {"min.insync.replicas": str(options.min_isr)},
        )
        self.model.max_clock_skew_ms = self.nemesis.max_clock_skew_ms
        self.model.requested_start = self.expected.requested_start
        self.model.applied_slot = self._applied_slot
        self.model.is_controller = self._is_controller
        self.admin = Administration(
            self.world.client("c-admin"), loop, options, self.world.events.add, self.expected, self.findings,
            self._leader_of,
        )  # fmt: skip
        self.operators = Operators(options, self.world, self.model, self.expected, self.findings)
        self.reply_observer = ReplyObserver(self)
        self.deleter = self._make_deleter()
        self.repeated_reports = RepeatedReports()
        self.failover_checker = FailoverChecker(self)
        self.transactions = TransactionLoad(self)
        self.compaction = CompactionLoad(self)
        self.encryption = BucketEncryption(self) if options.is_encrypted else None
        self.time_reader = self._make_time_reader() if options.has_time_reader else None
        self.rest = RestLoad(self) if options.rest_consumers else None
        self.committers = CommitterLoad(self) if options.committers else None
        self._sampled_ns = 0
        self._trusted_since: dict[str, int] = {}
        """Processes that trust their directory, and since when."""
        """The processes that were seen to believe their directory."""
        self.high_load: dict[str, int] = {}
        self.collected_ns = 0
        """Time of the last garbage collection."""
        self.disk_loss_times: list[int] = []
        """Times when a machine lost more than a process."""
        self.ends: Counter[str] = Counter()
        """Number of ends of processes, by how they ended."""
        self.cold_reads = 0
        """Number of records that a reader got and that its leader had in the bucket alone."""
        network = self.world.network
        network.latency_seconds = (options.latency_seconds / 10, options.latency_seconds)
        network.is_asymmetric = options.skewed
        network.small_chunk_share = options.small_chunk_share
        self.clients: Clients = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def live_seconds(self) -> float:
        """Returns the time within which everything must be live again. Calls that the bucket delays are part of it."""
        return LIVE_SECONDS + 2 * (self.options.delay_seconds - DELAY_SECONDS)

    @property
    def trace(self) -> tuple[int, int]:
        """Steps taken and a digest of them: equal for equal runs."""
        return self.loop.steps, self.loop.digest

    @property
    def counts(self) -> dict[str, int]:
        """Counts of events of the run, so that a test can tell if the run proves anything."""
        sends = self.history.sends
        own = {
            "acked": sum(send.verdict is SendVerdict.OK for send in sends),
            "failed": sum(send.verdict is SendVerdict.FAILED for send in sends),
            "unknown": sum(send.verdict is SendVerdict.UNKNOWN for send in sends),
            "read": sum(len(poll.rows) for poll in self.history.polls),
            "read_cold": self.cold_reads,
            "lives": sum(host.lives for host in self.world.hosts.values()),
            "slots": self.model.image.slot + 1,
            "controllers": self.model.image.controller_epoch,
            "leader_epochs": sum(
                each.leader_epoch for topic in self.model.image.topics.values() for each in topic.partitions
            ),
            "unclean_elections": len(self.model.unclean_election_times),
            "losses": sum(len(each.losses) for each in self.model.copies.values()),
            "commits": len(self.history.commits),
            "retries": self.reply_observer.retries,
            "shown": self.offsets_checker.replies_checked,
            "faults_lasted": self.failover_checker.faults_outlasted,
            "machines_lasted": self.failover_checker.machines_outlasted,
            "machines_lost": len(self.lost_for_good) // self.options.processes,
            "spares": sum(each.has_spare for each in self.model.copies.values()),
            "machine_images": self.machines_checker.images if self.options.processes > 1 else 0,
            "producers_judged": self.observer.known_producers.judged,
            "reports_repeated": self.repeated_reports.count,
            "starts_judged": self.reply_observer.reply_checker.checked,
            "returned_members": sum(each.returns for each in self.clients if isinstance(each, GroupMember)),
            "consumer_steps": sum(each.steps for each in self.clients if isinstance(each, Consumer)),
            "consumer_spans": len(self.history.consumer_ownerships),
            "consumer_late_commits": len(self.history.late_commits),
            "bucket_refused": self.nemesis.throttle.refused_count if self.nemesis.throttle else 0,
        }
        return (
            own
            | {f"end_{how.replace(' ', '_')}": count for how, count in self.ends.items()}
            | {
                f"committer_{name}": count
                for name, count in (self.committers.counts if self.committers else {}).items()
            }
            | {f"code_{name}": count for name, count in self.history.codes.items()}
            | {f"trouble_{name}": count for name, count in self.nemesis.counts.items()}
            | ({"trouble_swap": self.swap_crashes.count} if self.options.swap_crashes else {})
            | {f"processes_{name}": count for name, count in self.process_changes.counts.items()}
            | {f"admin_{name}": count for name, count in self.admin.counts.items()}
            | self.operators.counts
            | self.transactions.counts
            | self.compaction.counts
            | ({"time_lookups": len(self.time_reader.lookups)} if self.time_reader is not None else {})
            | {f"rest_{name}": count for name, count in (self.rest.all_counts if self.rest else {}).items()}
            | {f"bucket_{name}": count for name, count in (self.encryption.counts if self.encryption else {}).items()}
            | {f"deletes_{name}": count for name, count in (self.deleter.counts if self.deleter else {}).items()}
            | {f"bucket_{name}": count for name, count in self.model.counts.items()}
        )

    # -- the run ------------------------------------------------------------------------------------------------------

    async def main(self) -> None:
        groups = self.offsets_checker.watch() if self.options.members else nullcontext()
        is_brief = self.options.rebuild or self.committers is not None
        snapshots = rebuilding.short_snapshot_intervals() if is_brief else nullcontext()
        lookups = one_lookup_at_once() if self.time_reader is not None else nullcontext()
        deletions = short_chain_intervals() if self.options.has_chains else nullcontext()
        with ExitStack() as hooks:
            disks = DurableLogs(self.findings.report).watch()
            for each in (
                disks,
                self.observer.watch(),
                self.topic_id_checker.watch(),
                groups,
                short_sessions(),
                snapshots,
                lookups,
                deletions,
                TransitionRules(self.findings.report).watch(),
                self.machines_checker.watch(),
            ):
                hooks.enter_context(each)
            if self.encryption is not None:
                hooks.enter_context(self.encryption.watch())
            if self.deleter is not None:
                hooks.enter_context(self.deleter.watch())
            if self.options.repeats_reports:
                hooks.enter_context(self.repeated_reports.watch())
            if self.rest is not None:
                hooks.enter_context(self.rest.watch())
            if self.committers is not None:
                hooks.enter_context(self.committers.snapshots.watch())
            if self.options.compacted is not None:
                hooks.enter_context(self.compaction.watch())
                hooks.enter_context(self.swap_crashes.watch())
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._shut_down)
                await self._run_phases()

    async def _run_phases(self) -> None:
        for host in self.world.hosts.values():
            host.on_end, host.on_start = self._on_end, self._on_start
        for host in self.operators.present_hosts():
            host.power_on()
        await self.wait_until(
            lambda: all(host.up for host in self.operators.present_hosts()), START_SECONDS, "all brokers serve"
        )
        for shape in self.options.all_topics:
            await self._create_topic(shape.name)
        if self.committers is not None:
            await self.committers.prepare()
        self._begin_clients()
        self.nemesis.begin()
        self.process_changes.begin()
        await self.wait(self.options.chaos_seconds)
        await self.swap_crashes.end()
        await self.process_changes.end()
        await self.nemesis.end(self.process_changes.held)
        operator = self.loop.create_task(self.nemesis.act_as_operator(), name="operator")
        await self.wait_until(self.process_changes.is_done, self.live_seconds, "who took logs serves")
        self.process_changes.begin_return()
        await self.wait_until(self.process_changes.is_done, self.live_seconds, "no process with replicas is left out")
        await self.wait_until(
            self.is_live, self.live_seconds, "every broker serves, every partition is led and in sync"
        )
        await failover_checker.run_trial(self)
        await self.wait_until(self.is_live, self.live_seconds, "who was missing is back")
        if self.options.machine_is_lost:
            await failover_checker.lose_machine(self)
            await self.wait_until(self.is_live, self.live_seconds, "all works without the lost machine")
        operator.cancel()
        await read_progress.wait_until_read(self)
        await self.transactions.settle()
        await self.compaction.settle()
        await self._end_clients()
        if self.committers is not None:
            await self.committers.settle()
        self.world.network.small_chunk_share = (
            0.0  # all is read now: small pieces take many steps, and show nothing new
        )
        await self.wait_until(
            lambda: not self.operators.count_moving(self.lost_for_good), self.live_seconds, "the last moves have ended"
        )
        # A replica that was cut off when all was mended may have left the ISR only since.
        await self.wait_until(self.is_live, self.live_seconds, "every partition is in sync still")
        await self.check_writable()
        await self.transactions.check_all()
        await self.compaction.check_all()
        dumps = await audit.audit_run(self)
        if self.encryption is not None:
            await self.encryption.settle()
        if self.options.rebuild and self.transactions.can_all_be_cold:
            await rebuilding.check_rebuild(self, dumps)
        if self.encryption is not None:
            self.encryption.check_stored()
        self.findings.raise_if_any()

    async def _create_topic(self, name: str) -> None:
        shape = next(each for each in self.options.all_topics if each.name == name)
        for _ in range(50):
            try:
                code = await self.admin.create_topic(shape)
            except REQUEST_ERRORS as error:
                self.world.events.add(f"{name} is not made: {error}")
            else:
                if code in (Code.NONE, Code.TOPIC_ALREADY_EXISTS):
                    return
                self.world.events.add(f"{name} is not made: {code}")
            await self.wait(0.5)
        raise AssertionError(f"liveness: topic {name} could not be made")

    # -- clients ------------------------------------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """Returns the partitions that senders and readers use: of the topics of the run, and of the administration."""
        own = [
            TopicPartition(shape.name, number) for shape in self.options.topics for number in range(shape.partitions)
        ]
        return own + [TopicPartition(name, 0) for name in sorted(self.admin.names) if name in self.model.image.topics]

    def _begin_clients(self) -> None:
        options, rng = self.options, random.Random(f"{self.options.seed}/clients")
        for number in range(options.senders):
            acks = -1 if number == 0 else rng.choice((-1, -1, 1, 0))
            repeats = random.Random(f"{options.seed}/s{number}/repeats").random() < RESEND_SHARE
            self.clients.append(
                self.make_sender(f"s{number}", acks, acks == -1 and rng.random() < 0.7, resends=repeats)
            )
        for number in range(options.readers):
            name = f"r{number}"
            client = self.world.client(f"c-{name}")
            self.clients.append(
                StandaloneReader(
                    name, client, self.loop, self.history, self.own_partitions, self._on_poll, self.sole_epoch
                )
            )
        for number in range(options.members):
            name = f"m{number}"
            client = self.world.client(f"c-{name}", InstanceClient)
            client.instance = name if options.static and number else None
            self.clients.append(GroupMember(name, GROUP, client, self.loop, self.history, options.subscription))
        for number in range(options.consumers):
            name = f"k{number}"
            client = self.world.client(f"c-{name}")
            self.clients.append(
                Consumer(name, client, self.loop, self.history, options.subscription, self._find_topic_name)
            )
        for node in self.world.hosts if options.members else ():
            asks = self.world.client(f"c-asks{node}")
            self.clients.append(
                GroupOffsetsReader(
                    GROUP,
                    node,
                    asks,
                    self.loop,
                    self.history,
                    self.reply_observer.is_coordinator,
                    lambda: self.sole_epoch(OFFSETS),
                )
            )
        if self.deleter is not None:
            self.clients.append(self.deleter)
        if options.admin:
            self.clients.append(self.admin)
        self.clients += self.operators.all
        if self.encryption is not None:
            self.clients.append(self.encryption)
        if self.time_reader is not None:
            self.clients.append(self.time_reader)
        if self.rest is not None:
            self.clients += self.rest.consumers
        self.transactions.begin()
        self.compaction.begin()
        self._tasks = [self.loop.create_task(each.work(), name=type(each).__name__) for each in self.clients]

    def own_partitions(self) -> list[TopicPartition]:
        """Returns the partitions of the topics of the run."""
        return [tp for tp in self.partitions() if tp.topic.startswith("t")]

    def make_sender(self, name: str, acks: int, idempotent: bool, *, resends: bool = False) -> SimProducer:
        return SimProducer(
            name, self.world.client(f"c-{name}"), self.loop, self.history, self.partitions,
            rate=self.options.send_rate, acks=acks, idempotent=idempotent,
            in_flight=self.options.in_flight, on_resend=self.reply_observer.on_resend if resends else None,
            batch_records=self.options.batch_records, codecs=self.options.codecs,
        )  # fmt: skip

    def _make_deleter(self) -> RecordDeleter | None:
        if not (self.options.admin_deletes or self.options.deletes or self.options.deletes_at_joins):
            return None
        return self.reply_observer.make_deleter(watches_joins=self.options.deletes_at_joins)

    def _make_time_reader(self) -> TimeReader:
        return TimeReader(
            self.world.client, self.loop, lambda: [*self.own_partitions(), *self.compaction.partitions],
            self.manifest_start, self.sole_epoch,
        )  # fmt: skip

    def _on_poll(self, poll: PollResult) -> None:
        """Checks that records that a reader got are committed, as far as that can be known."""
        partition_id = self.partition_id(poll.tp)
        copies = self.model.copies.get(partition_id) if partition_id is not None else None
        last = poll.rows[-1].offset
        leader = next((r for _, node in self.world.nodes() for r in node.leader_replicas() if r.tp == poll.tp), None)
        self.cold_reads += len(poll.rows) if leader is not None and last < leader.local_start_offset else 0
        if copies is not None and last >= copies.committed_end and not copies.may_have_diverged(last, 0):
            self.findings.report("I4", f"{poll.tp}: {last} is served, committed is up to {copies.committed_end}")

    def sole_epoch(self, tp: TopicPartition) -> int:
        """Returns the leader epoch of a partition; -1 while another broker may consider itself its leader under another
        epoch."""
        partition_id = self.partition_id(tp)
        if partition_id is None:
            return -1
        epoch = self.model.image.topics[tp.topic].partitions[tp.partition].leader_epoch
        led = [each for _, node in self.world.nodes() for each in node.leader_replicas() if each.tp == tp]
        return epoch if all(each.leader_epoch == epoch for each in led) else -1

    async def _end_clients(self) -> None:
        for each in self.clients:
            each.working = False
        done = asyncio.gather(*self._tasks)
        await self.wait_until(done.done, self.live_seconds, "every client comes to an end")
        await done
        if not self.options.admin:
            await self.admin.close()
        if self.rest is not None:
            await self.rest.servers.close()

    async def check_writable(self) -> None:
        """Liveness: every partition takes a record that every in-sync replica must have."""
        sender = self.make_sender("last", -1, True)
        end_ns = self.loop.now_ns + round(self.live_seconds * 1e9)
        for tp in self.own_partitions():
            while (send := await sender.send(tp)) is None or send.verdict is not SendVerdict.OK:
                # A broker that was frozen at the end of all trouble may leave the ISR only now.
                assert self.loop.now_ns < end_ns, f"liveness: {tp} takes no records\n{self.state()}"
                await self.wait(TICK_SECONDS)
            self.findings.raise_if_any()
        await sender._client.close()

    # -- machines -----------------------------------------------------------------------------------------------------

    def _on_start(self, host: SimHost, incarnation: str) -> None:
        self.model.lives[incarnation] = host.lives
        if self.committers is not None:
            self.committers.snapshots.on_start(host.node_id)

    def _on_process_moves(self, machine: int, moves: Sequence[Move]) -> None:
        """Moves the copies of the model between the processes of a machine. None of them runs."""
        for each in moves:
            giver, receiver = (node_of(machine, number) for number in (each.giver, each.receiver))
            copies = self.model.copies.get(PartitionId(each.topic_id, each.tp.partition))
            if copies is not None:
                copies.on_moved(giver, receiver, self.world.hosts[receiver].lives)

    def _on_end(self, host: SimHost, how: str) -> None:
        """Handles the end of a process: feeds its losses to the model before any broker can notice."""
        self._on_process_death(host)
        self.ends[how] += 1
        if how in ("kill", "stop"):
            return
        self.disk_loss_times.append(self.loop.now_ns)
        for partition_id, copies in self.model.copies.items():
            if not self.model.is_modelled(partition_id):
                continue
            directory = f"{self.model.image.topics_by_id[partition_id.topic_id].name}-{partition_id.partition}"
            start, batches = self.model.read_disk_log(partition_id, host.machine.disk, directory)
            said = self.model.flush(partition_id) if how != "disk" else set()
            proved = said == {"ack"}
            partly = len(said) > 1
            # Fsynced bytes are there after an error of the disk too. The start may trust that disk or not. The mark of
            # a clean stop may be there or not, if its write failed.
            unsure = how == "failed stop" or (proved and how == "failed")
            copies.on_damage(
                host.node_id,
                start,
                batches,
                host.lives,
                is_provable=proved,
                is_proof_unknown=unsure,
                is_partly_synced=partly,
                is_torn=has_torn_metadata(host.machine.disk, directory),
                is_lost=how == "disk",
                is_marked_clean=may_be_marked_clean(host.machine.disk),
            )

    def _on_process_death(self, host: SimHost) -> None:
        """Tells the model if the next start may trust the directory that this process left. The process notes a moment
        later which logs are whole up to their fsynced end."""
        believed = host.latest_node is not None and host.latest_node.loss_reporter.directory_trusted
        if believed and self.loop.now_ns - self._trusted_since.get(host.process, self.loop.now_ns) < SYNC_NOTE_NS:
            for copies in self.model.copies.values():
                copies.on_death_while_suspect(host.node_id, host.lives, has_no_proof=True)
            return
        full = host.machine.disk.capacity is not None or host.lives in host.disk_full_lives
        marked = has_boot_mark(host.machine.disk)
        for partition_id, copies in self.model.copies.items():
            if believed:
                copies.on_directory_trusted(host.node_id)
            elif host.latest_node is not None:
                # Without the mark nothing speaks for a log that is new since the cut either, but what it synced.
                alone = marked or (self.model.is_modelled(partition_id) and self.model.flush(partition_id) == {"ack"})
                copies.on_death_while_suspect(host.node_id, host.lives, has_no_proof=full or not alone)

    def _applied_slot(self, node: int) -> int:
        """Returns the slot up to which a broker has applied the metadata log."""
        known = self.world.hosts[node].node if node in self.world.hosts else None
        return known.cluster.loader.applied_slot if known is not None else -1

    def _is_controller(self, node: int) -> bool:
        """True if a broker considers itself the active controller."""
        known = self.world.hosts[node].node if node in self.world.hosts else None
        return known is not None and known.cluster.is_controller

    def is_live(self) -> bool:
        """True if everything works again."""
        image = self.model.image
        if not all(host.up and not host.frozen for host in self.operators.present_hosts()):
            return False
        brokers = [
            host.node_id in image.brokers and image.brokers[host.node_id].live
            for host in self.operators.present_hosts()
        ]
        told = not any(node.losses.unreported for _, node in self.world.nodes())
        decided = not any(node.health().details["pending_metadata"] for _, node in self.world.nodes())
        opened = not any(len(node.hosted_replicas.openings) for _, node in self.world.nodes())
        return (
            told
            and decided
            and opened
            and all(brokers)
            and all(
                each.leader >= 0
                and set(each.isr) == set(each.replicas) - self.lost_for_good
                and (not each.adding or waits_for_lost(each, self.lost_for_good))
                and not each.removing
                for topic in image.topics.values()
                for each in topic.partitions
            )
        )

    # -- time ---------------------------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> None:
        """Lets time pass."""
        end_ns = self.loop.now_ns + round(seconds * 1e9)
        while self.loop.now_ns < end_ns:
            await asyncio.sleep(TICK_SECONDS)
            self.check()

    async def wait_until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Lets time pass until the condition holds."""
        end_ns = self.loop.now_ns + round(seconds * 1e9)
        while not condition():
            assert self.loop.now_ns < end_ns, f"liveness: not within {seconds} s: {what}\n{self.state()}"
            await asyncio.sleep(TICK_SECONDS)
            self.check()

    def check(self) -> None:
        """Checks the rules that hold at any moment."""
        self.findings.raise_if_any()
        for failed in (self.nemesis.failure(), *(host.failure() for host in self.world.hosts.values())):
            if failed is not None:
                raise failed
        for host, node in self.world.nodes():
            self.model.check_image(host.process, node.image)
            if node.loss_reporter.directory_trusted and host.process not in self._trusted_since:
                self._trusted_since[host.process] = self.loop.now_ns
                for copies in self.model.copies.values():
                    copies.on_directory_trusted(host.node_id)
            for held in node.hosted_replicas.list_replicas():
                if isinstance(held, FollowerReplica) and self.model.is_modelled(held.partition_id):
                    self.model.copies_of(held.partition_id).on_follower_watermark(host.node_id, held.high_watermark)
            for place in node.group_coordinators.host.led_partitions.values():
                for broken in place.coordinator.shard.find_violations() if place.coordinator is not None else ():
                    self.findings.report("groups", f"{host.process}: {broken}")
        self.failover_checker.check()
        if self.loop.now_ns >= self._sampled_ns + SAMPLE_NS:
            self._sampled_ns = self.loop.now_ns
            resources.check_limits(self)
        self.findings.raise_if_any()

    def _leader_of(self, name: str) -> SimHost | None:
        """Returns the machine that leads the first partition of a topic in the metadata log."""
        topic = self.model.image.topics.get(name)
        return self.world.hosts.get(topic.partitions[0].leader) if topic is not None else None

    def _image_of(self, node: int) -> Image | None:
        """Returns the metadata image that the broker of a machine has received."""
        host = self.world.hosts.get(node)
        return host.node.image if host is not None and host.node is not None else None

    def _find_topic_name(self, topic_id: str) -> str | None:
        topic = self.model.image.topics_by_id.get(TopicId(topic_id))
        return topic.name if topic is not None else None

    def partition_id(self, tp: TopicPartition) -> PartitionId | None:
        topic = self.model.image.topics.get(tp.topic)
        return PartitionId(topic.topic_id, tp.partition) if topic is not None else None

    def manifest_start(self, tp: TopicPartition) -> int:
        partition_id = self.partition_id(tp)
        return self.model.copies_of(partition_id).log_start if partition_id is not None else 0

    def state(self) -> str:
        """Returns the state of the cluster in a few lines."""
        image = self.model.image
        lines = [f"slot={image.slot} controller={image.controller} epoch={image.controller_epoch}"]
        for node, broker in image.brokers.items():
            host = self.world.hosts[node]
            problems = host.node.health().problems if host.node is not None else ()
            lines.append(f"b{node} up={host.up} alive={broker.alive} fenced={broker.fenced} {list(problems)[:3]}")
        for topic in image.topics.values():
            lines += [f"{topic.name}-{number} {each}" for number, each in enumerate(topic.partitions)]
        return "\n".join([*lines, *resources.find_excess(self)])

    async def _shut_down(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.world.shut_down()


def run(seed: int, adjust: Callable[[ClusterOptions], ClusterOptions] = lambda drawn: drawn) -> ClusterRun:
    """Runs one seed to its end. An error has the options, the last events and the command that reruns the seed;
    `adjust` changes the drawn options."""
    loop = SimLoop(seed, seconds_max=900, steps_max=2_000_000)
    made: list[ClusterRun] = []

    async def main() -> None:
        made.append(ClusterRun(adjust(draw_options(seed)), loop))
        await made[0].main()

    try:
        loop.run(main())
    except BaseException as error:
        if made:
            lines = "\n".join(made[0].world.events.lines())
            error.add_note(
                f"{made[0].options.describe()}\n{lines}\nat {loop.now_ns / 1e9} s\n{made[0].state()}\n"
                f"again with: {command_of(made[0].options)}"
            )
        raise
    return made[0]


__all__ = ["BrokenRules", "ClusterRun", "run"]
