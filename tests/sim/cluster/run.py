"""One seed of a cluster: everything starts, clients work, things go wrong together; then all heals, must be live again
within its deadlines, and is audited: every log, every acknowledged record, and in some runs a rebuild from the bucket.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext

from tests.sim.cluster import audit, lasting, reaching, rebuilding, resources
from tests.sim.cluster.administration import Administration
from tests.sim.cluster.asking import Asker
from tests.sim.cluster.deleting import Deleter
from tests.sim.cluster.expected import Expected
from tests.sim.cluster.hearing import Hearing
from tests.sim.cluster.history import History, Poll, Verdict
from tests.sim.cluster.lasting import Lasting
from tests.sim.cluster.members import GROUP, GroupMember, InstanceClient, short_sessions
from tests.sim.cluster.model import Truth
from tests.sim.cluster.moves import OFFSETS
from tests.sim.cluster.nemesis import Nemesis
from tests.sim.cluster.observer import Broken, Findings, Witness, is_marked, on_disk
from tests.sim.cluster.operators import Operator, Operators
from tests.sim.cluster.options import COMMON, Options
from tests.sim.cluster.readers import Reader
from tests.sim.cluster.senders import Sender
from tests.sim.cluster.served import Served
from tests.sim.cluster.shown import Shown
from tests.sim.cluster.world import Host, World
from tests.sim.harness.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import PartitionId, TopicPartition
from tiered.metadata.changes import ALL_BROKERS
from tiered.metadata.image import Image
from tiered.replication.follower_replica import FollowerReplica

TICK_SECONDS = 0.2
NOTED_NS = 2_000_000_000
SAMPLE_NS = 1_000_000_000
"""What brokers hold is looked at so often; all else at each look."""
START_SECONDS = 30.0
LIVE_SECONDS = 30.0
COLD_SECONDS = 120.0
REPEATING = 0.6
"""Of the senders: they repeat what they had acknowledged, if they are idempotent."""
CANNOT = (Refused, Unavailable, Corrupt)
Clients = list[Sender | Reader | GroupMember | Asker | Deleter | Administration | Operator]


class Run:
    """One seed. `main` raises when a predicate does not hold."""

    def __init__(self, options: Options, loop: SimLoop) -> None:
        self.options = options
        self.loop = loop
        self.world = World(loop, options.settings(), fan=options.manifest_fan, slots=options.snapshot_slots)
        self.history = History()
        self.findings = Findings(self.world.story.tell)
        self.truth = Truth(self.world.bucket, COMMON, self.findings.red, lambda: loop.now_ns)
        self.witness = Witness(self.truth)
        self.served = Served(self._image_of, self.findings.red)
        self.shown = Shown(self.findings.red)
        self.nemesis = Nemesis(options, self.world, self.truth)
        self.expected = Expected(
            lambda name: self.truth.image.topics.get(name),
            self._manifest_start,
            lambda: self.truth.image.broker_configs.get(ALL_BROKERS, {}),
            {} if options.min_isr == 1 else {"min.insync.replicas": str(options.min_isr)},
        )
        self.truth.clocks_apart_ms = self.nemesis.clocks_apart_ms
        self.truth.asked_to_go = self.expected.asked_to_go
        self.truth.acted = self._acted
        self.truth.controls = self._controls
        self.admin = Administration(
            self.world.client("c-admin"), loop, options, self.world.story.tell, self.expected, self.findings,
            self._leader_of,
        )  # fmt: skip
        self.operators = Operators(options, self.world, self.truth, self.expected, self.findings)
        self.hearing = Hearing(self)
        self.deleter = self.hearing.deleter() if options.cuts or options.deletes else None
        self.lasting = Lasting(self)
        self._sampled_ns = 0
        self._believed: dict[str, int] = {}
        """Processes that believe their directory, and since when."""
        """The processes that were seen to believe their directory."""
        self.high_load: dict[str, int] = {}
        self.collected_ns = 0
        """When garbage was last collected."""
        self.forgotten: list[int] = []
        """When a machine lost more than a process."""
        network = self.world.network
        network.latency_seconds = (options.latency_seconds / 10, options.latency_seconds)
        network.skewed = options.skewed
        network.fine_share = options.fine_share
        self.clients: Clients = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def trace(self) -> tuple[int, int]:
        """Steps taken and a digest of them: equal for equal runs."""
        return self.loop.steps, self.loop.digest

    @property
    def counts(self) -> dict[str, int]:
        """What the run did, so that a test can tell whether it proves anything."""
        sends = self.history.sends
        own = {
            "acked": sum(send.verdict is Verdict.OK for send in sends),
            "failed": sum(send.verdict is Verdict.FAILED for send in sends),
            "unknown": sum(send.verdict is Verdict.UNKNOWN for send in sends),
            "read": sum(len(poll.rows) for poll in self.history.polls),
            "lives": sum(host.lives for host in self.world.hosts.values()),
            "slots": self.truth.image.slot + 1,
            "controllers": self.truth.image.controller_epoch,
            "leader_epochs": sum(
                each.leader_epoch for topic in self.truth.image.topics.values() for each in topic.partitions
            ),
            "unclean_elections": len(self.truth.uncleanly),
            "losses": sum(len(each.losses) for each in self.truth.copies.values()),
            "commits": len(self.history.commits),
            "retries": self.hearing.retries,
            "shown": self.shown.answers,
            "faults_lasted": self.lasting.lasted,
            "starts_judged": self.hearing.told.judged,
            "returned_members": sum(each.returned for each in self.clients if isinstance(each, GroupMember)),
            "bucket_refused": self.nemesis.throttle.refused_count if self.nemesis.throttle else 0,
        }
        return (
            own
            | {f"code_{name}": count for name, count in self.history.codes.items()}
            | {f"trouble_{name}": count for name, count in self.nemesis.counts.items()}
            | {f"admin_{name}": count for name, count in self.admin.counts.items()}
            | self.operators.counts
            | {f"deletes_{name}": count for name, count in (self.deleter.counts if self.deleter else {}).items()}
            | {f"bucket_{name}": count for name, count in self.truth.counts.items()}
        )

    # -- the story ----------------------------------------------------------------------------------------------------

    async def main(self) -> None:
        groups = self.shown.watching() if self.options.members else nullcontext()
        with self.witness.watching(), self.served.watching(), groups, short_sessions():
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._end)
                await self._story()

    async def _story(self) -> None:
        for host in self.world.hosts.values():
            host.gone, host.begun = self._gone, self._begun
        for host in self.operators.present():
            host.power_on()
        await self.until(lambda: all(host.up for host in self.operators.present()), START_SECONDS, "all brokers serve")
        for shape in self.options.topics:
            await self._make(shape.name)
        self._begin_clients()
        self.nemesis.begin()
        await self.wait(self.options.chaos_seconds)
        await self.nemesis.end()
        operator = self.loop.create_task(self.nemesis.operate(), name="operator")
        await self.until(self.is_live, LIVE_SECONDS, "every broker serves, every partition is led and in sync")
        await lasting.trial(self)
        await self.until(self.is_live, LIVE_SECONDS, "who was missing is back")
        operator.cancel()
        await reaching.the_end(self)
        await self._end_clients()
        self.world.network.fine_share = 0.0  # all is read now: small pieces take many steps, and show nothing new
        await self.until(lambda: not self.operators.moving(), LIVE_SECONDS, "the last moves have ended")
        # Who was cut off when all was mended may have been put out only since.
        await self.until(self.is_live, LIVE_SECONDS, "every partition is in sync still")
        await self.writable()
        dumps = await audit.end_of_run(self)
        if self.options.rebuild:
            await rebuilding.rebuild(self, dumps)
        self.findings.check()

    async def _make(self, name: str) -> None:
        shape = next(each for each in self.options.topics if each.name == name)
        for _ in range(50):
            try:
                code = await self.admin.make(shape)
            except CANNOT as error:
                self.world.story.tell(f"{name} is not made: {error}")
            else:
                if code in (Code.NONE, Code.TOPIC_ALREADY_EXISTS):
                    return
                self.world.story.tell(f"{name} is not made: {code}")
            await self.wait(0.5)
        raise AssertionError(f"liveness: topic {name} could not be made")

    # -- clients ------------------------------------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """Those that senders and readers use: of the topics of the run, and of what the administration made."""
        own = [
            TopicPartition(shape.name, number) for shape in self.options.topics for number in range(shape.partitions)
        ]
        return own + [TopicPartition(name, 0) for name in sorted(self.admin.names) if name in self.truth.image.topics]

    def _begin_clients(self) -> None:
        options, draw = self.options, random.Random(f"{self.options.seed}/clients")
        for number in range(options.senders):
            acks = -1 if number == 0 else draw.choice((-1, -1, 1, 0))
            repeats = random.Random(f"{options.seed}/s{number}/repeats").random() < REPEATING
            self.clients.append(self.sender(f"s{number}", acks, acks == -1 and draw.random() < 0.7, repeats=repeats))
        for number in range(options.readers):
            name = f"r{number}"
            client = self.world.client(f"c-{name}")
            self.clients.append(
                Reader(name, client, self.loop, self.history, self.own_partitions, self._heard, self.sole_epoch)
            )
        for number in range(options.members):
            name = f"m{number}"
            client = self.world.client(f"c-{name}", InstanceClient)
            client.instance = name if options.static and number else None
            self.clients.append(GroupMember(name, GROUP, client, self.loop, self.history, options.topics[0].name))
        for node in self.world.hosts if options.members else ():
            asks = self.world.client(f"c-asks{node}")
            self.clients.append(
                Asker(
                    GROUP,
                    node,
                    asks,
                    self.loop,
                    self.history,
                    self.hearing.coordinates,
                    lambda: self.sole_epoch(OFFSETS),
                )
            )
        if self.deleter is not None:
            self.clients.append(self.deleter)
        if options.admin:
            self.clients.append(self.admin)
        self.clients += self.operators.all
        self._tasks = [self.loop.create_task(each.work(), name=type(each).__name__) for each in self.clients]

    def own_partitions(self) -> list[TopicPartition]:
        """Those of the topics of the run."""
        return [where for where in self.partitions() if where.topic.startswith("t")]

    def sender(self, name: str, acks: int, idempotent: bool, *, repeats: bool = False) -> Sender:
        return Sender(
            name, self.world.client(f"c-{name}"), self.loop, self.history, self.partitions,
            rate=self.options.send_rate, acks=acks, idempotent=idempotent,
            in_flight=self.options.in_flight, repeated=self.hearing.repeated if repeats else None,
        )  # fmt: skip

    def _heard(self, poll: Poll) -> None:
        """What a reader gets is committed by then, as far as anybody can know."""
        pid = self.pid(poll.where)
        copies = self.truth.copies.get(pid) if pid is not None else None
        last = poll.rows[-1].offset
        if copies is not None and last >= copies.committed_end and not copies.may_be_served_apart(last, 0):
            self.findings.red("I4", f"{poll.where}: {last} is served, committed is up to {copies.committed_end}")

    def sole_epoch(self, where: TopicPartition) -> int:
        """Under which epoch a partition is led; -1 while somebody may take himself for its leader under another one."""
        pid = self.pid(where)
        if pid is None:
            return -1
        epoch = self.truth.image.topics[where.topic].partitions[where.partition].leader_epoch
        led = [each for _, node in self.world.nodes() for each in node.leader_replicas() if each.at == where]
        return epoch if all(each.leader_epoch == epoch for each in led) else -1

    async def _end_clients(self) -> None:
        for each in self.clients:
            each.working = False
        done = asyncio.gather(*self._tasks)
        await self.until(done.done, LIVE_SECONDS, "every client comes to an end")
        await done

    async def writable(self) -> None:
        """Liveness: every partition takes a record that every replica in sync must have."""
        sender = self.sender("last", -1, True)
        end_ns = self.loop.now_ns + round(LIVE_SECONDS * 1e9)
        for where in self.own_partitions():
            while (send := await sender.send(where)) is None or send.verdict is not Verdict.OK:
                # Who was frozen at the end of all trouble may be missed, and taken out, only now.
                assert self.loop.now_ns < end_ns, f"liveness: {where} takes no records\n{self.state()}"
                await self.wait(TICK_SECONDS)
            self.findings.check()
        await sender._client.close()

    # -- machines -----------------------------------------------------------------------------------------------------

    def _begun(self, host: Host, incarnation: str) -> None:
        self.truth.lives[incarnation] = host.lives

    def _gone(self, host: Host, how: str) -> None:
        """A process is gone: what that took is said to the model before anybody can notice."""
        self._died(host)
        if how in ("kill", "stop"):
            return
        self.forgotten.append(self.loop.now_ns)
        for pid, copies in self.truth.copies.items():
            if not self.truth.follows(pid):
                continue
            directory = f"{self.truth.image.topics_by_id[pid.topic_id].name}-{pid.partition}"
            start, batches = on_disk(host.machine.disk, directory)
            said = self.truth.flush(pid) if how != "disk" else set()
            proved, partly = said == {"ack"}, len(said) > 1
            # What was fsynced is there after an error of the disk too; whether anybody believes that disk is left open.
            # So is whether the mark of a clean stop is there, where it was the mark that failed.
            unsure = how == "failed stop" or (proved and how == "failed")
            copies.damaged(host.node_id, start, batches, host.lives, proved=proved, unsure=unsure, partly=partly)

    def _died(self, host: Host) -> None:
        """Whether the next start may go by what this process made of its directory. Which logs are whole at what they
        synced it notes a moment later."""
        believed = host.latest is not None and host.latest.registration.directory_trusted
        if believed and self.loop.now_ns - self._believed.get(host.process, self.loop.now_ns) < NOTED_NS:
            for copies in self.truth.copies.values():
                copies.died_in_doubt(host.node_id, host.lives, full=True)
            return
        full = host.machine.disk.capacity is not None or host.lives in host.filled
        marked = is_marked(host.machine.disk)
        for pid, copies in self.truth.copies.items():
            if believed:
                copies.believed(host.node_id)
            elif host.latest is not None:
                # Without the mark nothing speaks for a log that is new since the cut either, but what it synced.
                alone = marked or (self.truth.follows(pid) and self.truth.flush(pid) == {"ack"})
                copies.died_in_doubt(host.node_id, host.lives, full=full or not alone)

    def _acted(self, node: int) -> int:
        """Up to which slot a broker has acted on the metadata log."""
        known = self.world.hosts[node].node if node in self.world.hosts else None
        return known.cluster.loader.applied_slot if known is not None else -1

    def _controls(self, node: int) -> bool:
        """Whether a broker takes itself for the controller."""
        known = self.world.hosts[node].node if node in self.world.hosts else None
        return known is not None and known.cluster.is_controller

    def is_live(self) -> bool:
        """Whether everything works again."""
        image = self.truth.image
        if not all(host.up and not host.frozen for host in self.operators.present()):
            return False
        brokers = [
            host.node_id in image.brokers and image.brokers[host.node_id].live for host in self.operators.present()
        ]
        told = not any(node.hosted_replicas.unreported_losses for _, node in self.world.nodes())
        return (
            told
            and all(brokers)
            and all(
                each.leader >= 0 and sorted(each.isr) == sorted(each.replicas) and not each.adding and not each.removing
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
            self.look()

    async def until(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        """Lets time pass until it holds."""
        end_ns = self.loop.now_ns + round(seconds * 1e9)
        while not holds():
            assert self.loop.now_ns < end_ns, f"liveness: not within {seconds} s: {what}\n{self.state()}"
            await asyncio.sleep(TICK_SECONDS)
            self.look()

    def look(self) -> None:
        """What must hold at any moment."""
        self.findings.check()
        for failed in (self.nemesis.failure(), *(host.failure() for host in self.world.hosts.values())):
            if failed is not None:
                raise failed
        for host, node in self.world.nodes():
            self.truth.check_image(host.process, node.image)
            if node.registration.directory_trusted and host.process not in self._believed:
                self._believed[host.process] = self.loop.now_ns
                for copies in self.truth.copies.values():
                    copies.believed(host.node_id)
            for held in node.hosted_replicas.list_replicas():
                if isinstance(held, FollowerReplica) and self.truth.follows(held.pid):
                    self.truth.of(held.pid).followed(host.node_id, held.high_watermark)
            for place in node.group_coordinators._led_partitions.values():
                for broken in place.coordinator.shard.find_violations() if place.coordinator is not None else ():
                    self.findings.red("groups", f"{host.process}: {broken}")
        self.lasting.look()
        if self.loop.now_ns >= self._sampled_ns + SAMPLE_NS:
            self._sampled_ns = self.loop.now_ns
            resources.sample(self)
        self.findings.check()

    def _leader_of(self, name: str) -> Host | None:
        """The machine that leads the first partition of a topic, as the metadata log has it."""
        topic = self.truth.image.topics.get(name)
        return self.world.hosts.get(topic.partitions[0].leader) if topic is not None else None

    def _image_of(self, node: int) -> Image | None:
        """What the broker of a machine has heard."""
        host = self.world.hosts.get(node)
        return host.node.image if host is not None and host.node is not None else None

    def pid(self, where: TopicPartition) -> PartitionId | None:
        topic = self.truth.image.topics.get(where.topic)
        return PartitionId(topic.topic_id, where.partition) if topic is not None else None

    def _manifest_start(self, where: TopicPartition) -> int:
        pid = self.pid(where)
        return self.truth.of(pid).log_start if pid is not None else 0

    def state(self) -> str:
        """The cluster in a few lines."""
        image = self.truth.image
        lines = [f"slot={image.slot} controller={image.controller} epoch={image.controller_epoch}"]
        for node, broker in image.brokers.items():
            host = self.world.hosts[node]
            problems = host.node.health().problems if host.node is not None else ()
            lines.append(f"b{node} up={host.up} alive={broker.alive} fenced={broker.fenced} {list(problems)[:3]}")
        for topic in image.topics.values():
            lines += [f"{topic.name}-{number} {each}" for number, each in enumerate(topic.partitions)]
        return "\n".join([*lines, *resources.too_much(self)])

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.world.shut_down()


def run(seed: int, of: Callable[[Options], Options] = lambda drawn: drawn) -> Run:
    """Runs one seed to its end. What fails carries the options, the last events and the command that reruns it; `of`
    changes what the seed draws."""
    loop = SimLoop(seed, seconds_max=900, steps_max=2_000_000)
    made: list[Run] = []

    async def main() -> None:
        made.append(Run(of(Options.drawn(seed)), loop))
        await made[0].main()

    try:
        loop.run(main())
    except BaseException as error:
        if made:
            lines = "\n".join(made[0].world.story.lines())
            error.add_note(
                f"{made[0].options.lines()}\n{lines}\nat {loop.now_ns / 1e9} s\n{made[0].state()}\n"
                f"again with: make sim OF=cluster SEED={seed}"
            )
        raise
    return made[0]


__all__ = ["Broken", "Run", "run"]
