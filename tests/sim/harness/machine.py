"""One simulated machine: the ports of its processes, and the faults of process, power and disk."""

from __future__ import annotations

from tests.sim.harness.clock import SimClock, SimRng
from tests.sim.harness.disk import SimDisk
from tests.sim.harness.durable_bytes import DurableBytes
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.network import SimNetwork
from tests.sim.harness.store import SimBucket
from tiered.object_store.faulty import Faults
from tiered.ports import World


class SimMachine:
    """A host with a clock, a disk and a connection to the bucket. Each process on it gets a `World` of its own.

    A crash is not a cancel: `kill` and the like revoke the ports of the process first, so that its `finally` blocks
    have no effect; then the caller cancels its tasks.
    """

    def __init__(self, loop: SimLoop, name: str, bucket: SimBucket, network: SimNetwork) -> None:
        self.name = name
        self.clock = SimClock(loop)
        self.faults = Faults(random=SimRng(f"{loop.seed}/{name}").stream("store-faults"))
        self._bucket = bucket
        self._network = network
        self._rng = SimRng(f"{loop.seed}/{name}")
        self.disk = SimDisk(self._rng.stream("disk"))
        self.store = bucket.store(self.faults, self.clock)
        self._processes = 0

    def process(self) -> World:
        """Returns the ports of a new process. The one before must be gone."""
        self._network.power_on(self.name)
        self._processes += 1
        self.store = self._bucket.store(self.faults, self.clock)
        rng = SimRng(f"{self._rng.seed}/{self._processes}")
        store = self._bucket.wrap(self.store, self.clock)
        return World(self.clock, rng, self.disk, store, self._network.host(self.name))

    def replace_contents(self, contents: DurableBytes) -> None:
        """Gives the next process a directory with these contents. The process before must be gone."""
        self.disk = self._keep_conditions(SimDisk(self._rng.stream("disk"), contents))

    def kill(self) -> None:
        """Kills the process; the page cache survives. The system is up and resets the connections of the peers."""
        self._revoke_store()
        self._network.reset(self.name)
        self.disk = self._keep_conditions(self.disk.after_kill())

    def power_cut(self) -> None:
        """Takes process and page cache, and no peer is notified; the disk has one of the images that this may leave."""
        self._revoke_store()
        self._network.power_off(self.name)
        self.disk = self._keep_conditions(self.disk.after_power_cut())

    def lose_disk(self) -> None:
        """Takes the machine silently; another one of its name starts with an empty directory."""
        self._revoke_store()
        self._network.power_off(self.name)
        self.disk.revoke()
        self.disk = self._keep_conditions(SimDisk(self._rng.stream("disk")))

    def _keep_conditions(self, disk: SimDisk) -> SimDisk:
        """Copies the conditions of the machine to the ports of its next process."""
        disk.capacity, disk.sync_seconds, disk.faults = self.disk.capacity, self.disk.sync_seconds, self.disk.faults
        return disk

    def _revoke_store(self) -> None:
        self.store.revoke()
