"""What clients of a run are told, handed to who judges it with what is true in that moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sim.cluster import retries
from tests.sim.cluster.deleting import Deleter, Extent
from tests.sim.cluster.model import batches_of
from tests.sim.cluster.senders import Written
from tests.sim.cluster.told import Told
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered_api.kafka.protocol.schema import Message

if TYPE_CHECKING:
    from tests.sim.cluster.run import Run


class Hearing:
    """Hears all clients of a run. `retries` counts batches that were sent again, and answered."""

    def __init__(self, run: Run) -> None:
        self.retries = 0
        self.told = Told(run.pid, run.truth.of, run.sole_epoch)
        self._run = run
        run.world.asks, run.world.heard = self.told.before, self._answered

    def deleter(self) -> Deleter:
        """A client that deletes records, and is heard."""
        run = self._run
        client, asks = run.world.client("c-deletes"), run.expected.asks_to_delete
        return Deleter(client, run.loop, run.own_partitions, self._extent, asks, self._deleted)

    def repeated(self, written: Written, node: int, code: Code, offset: int) -> None:
        """A batch that was acknowledged was sent again."""
        run, send = self._run, written.send
        self.retries += 1
        pid = run.pid(send.where)
        copies = run.truth.copies.get(pid) if pid is not None else None
        if copies is not None:
            crc = batches_of(written.data)[0].crc
            for finding in retries.answered(copies, node, send.base_offset, crc, send.invoked_ns, code, offset):
                run.findings.red(*finding)

    def coordinates(self, node: int) -> bool:
        """Whether a broker takes itself for a coordinator, ready or not."""
        known = self._run.world.hosts[node].node
        return known is not None and bool(known.group_coordinators._led_partitions)

    def _answered(self, request: Message, answer: Message, node: int | None, before: Any, asked_ns: int) -> None:
        """Any client was told something."""
        for finding in self.told.heard(request, answer, node, before, asked_ns):
            self._run.findings.red(*finding)

    def _deleted(self, where: TopicPartition, start: int) -> None:
        """DeleteRecords was answered."""
        run = self._run
        self.told.deleted(where, run.loop.now_ns, start)
        for finding in run.expected.records_deleted(where, start):
            run.findings.red(*finding)

    def _extent(self, where: TopicPartition) -> Extent:
        """What is committed of a partition, and who leads it or believes so."""
        run = self._run
        pid = run.pid(where)
        if pid is None:
            return Extent(0, 0, [], [], True)
        topic = run.truth.image.topics[where.topic]
        copies, now = run.truth.of(pid), topic.partitions[where.partition]
        deposed = [
            host.node_id
            for host, node in run.world.nodes()
            for each in node.leader_replicas()
            if each.at == where and each.leader_epoch < now.leader_epoch
        ]
        leads = [now.leader] if now.leader >= 0 else []
        tiered = topic.configs.get("remote.storage.enable") != "false"
        return Extent(copies.log_start, copies.committed_end, leads, deposed, tiered)
