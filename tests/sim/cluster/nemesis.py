"""Faults of a run: several fault sources at a time, so that faults overlap. Each injects the kinds that the seed allows
and repairs each of its faults after a while. `heal` repairs everything at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection

from tests.sim.cluster.kill_before_report import KillBeforeReport
from tests.sim.cluster.model import ClusterModel
from tests.sim.cluster.options import ClusterOptions
from tests.sim.cluster.rot import BitRot
from tests.sim.cluster.world import SimHost, SimWorld
from tests.sim.harness.disk import DiskFault
from tests.sim.harness.store import draw_faults, tolerable_rules
from tiered.object_store.faulty import FaultKind, RequestThrottle

RESTART_SECONDS = (0.01, 0.3, 2.0, 6.0)
START_AGAIN_CHANCE = 0.4
"""Chance, after a stop that was cut short, of a start that is cut short too, and of each further one."""
RESTART_HINT = "start the broker again"
PROCESS_RESTART_SECONDS = 1.0
"""Time after which `tiered serve` starts a process again that has ended."""
CLOCK_JUMP_MS = 3_000_000


STALL_SHARE, STALLED_SECONDS = 0.5, 10.0
"""Share of the slowest disks that stall, and the longest time of an fsync there."""


class Nemesis:
    """Injects faults until `end` is called. `counts` has the number of each kind."""

    def __init__(self, options: ClusterOptions, world: SimWorld, model: ClusterModel) -> None:
        self._counts: dict[str, int] = {}
        self._options = options
        self._world = world
        self._rng = random.Random(f"{options.seed}/nemesis")
        self._stalls = random.Random(f"{options.seed}/stalls")
        self._rot = BitRot(options.seed, world, model)
        self._kill_before_report = KillBeforeReport(options.seed, world)
        self._fault_tasks: list[asyncio.Task[None]] = []
        self._clock_jumps = [0]
        self.throttle: RequestThrottle | None = None

    def begin(self) -> None:
        """Starts slow or drifting machines and a bucket with faults at once, and the fault sources."""
        rng = random.Random(f"{self._options.seed}/throttle")
        if rate := self._options.bucket_rate:
            self.throttle = RequestThrottle(rate, rng.randint(30, 100), rng.choice((0.3, 1.0, 3.0)))
        for host in self._world.hosts.values():
            host.restart_seconds = lambda: self._rng.choice(RESTART_SECONDS)
            host.machine.clock.drift_ppm = self._rng.randint(-self._options.drift_ppm, self._options.drift_ppm)
            if self._options.worst_fault:
                drawn = draw_faults(self._rng, self._options.worst_fault)
                stale = random.Random(f"{self._options.seed}/{host.name}/stale")
                host.machine.faults.rules[:] = tolerable_rules(drawn.rules, stale)
                for rule in host.machine.faults.rules:
                    if rule.kind is FaultKind.DELAY:
                        rule.seconds = min(rule.seconds, self._options.delay_seconds)
                host.machine.faults.reply_seconds = min(drawn.reply_seconds, self._options.reply_seconds)
            host.machine.faults.first_byte_seconds = self._options.first_byte_seconds
            host.machine.faults.list_keys = self._options.list_keys
            host.machine.faults.throttle = self.throttle
        for number in range(self._options.troublemakers):
            maker = self._world.loop.create_task(self._inject_faults(), name=f"nemesis-{number}")
            self._fault_tasks.append(maker)
        if self._options.rot:
            self._fault_tasks.append(self._world.loop.create_task(self._rot.work(), name="rot"))
        if self._options.troubles and self._kill_before_report.is_enabled:
            self._fault_tasks.append(self._world.loop.create_task(self._kill_before_report.work(), name="untold"))

    @property
    def counts(self) -> dict[str, int]:
        """Returns how often each kind of fault came."""
        return self._counts | {"rot": self._rot.count, "untold": self._kill_before_report.count}

    async def end(self, held: Collection[SimHost] = ()) -> None:
        """Stops all fault sources where they are, then repairs everything. The processes that are `held` start later,
        in their order."""
        for maker in self._fault_tasks:
            maker.cancel()
        await asyncio.gather(*self._fault_tasks, return_exceptions=True)
        self._world.events.add("heal")
        self._world.network.heal()
        for host in self._world.hosts.values():
            host.resume()
            self._mend(host)
        for host in self._world.hosts.values():
            if not host.idle and not host.is_absent and host not in held:
                await host.end("kill")  # a stop that was broken off may still be under way
                host.power_on()

    async def act_as_operator(self) -> None:
        """Does what brokers ask operators for, until it is cancelled: restarts a broker that found rot too late for its
        start."""
        while True:
            await asyncio.sleep(1.0)
            for host, node in list(self._world.nodes()):
                if host.idle and any(RESTART_HINT in why for why in node.hosted_replicas.list_unserved().values()):
                    self._log_event(f"{host.name} is started again, as it asks")
                    await host.stop()
                    host.power_on()

    def max_clock_skew_ms(self) -> int:
        """Returns the largest difference of two readings of wall clocks beyond the time between them."""
        drift_ms = 2 * self._options.drift_ppm * self._world.loop.now_ns // 10**12
        return max(self._clock_jumps) - min(self._clock_jumps) + drift_ms + 1

    def failure(self) -> BaseException | None:
        """Returns the error that ended a fault source, if any."""
        done = (maker for maker in self._fault_tasks if maker.done() and not maker.cancelled())
        return next((error for maker in done if (error := maker.exception())), None)

    def _mend(self, host: SimHost) -> None:
        machine = host.machine
        host.limit_disk(None)
        machine.disk.sync_seconds = lambda: 0.0
        machine.disk.faults.clear()
        machine.faults.outage = False
        machine.faults.rules.clear()
        machine.faults.throttle = None
        machine.faults.reply_seconds, machine.faults.first_byte_seconds = 0.1, 0.0

    # -- troubles -----------------------------------------------------------------------------------------------------

    async def _inject_faults(self) -> None:
        if not self._options.troubles:
            return
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._options.pause_seconds))
            kind = self._rng.choice(self._options.troubles)
            self._counts[kind] = self._counts.get(kind, 0) + 1
            await getattr(self, f"_{kind}")()

    def _pick_host(self) -> SimHost | None:
        """Returns a machine without another fault, or None."""
        free = [host for host in self._world.hosts.values() if host.idle and not host.frozen and host.process]
        return self._rng.choice(free) if free else None

    def _log_event(self, what: str) -> None:
        self._world.events.add(f"nemesis: {what}")

    async def _wait(self, most: float, least: float = 0.05) -> None:
        """Waits for a random time. Short times are as frequent as long ones."""
        await asyncio.sleep(least * (most / least) ** self._rng.random())

    async def _kill(self) -> None:
        await self._crash("kill")

    async def _power(self) -> None:
        await self._crash("power")

    async def _disk_lost(self) -> None:
        if self._rng.random() < 0.5:
            await self._crash("disk")

    async def _process_dies(self) -> None:
        """Kills one process of a machine, whose parent starts it again a second later."""
        host = self._pick_host()
        if host is not None:
            await self._end_for_a_while([host], "kill", PROCESS_RESTART_SECONDS)

    async def _machine_dies(self) -> None:
        """Ends all processes of a machine at once: their parent is killed, or the machine loses its power."""
        host = self._pick_host()
        if host is not None:
            how = self._rng.choice(("kill", "power")) if "power" in self._options.troubles else "kill"
            await self._end_for_a_while(self._processes_beside(host), how, self._rng.choice(RESTART_SECONDS))

    async def _crash(self, how: str) -> None:
        """Kills one process, or takes power or disk from all processes of a machine."""
        host = self._pick_host()
        if host is not None:
            struck = [host] if how == "kill" else self._processes_beside(host)
            await self._end_for_a_while(struck, how, self._rng.choice(RESTART_SECONDS))

    async def _end_for_a_while(self, hosts: list[SimHost], how: str, seconds: float) -> None:
        await asyncio.gather(*(host.end(how) for host in hosts))
        await asyncio.sleep(seconds)
        for host in hosts:
            host.power_on()

    def _processes_beside(self, host: SimHost) -> list[SimHost]:
        """Returns the processes of the machine of a host. Another fault goes on with those that are left out."""
        return [each for each in self._world.processes_beside(host) if each is host or each.idle]

    async def _kill_all(self) -> None:
        await self._crash_all("kill")

    async def _power_all(self) -> None:
        await self._crash_all("power")

    async def _crash_all(self, how: str) -> None:
        hosts = [host for host in self._world.hosts.values() if host.idle]
        for host in hosts:
            await host.end(how)
        self._rng.shuffle(hosts)
        for host in hosts:
            await asyncio.sleep(self._rng.choice((0.0, 0.1, 1.0)))
            host.power_on()

    async def _flapping(self) -> None:
        """Kills one machine again and again, faster than any broker notices."""
        host = self._pick_host()
        how = self._rng.choice(("kill", "power"))
        for _ in range(self._rng.randint(2, 4)):
            if host is None or not host.idle:
                return
            await host.end(how)
            await asyncio.sleep(self._rng.choice((0.01, 0.3)))
            host.power_on()
            await self._wait(3.0)

    async def _stop(self) -> None:
        host = self._pick_host()
        if host is not None:
            self._log_event(f"{host.name} is told to stop")
            await host.stop(self._rng.choice((0.05, 1.0, 30.0, 30.0)))
            await asyncio.sleep(self._rng.choice(RESTART_SECONDS))
            host.power_on()

    async def _cut_short(self) -> None:
        """Stops a broker, and starts it some times. A kill or a power cut ends each, perhaps before it is done."""
        host = self._pick_host()
        if host is None:
            return
        hows = ("kill", "power") if "power" in self._options.troubles else ("kill",)
        how = self._rng.choice(hows)
        self._log_event(f"{host.name} is told to stop, and {how} cuts that short")
        await host.stop(self._rng.choice((0.0, 0.05, 30.0, 30.0)), how)
        while self._rng.random() < START_AGAIN_CHANCE:
            host.power_on()
            await asyncio.sleep(self._rng.random())
            if not host.idle:
                return
            await host.end(self._rng.choice(hows))
        await asyncio.sleep(self._rng.choice(RESTART_SECONDS))
        host.power_on()

    async def _stop_disk_lost(self) -> None:
        """Stops a broker cleanly, and takes the disk away: what it has put into the bucket is all that is left."""
        host = self._pick_host()
        if host is not None:
            self._log_event(f"{host.name} is told to stop, and loses its disk")
            await host.stop(then="disk")
            await asyncio.sleep(self._rng.choice(RESTART_SECONDS))
            host.power_on()

    async def _freeze(self) -> None:
        host = self._pick_host()
        if host is None:
            return
        process = host.process
        self._log_event(f"{process} is frozen")
        host.freeze()
        try:
            await self._wait(8.0, 0.2)
        finally:
            self._world.loop.resume(process)
        self._log_event(f"{process} goes on")

    async def _acts_late(self) -> None:
        """Delays one broker: it receives the metadata changes but acts on them late."""
        host = self._pick_host()
        if host is not None:
            async with host.acts_late():
                await self._wait(8.0, 0.3)

    async def _disk_full(self) -> None:
        host = self._pick_host()
        if host is not None:
            self._log_event(f"disk of {host.name} is full")
            for each in self._world.processes_beside(host):
                each.limit_disk(1)
            await self._wait(self._options.full_seconds)
            for each in self._world.processes_beside(host):
                each.limit_disk(None)

    async def _disk_error(self) -> None:
        host = self._pick_host()
        if host is not None:
            verb = self._rng.choice(("append", "append", "truncate", "rename", "sync", "sync_dir", "open", "pread"))
            error = "EMFILE" if verb == "open" else "EIO"
            fault = DiskFault(verb, self._rng.choice(("", ".log", "/")), error, skip=self._rng.randint(0, 20))
            self._log_event(f"disk of {host.name} will fail: {fault}")
            host.machine.disk.faults.append(fault)
            await self._wait(4.0, 0.5)
            host.machine.disk.faults.clear()

    async def _disk_slow(self) -> None:
        host = self._pick_host()
        if host is not None:
            worst = self._rng.choice((0.02, 0.2, 2.0))
            if worst == 2.0 and self._stalls.random() < STALL_SHARE:
                worst = STALLED_SECONDS
            self._log_event(f"disk of {host.name} takes up to {worst} s")
            host.machine.disk.sync_seconds = lambda: self._rng.random() * worst
            await self._wait(5.0, 0.5)
            host.machine.disk.sync_seconds = lambda: 0.0

    async def _clock_jump(self) -> None:
        host = self._pick_host()
        if host is not None:
            jump = self._rng.randint(-CLOCK_JUMP_MS, CLOCK_JUMP_MS)
            self._log_event(f"clock of {host.name} is {jump} ms ahead")
            host.machine.clock.wall_offset_ms = jump
            self._clock_jumps.append(jump)
            await self._wait(2.0)

    async def _one_way(self) -> None:
        source, target = self._rng.sample(sorted(self._all_hosts()), 2)
        await self._cut_links([(source, target)])

    async def _isolated(self) -> None:
        """Cuts one machine off from the others, or from its clients too."""
        host = self._rng.choice([*self._world.hosts.values()])
        lonely = [each.name for each in self._world.processes_beside(host)]
        others = [name for name in self._all_hosts() if name not in lonely]
        if self._rng.random() < 0.5:
            others = [name for name in others if name.startswith("b")]
        await self._cut_links([pair for a in lonely for b in others for pair in ((a, b), (b, a))])

    async def _halves(self) -> None:
        names = sorted(self._all_hosts())
        self._rng.shuffle(names)
        left = names[: self._rng.randint(1, len(names) - 1)]
        right = [name for name in names if name not in left]
        await self._cut_links([pair for a in left for b in right for pair in ((a, b), (b, a))])

    async def _reset(self) -> None:
        one, other = self._rng.sample(sorted(self._all_hosts()), 2)
        self._log_event(f"connections of {one} and {other} are reset")
        self._world.network.break_between(one, other)

    async def _bucket_away(self) -> None:
        await self._outage(list(self._world.hosts.values()))

    async def _bucket_away_for_one(self) -> None:
        await self._outage(self._world.processes_beside(self._rng.choice([*self._world.hosts.values()])))

    async def _outage(self, hosts: list[SimHost]) -> None:
        self._log_event(f"the bucket is away for {[host.name for host in hosts]}")
        for host in hosts:
            host.machine.faults.outage = True
        await self._wait(self._options.outage_seconds, 0.3)
        for host in hosts:
            host.machine.faults.outage = False

    async def _cut_links(self, links: list[tuple[str, str]]) -> None:
        network = self._world.network
        self._log_event("cut " + " ".join(f"{source}>{target}" for source, target in links))
        for source, target in links:
            network.cut(source, target)
        await self._wait(8.0, 0.3)
        for source, target in links:
            network.mend(source, target)

    def _all_hosts(self) -> list[str]:
        return [*(host.name for host in self._world.hosts.values()), *self._world.clients]
