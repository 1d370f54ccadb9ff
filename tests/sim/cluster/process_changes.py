"""Machines that start with another number of processes while load runs: their logs move between the processes of the
machine, as `tiered serve` moves them (I36).

A machine stops cleanly, or one of its processes is killed, so that its logs cannot move. The start that moves the logs
may end at each change of the disk, by a kill or by a power cut, and the next start goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from tests.sim.cluster.world import SimHost, SimWorld
from tests.sim.harness.disk import Op, SimDisk
from tests.sim.harness.durable_bytes import DurableBytes
from tests.sim.harness.machine_directory import join_directories, split_directory
from tiered.durability.move_plan import Move
from tiered.ids import PROCESS_STEP
from tiered.metadata.image import Image
from tiered_api.cli.broker import processes
from tiered_api.cli.broker.processes import MachineStart

PAUSE_SECONDS = 6.0
"""Mean time between two changes."""
DOWN_SECONDS = (0.01, 0.3, 2.0)
KILL_CHANCE = 0.2
"""Share of changes before which a process is killed."""
CRASH_CHANCE, CRASHES_MAX = 0.4, 4
"""Share of starts that end while logs move, and most of them in a row."""
LOSS_CHANCE = 0.5
"""Share of the changes to fewer processes in which those that are left out have lost their disks."""
STEPS_MAX = 40
"""Changes of the disk of such a start: some files of checkpoints, a rename for each log, and syncs of folders."""
RETURN_HINT = "start the machine with tiered.processes="
READY_SECONDS = 60.0
"""Longest wait until a process serves, unless it took logs: the one that gave them starts after that alone."""


class ProcessChanges:
    """Changes the number of processes of machines until it is ended, from its own random stream."""

    def __init__(
        self,
        seed: int,
        world: SimWorld,
        image: Callable[[], Image],
        on_moves: Callable[[int, Sequence[Move]], None],
        *,
        is_enabled: bool,
        loses_disks: bool = False,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._rng = random.Random(f"{seed}/process-changes")
        self._image = image
        self._on_moves = on_moves
        self._is_enabled = is_enabled
        self._loses_disks = loses_disks
        self._loss_rng = random.Random(f"{seed}/process-losses")
        self._ended = asyncio.Event()
        self._outlasted = asyncio.Event()
        """Set while a process that took logs has not served for `READY_SECONDS`: the faults of the run keep it off."""
        self._task: asyncio.Task[None] | None = None
        self.held: Sequence[SimHost] = ()
        """The processes of the machine that changes now."""

    def begin(self) -> None:
        """Begins to change machines, if it is enabled."""
        if self._is_enabled:
            self._task = self._world.loop.create_task(self._work(), name="process-changes")

    async def _work(self) -> None:
        """Changes machines, one after the other, until the end."""
        while not await self._pause(self._rng.expovariate(1 / PAUSE_SECONDS)):
            machines = sorted({host.machine_id for host in self._world.hosts.values()})
            hosts = self._processes_of(self._rng.choice(machines))
            running = [host for host in hosts if not host.is_absent]
            wanted = len(hosts) + 1 - len(running)
            if running and all(host.idle for host in running):
                await self._change(hosts, wanted)

    def begin_return(self) -> None:
        """Begins to start machines with all processes where a health report asks for it: one that is left out has
        replicas, and no other process has its logs, for they were lost. All faults have ended."""
        if self._is_enabled:
            self._task = self._world.loop.create_task(self._return_left_out(), name="process-changes")

    async def _return_left_out(self) -> None:
        for machine in sorted({host.machine_id for host in self._world.hosts.values()}):
            hosts = self._processes_of(machine)
            while not all(host.up or host.is_absent for host in hosts):
                await asyncio.sleep(0.05)
            if hosts[0].is_absent or not self._find_left_out(hosts):
                continue
            while (node := hosts[0].node) is None or not any(RETURN_HINT in why for why in node.health().own_problems):
                await asyncio.sleep(0.05)
            self._world.events.add(f"machine {machine} starts a process again that has replicas")
            self.counts["returned"] += 1
            await self._change(hosts, len(hosts))

    def _find_left_out(self, hosts: Sequence[SimHost]) -> set[int]:
        """Returns the processes that do not run, and have replicas."""
        topics = self._image().topics.values()
        held = {node for topic in topics for each in topic.partitions for node in each.replicas}
        return {host.node_id for host in hosts if host.is_absent} & held

    async def end(self) -> None:
        """Ends the changes. One that has begun comes to its end without a crash, or once the faults have ended."""
        self._ended.set()
        if self._task is not None:
            waiting = asyncio.ensure_future(self._outlasted.wait())
            await asyncio.wait((self._task, waiting), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

    def is_done(self) -> bool:
        """True if no change is under way. Raises the error of a change that failed."""
        if self._task is not None and self._task.done():
            self._task.result()
        return self._task is None or self._task.done()

    async def _pause(self, seconds: float) -> bool:
        """Waits, and returns true if the changes have ended."""
        try:
            await asyncio.wait_for(self._ended.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _processes_of(self, machine: int) -> list[SimHost]:
        return sorted(
            (host for host in self._world.hosts.values() if host.machine_id == machine), key=lambda host: host.node_id
        )

    async def _change(self, hosts: Sequence[SimHost], wanted: int) -> None:
        """Stops the processes of a machine, moves their logs, and starts the machine with another number of them."""
        running = [host for host in hosts if not host.is_absent]
        self.held = hosts
        for host in hosts:
            host.is_protected = True
        try:
            struck = self._rng.choice(running) if self._rng.random() < KILL_CHANCE else None
            lost = self._choose_lost(hosts[wanted:])
            ends = await asyncio.gather(
                *(
                    host.end("kill") if host is struck else host.stop(then="disk" if host in lost else "kill")
                    for host in running
                )
            )
            count, order, awaited = await self._move_logs(hosts, wanted, ("kill", "power") if all(ends) else ("kill",))
            self._world.events.add(f"machine {hosts[0].machine_id} starts {count} processes, wanted are {wanted}")
            self.counts[f"to_{count}" if count == wanted else "stayed"] += 1
            for host in hosts[:count]:
                host.set_processes(count)
            for number, host in enumerate(hosts):
                host.is_absent = number >= count
            for number in order:
                await self._start(hosts[number], is_awaited=number in awaited)
        finally:
            self.held = ()
            for host in hosts:
                host.is_protected = False

    def _choose_lost(self, left_out: Sequence[SimHost]) -> Sequence[SimHost]:
        """Returns the processes that lose their disks now. They have replicas, so that they come back in the end."""
        is_lossy = self._loses_disks and self._loss_rng.random() < LOSS_CHANCE
        return left_out if is_lossy else ()

    async def _start(self, host: SimHost, *, is_awaited: bool) -> None:
        """Starts a process, perhaps with a kill or a power cut meanwhile, and waits until it serves. Its disk is not
        lost before: nobody would then take the place of the process that gave it its logs. `is_awaited`: that one
        starts after this one, however long this one takes, as the parent of real processes starts them."""
        host.power_on()
        if not self._ended.is_set() and self._rng.random() < CRASH_CHANCE:
            await asyncio.sleep(self._rng.choice(DOWN_SECONDS))
            how = self._rng.choice(("kill", "power"))
            self.counts[f"starts_{how}"] += 1
            await host.end(how)
            host.power_on()
        for _ in range(round(READY_SECONDS / 0.05)):
            if host.up:
                return
            await asyncio.sleep(0.05)
        if is_awaited:
            self._outlasted.set()
            while not host.up:
                await asyncio.sleep(0.05)
            self._outlasted.clear()

    async def _move_logs(
        self, hosts: Sequence[SimHost], wanted: int, crashes_by: Sequence[str]
    ) -> tuple[int, list[int], Collection[int]]:
        """Moves the logs in as many starts as it takes. Returns the number of processes, the order in which they start,
        and those that took logs. Each of these starts before the process that gave it the logs. A power cut is for
        processes that all stopped cleanly: it takes what another one did not fsync, which the model would not know
        of."""
        machine = join_directories({number: host.machine.disk.contents for number, host in enumerate(hosts)})
        contents, chosen = machine.whole, hosts[0].settings
        devices = dict.fromkeys(range(len(hosts)), 1)
        for crashes in range(CRASHES_MAX + 1):
            disk = SimDisk(self._rng, contents)
            start = processes.plan_start_on(disk, devices, chosen, wanted)
            ends = crashes < CRASHES_MAX and not self._ended.is_set() and self._rng.random() < CRASH_CHANCE
            done = await self._carry_out(disk, start, self._rng.randint(1, STEPS_MAX) if ends else 0)
            if start.journal is not None and not start.is_begun:
                self.counts["moved_logs"] += len(start.journal.moves)
                self._on_moves(chosen.node_id, start.journal.moves)
            if done:
                break
            how = self._rng.choice(crashes_by)
            self.counts[f"moves_{how}"] += 1
            contents = self._after(disk, how)
            await asyncio.sleep(self._rng.choice(DOWN_SECONDS))
        predecessors = processes.find_predecessors_on(SimDisk(self._rng, disk.contents), chosen, start.count)
        for number, part in split_directory(machine, disk.contents).items():
            hosts[number].machine.replace_contents(part)
        order: list[int] = []
        while len(order) < start.count:
            order.append(
                next(
                    each
                    for each in range(start.count)
                    if each not in order and predecessors.get(each, frozenset()) <= set(order)
                )
            )
        return start.count, order, frozenset[int]().union(*predecessors.values())

    async def _carry_out(self, disk: SimDisk, start: MachineStart, steps: int) -> bool:
        """Carries a start out, or ends it after so many changes of the disk. Returns true if it was carried out."""
        reached = asyncio.Event()

        def on_op(op: Op) -> None:
            if op.number == steps:
                disk.revoke()
                reached.set()

        disk.on_op = on_op
        moving = asyncio.ensure_future(processes.carry_out(disk, start))
        waiting = asyncio.ensure_future(reached.wait())
        await asyncio.wait((moving, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        ended = reached.is_set()
        if ended:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
        else:
            moving.result()
        disk.on_op = None
        return not ended

    def _after(self, disk: SimDisk, how: str) -> DurableBytes:
        """Returns what a kill or a power cut leaves of the directory of the machine."""
        return disk.contents if how == "kill" else disk.contents.crash_image(self._rng)


def node_of(machine: int, process: int) -> int:
    """Returns the node id of a process."""
    return machine + PROCESS_STEP * process
