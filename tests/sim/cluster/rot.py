"""Bit rot: one bit of a log flips while its machine is on and its broker is down. Every later read sees the flipped
bit.

The run demands what the design can promise. No acknowledged record is lost while one other replica that may lead has
it. No loss is reported then, and all replicas are in sync again in the end. So a bit flips only if another member of
ISR or ELR has all records and no other copy of that partition has rotted. It flips only in bytes that a start reads:
after a process death, the log from its last index entry on. Any bit may flip except those of a leader epoch, which
neither a CRC nor the neighbouring bytes cover.

The machine keeps its power until a start has read the log: after a power cut a start checks only bytes above the
fsynced end, where rot looks like a torn write. (With `flush=ack` the power stays until that start is over: after a
power cut it suspects only logs of other topics.) A replica or consumer that copies the bytes finds rot that no start
reads (docs/concepts/guarantees.md); a run would have to act as the operator there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import NamedTuple

from tests.sim.cluster.disk_logs import LOG_DIR
from tests.sim.cluster.model import ClusterModel
from tests.sim.cluster.model_of_copies import ModelOfCopies
from tests.sim.cluster.world import SimHost, SimWorld
from tests.sim.harness.durable_bytes import Folder, Inode
from tiered.hot.checkpoints import METADATA_FILE, encode_metadata
from tiered.ids import PartitionId, TopicId
from tiered.records.native import walk

MEAN_SECONDS = 4.0
LOOK_SECONDS = 0.1
DOWN_SECONDS = (0.01, 0.3, 2.0, 6.0)
OFFSET_BYTES, EPOCH_BYTES = range(8), range(12, 16)
"""Positions of the base offset and the leader epoch in a batch."""


class RotTarget(NamedTuple):
    """The log of one partition on one machine. `path` is its active segment, `synced` is true if its topic has
    `flush=ack`."""

    partition_id: PartitionId
    copies: ModelOfCopies
    synced: bool
    directory: str
    path: str


class BitRot:
    """Flips bits until it is cancelled. It draws from its own random stream; `count` has the number of flips."""

    def __init__(self, seed: int, world: SimWorld, model: ClusterModel) -> None:
        self.count = 0
        self._rng = random.Random(f"{seed}/rot-of-bits")
        self._world = world
        self._model = model

    async def work(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / MEAN_SECONDS))
            hosts = [
                host
                for host in self._world.hosts.values()
                if _is_page_cache_trusted(host) and [*self._targets_on(host)]
            ]
            if not hosts:
                continue
            host = self._rng.choice(hosts)
            await host.end("kill")
            places = [*self._targets_on(host)]  # others may have suffered in that moment
            place = self._rng.choice(places) if places and not host.machine.disk.failed else None
            if place is not None:
                host.is_protected, looked = True, place.copies.copy(host.node_id).open_count
                self._flip_bit(host, place)
            await asyncio.sleep(self._rng.choice(DOWN_SECONDS))
            host.power_on()
            if place is not None:
                await self._hold_until_opened(host, place, looked)

    async def _hold_until_opened(self, host: SimHost, place: RotTarget, looked: int) -> None:
        """Protects the machine until a start has read the log; if `synced` is set, until that start is over."""
        copies = place.copies
        copy = copies.copy(host.node_id)
        try:
            while not host.machine.disk.failed and (copy.open_count == looked or (place.synced and not host.up)):
                if copies.state is None or host.node_id not in copies.state.replicas:
                    return
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            host.is_protected = False

    def _targets_on(self, host: SimHost) -> Iterator[RotTarget]:
        image = self._model.image
        for partition_id, copies in self._model.copies.items():
            if (
                not self._model.is_modelled(partition_id)
                or copies.state is None
                or host.node_id not in copies.state.replicas
            ):
                continue
            others = [node for node in (*copies.state.isr, *copies.state.elr) if node != host.node_id]
            one_is_whole = any(copies.has_all_committed(node) for node in others)
            rotten = any(not copies.copy(node).is_provable for node in copies.state.replicas)
            directory = f"{image.topics_by_id[partition_id.topic_id].name}-{partition_id.partition}"
            path = self._active_segment(host, directory, partition_id.topic_id)
            if path and one_is_whole and not rotten and not copies.copy(host.node_id).is_removed:
                yield RotTarget(partition_id, copies, self._model.flush(partition_id) == {"ack"}, directory, path)

    def _active_segment(self, host: SimHost, directory: str, topic_id: TopicId) -> str:
        """Returns the segment that a start reads from its first byte on. "" if there is none, if it is empty, or if the
        log is of an earlier topic of this name, which a broker that acts late still has."""
        disk = host.machine.disk
        owner = disk._find(f"{LOG_DIR}/{directory}/{METADATA_FILE}")
        if not isinstance(owner, Inode) or bytes(owner.data) != encode_metadata(topic_id):
            return ""
        folder = disk._find(f"{LOG_DIR}/{directory}")
        names = sorted(name for name in folder.names if name.endswith(".log")) if isinstance(folder, Folder) else []
        if not names:
            return ""
        path = f"{LOG_DIR}/{directory}/{names[-1]}"
        data, index = disk._find(path), disk._find(path.removesuffix(".log") + ".index")
        indexed = isinstance(index, Inode) and len(index.data) > 0
        return path if isinstance(data, Inode) and walk(bytes(data.data), 0).batches and not indexed else ""

    def _flip_bit(self, host: SimHost, place: RotTarget) -> None:
        disk = host.machine.disk
        data = disk._find(place.path)
        assert isinstance(data, Inode)
        batch = self._rng.choice(walk(bytes(data.data), 0).batches)
        # No CRC covers the offset, and a compacted log may have any gap. So nothing shows a bit that flips there.
        spared = {*EPOCH_BYTES, *(OFFSET_BYTES if self._model.compacted_log(place.partition_id) else ())}
        byte = self._rng.choice([at for at in range(batch.size) if at not in spared])
        start, held = self._model.read_disk_log(place.partition_id, disk, place.directory)
        disk.flip_bit(place.path, 8 * (batch.position + byte) + self._rng.randrange(8))
        kept = [each for each in held if each.base < batch.base_offset]
        place.copies.on_damage(host.node_id, start, kept, host.lives, is_provable=False)
        self.count += 1
        self._world.events.add(f"rot: byte {byte} of the batch {batch.base_offset} of {place.path} of {host.name}")


def _is_page_cache_trusted(host: SimHost) -> bool:
    """True if the next start after a process death trusts the page cache."""
    node = host.node
    return host.idle and not host.frozen and host.up and node is not None and node.loss_reporter.directory_trusted
