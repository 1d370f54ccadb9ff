"""Liveness during a fault, as far as it is promised: one broker, or all of a machine, are dead, frozen or cut off from
all others; the others work, and all of them reach the bucket.

Within bounds the cluster then continues without them, whatever was wrong before. They are fenced, another broker is the
controller, and each partition with an eligible replica among the others has a leader that takes acks=all, if enough
replicas are in sync. The bounds are checked in the run's own, coarse steps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from tests.sim.cluster.observer import Finding
from tests.sim.cluster.world import SimHost
from tiered.ids import PartitionId, TopicPartition
from tiered.object_store.faulty import FaultKind
from tiered.replication.leader_replica import LeaderReplica

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun

WORKING, MISSING, PARTLY_CUT = "works", "gone", "else"
TRIAL_CHANCE = 0.25
"""Share of the runs in which one broker goes missing once more after all has healed, long enough to check the
bounds."""
FAULT_KINDS = ("kill", "power", "freeze", "cut")
CutLinks = tuple[tuple[str, str], ...]
"""Links between brokers that are cut, each from one to another."""
COMMIT_SECONDS = 7.0
"""Seconds that a record may wait for in-sync replicas: a follower that does not fetch it for `replica.lag.time.max.ms`
(5 s) leaves the ISR."""


class FailoverBounds(NamedTuple):
    """Bounds in seconds since the others began to work without a broker."""

    replaced: float
    fenced: float
    led: float

    @classmethod
    def for_session(cls, session_seconds: float) -> FailoverBounds:
        """Returns bounds for a session: it must end, and the news must spread. If the controller is missing, its
        successor begins with whole sessions of its own."""
        replaced = 2 * session_seconds + 2
        return cls(replaced, replaced + session_seconds + 1, replaced + session_seconds + 2)


class FailoverChecker:
    """Checks the bounds while a run injects faults. `faults_outlasted` counts faults that lasted for all bounds."""

    def __init__(self, run: ClusterRun) -> None:
        self.faults_outlasted = 0
        self.machines_outlasted = 0
        """Number of these that took several processes of a machine."""
        self.healed = False
        """True if no other fault source is active any more."""
        self.latest_seconds: dict[str, float] = {}
        """By bound: the longest time that was still within it."""
        self._run = run
        self._bounds = FailoverBounds.for_session(run.options.session_ms / 1000)
        self._before: object = None
        self._since_ns = 0
        self._slow_until_ns = 0
        """Time until which a request may last that the bucket delayed before it healed."""
        self._is_counted = False
        self._leaders: dict[PartitionId, tuple[tuple[int, int], int]] = {}
        """Leader and epoch of each partition, and the time when the run first saw them."""
        self._controller = (0, 0)
        """Epoch of the controller, and the time when the run first saw it: a broker that is cut off takes over, if no
        entry of the log tells it that a controller is there."""
        self._uncommitted: dict[PartitionId, tuple[int, int]] = {}
        """Time when a leader was seen to have uncommitted records, and their end."""

    def check(self) -> None:
        """Reports every bound that has passed without the promised state."""
        run = self._run
        state = self._state()
        if state != self._before:
            self._before, self._since_ns, self._is_counted = state, run.loop.now_ns, False
            self._uncommitted.clear()
            return
        if state is None:
            return
        hosts = run.operators.present_hosts()
        if len(hosts) == 1:
            return  # nobody takes over from the only broker
        cuts = self._cut_links(hosts)
        missing = [host for host in hosts if self._broker_state(host, cuts, hosts) == MISSING]
        machines = {host.machine_id for host in hosts}
        if len({host.machine_id for host in missing}) != 1 or len(machines) == 1:
            return
        seconds = (run.loop.now_ns - self._since_ns) / 1e9
        for finding in self._check_deadlines({host.node_id for host in missing}, seconds):
            run.findings.report(*finding)
        if seconds >= self._bounds.led and not self._is_counted:
            self._is_counted = True
            self.faults_outlasted += 1
            self.machines_outlasted += len(missing) > 1

    @property
    def slow_seconds(self) -> float:
        """Longest time that a request in progress may still be delayed by the bucket."""
        return max(0, self._slow_until_ns - self._run.loop.now_ns) / 1e9

    def _state(self) -> object:
        """Returns the state of all brokers and links; None if nothing is promised."""
        run = self._run
        hosts = run.operators.present_hosts()
        rules = [rule for host in hosts for rule in host.machine.faults.rules if rule.kind is FaultKind.DELAY]
        if rules:
            self._slow_until_ns = run.loop.now_ns + round(max(rule.seconds for rule in rules) * 1e9)
        if self.slow_seconds:
            return None
        for host in hosts:
            faults, disk = host.machine.faults, host.machine.disk
            if faults.outage or faults.rules or faults.throttle is not None:
                return None
            if disk.failed or disk.capacity is not None or disk.faults or host.late_count:
                return None
        if not self.healed and "disk_slow" in run.options.troubles:
            return None
        cuts = self._cut_links(hosts)
        each = [self._broker_state(host, cuts, hosts) for host in hosts]
        return None if PARTLY_CUT in each else (tuple(each), tuple(host.lives for host in hosts), cuts)

    def _cut_links(self, hosts: Sequence[SimHost]) -> CutLinks:
        network = self._run.world.network
        if not network.has_cuts:
            return ()
        names = sorted(host.name for host in hosts)
        return tuple((a, b) for a in names for b in names if network.is_cut(a, b))

    def _broker_state(self, host: SimHost, cuts: CutLinks, hosts: Sequence[SimHost]) -> str:
        if host.frozen or not host.process or _is_isolated(host, cuts, hosts):
            return MISSING
        # A broker works if it is cut off only from brokers that are missing anyway.
        isolated = {each.name for each in hosts if cuts and _is_isolated(each, cuts, hosts)}
        lacks = [pair for pair in cuts if host.name in pair and not isolated & set(pair)]
        return PARTLY_CUT if lacks or not host.up or host.server is None else WORKING

    def _check_deadlines(self, gone: Set[int], seconds: float) -> Iterator[Finding]:
        image, bounds = self._run.model.image, self._bounds
        named = ", ".join(f"b{node}" for node in sorted(gone))
        if self._controller[0] != image.controller_epoch:
            self._controller = image.controller_epoch, self._run.loop.now_ns
        controlled = seconds
        if image.controller in gone:
            controlled = min(seconds, (self._run.loop.now_ns - self._controller[1]) / 1e9)
            yield from self._check_bound(
                "replaced", controlled, bounds.replaced, f"b{image.controller} is the controller"
            )
        for node in sorted(gone & image.live_ids()):
            yield from self._check_bound("fenced", controlled, bounds.fenced, f"b{node} is not fenced")
        for topic in image.topics.values():
            for number, now in enumerate(topic.partitions):
                tp = TopicPartition(topic.name, number)
                partition_id = PartitionId(topic.topic_id, number)
                known_led, since_ns = self._leaders.get(partition_id, ((-1, -1), 0))
                if known_led != (now.leader, now.leader_epoch):
                    since_ns = self._run.loop.now_ns
                    self._leaders[partition_id] = (now.leader, now.leader_epoch), since_ns
                led = min(seconds, (self._run.loop.now_ns - since_ns) / 1e9)
                if any(node not in gone for node in (*now.isr, *now.elr)):
                    is_led = now.leader != -1 and now.leader not in gone
                    if not is_led or not self._is_leading(now.leader, partition_id, now.leader_epoch):
                        yield from self._check_bound("led", led, bounds.led, f"{tp} is not led without {named}: {now}")
                    elif gone.isdisjoint(now.isr):
                        yield from self._check_commits(tp, partition_id, now.leader, len(now.isr))

    def _check_bound(self, what: str, seconds: float, bound: float, why: str) -> Iterator[Finding]:
        if seconds > bound:
            yield Finding(
                "I19",
                f"not {what} within {bound} s, while brokers of one machine are missing and all others work: {why}",
            )
        else:
            self.latest_seconds[what] = max(seconds, self.latest_seconds.get(what, 0.0))

    def _is_leading(self, node: int, partition_id: PartitionId, epoch: int) -> bool:
        """True if the broker leads this topic id: it may not yet have acted on a topic that was recreated under its
        name."""
        known = self._run.world.hosts[node].node
        return known is not None and any(
            each.partition_id == partition_id and each.leader_epoch == epoch for each in known.leader_replicas()
        )

    def _required_isr(self, partition_id: PartitionId, leader: LeaderReplica) -> int:
        """Returns how many replicas must be in sync for the leader to take acks=all."""
        state = leader.state
        return self._run.model.min_isr(
            partition_id, state.node_id, leader.config.min_insync_replicas, len(state.replicas)
        )

    def _check_commits(
        self, tp: TopicPartition, partition_id: PartitionId, leader: int, in_sync: int
    ) -> Iterator[Finding]:
        """Reports records of the leader that are not committed in time although enough replicas are in sync. (With
        `flush=ack` a record that no request waits for may stay unsynced, and so uncommitted, for long.)"""
        run = self._run
        node = run.world.hosts[leader].node
        replica = (
            next(each for each in node.leader_replicas() if each.partition_id == partition_id)
            if node is not None
            else None
        )
        synced = replica is not None and (
            replica.log.synced_entry.fsynced_only or "ack" in run.model.flush(partition_id)
        )
        if (
            replica is None
            or synced
            or not run.model.is_modelled(partition_id)
            or in_sync < self._required_isr(partition_id, replica)
        ):
            self._uncommitted.pop(partition_id, None)
            return
        end = replica.log.end_offset
        committed = run.model.copies_of(partition_id).committed_end
        since_ns, upto = self._uncommitted.get(partition_id, (run.loop.now_ns, end))
        if committed >= upto:
            since_ns, upto = run.loop.now_ns, end
        self._uncommitted[partition_id] = since_ns, upto
        seconds = (run.loop.now_ns - since_ns) / 1e9
        if seconds > COMMIT_SECONDS and committed < upto:
            yield Finding("I19", f"{tp}: {committed} to {upto} waited {seconds:.1f} s for replicas that are in sync")
        elif committed < upto:
            self.latest_seconds["taken"] = max(seconds, self.latest_seconds.get("taken", 0.0))


def _is_isolated(host: SimHost, cuts: CutLinks, hosts: Sequence[SimHost]) -> bool:
    """True if both directions to each other broker are cut, but for processes of its machine that are cut off so."""

    def is_cut_off(name: str, others: Sequence[SimHost]) -> bool:
        return all((name, other.name) in cuts and (other.name, name) in cuts for other in others)

    elsewhere = [each for each in hosts if each.machine_id != host.machine_id]
    beside = [each for each in hosts if each.machine_id == host.machine_id and each is not host]
    return (
        bool(cuts)
        and is_cut_off(host.name, elsewhere)
        and all(is_cut_off(host.name, [each]) or is_cut_off(each.name, elsewhere) for each in beside)
    )


async def run_trial(run: ClusterRun) -> None:
    """Takes one broker away until all bounds are over, while clients continue; then brings it back. Where machines have
    several processes, it may take all of one. Nothing is promised while the only broker is away."""
    rng = random.Random(f"{run.options.seed}/lasting")
    run.failover_checker.healed = True
    if rng.random() >= TRIAL_CHANCE or len(run.operators.present_hosts()) == 1:
        return
    present = run.operators.present_hosts()
    host, how = rng.choice(present), rng.choice(FAULT_KINDS)
    missing = [host]
    if run.options.processes > 1 and (how in ("power", "cut") or rng.random() < 0.5):
        missing = [each for each in run.world.processes_beside(host) if each in present]
    run.world.events.add(f"{[each.name for each in missing]} go missing: {how}")
    if how in ("kill", "power"):
        await asyncio.gather(*(each.end(how) for each in missing))
    for each in missing:
        if how == "freeze":
            each.freeze()
        for other in present if how == "cut" else ():
            if other not in missing:
                run.world.network.cut(each.name, other.name)
                run.world.network.cut(other.name, each.name)
    await wait_for_bounds(run)
    run.world.network.heal()
    for each in missing:
        each.resume()
        if how in ("kill", "power"):
            each.power_on()


async def lose_machine(run: ClusterRun) -> None:
    """Loses a machine for good, with the disks of all its processes, while clients continue."""
    rng = random.Random(f"{run.options.seed}/lost-machine")
    lost = run.world.processes_beside(rng.choice(run.operators.present_hosts()))
    run.world.events.add(f"{[each.name for each in lost]} are lost for good")
    await asyncio.gather(*(each.end("disk") for each in lost))
    await wait_for_bounds(run)
    run.lost_for_good.update(each.node_id for each in lost)
    for each in lost:
        each.is_absent = True


async def wait_for_bounds(run: ClusterRun) -> None:
    """Lets time pass until all bounds are over."""
    bounds = FailoverBounds.for_session(run.options.session_ms / 1000)
    await run.wait(run.failover_checker.slow_seconds + bounds.led + COMMIT_SECONDS + 1.0)
