"""Passes the replies of all clients of a run to the checkers, together with the true state at that moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.cluster import retries
from tests.sim.cluster.deleting import CommittedRange, RecordDeleter
from tests.sim.cluster.disk_logs import batches_of
from tests.sim.cluster.reply_checker import ReplyChecker
from tests.sim.cluster.senders import AckedBatch
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered_api.kafka.protocol.schema import Message

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun


class ReplyObserver:
    """Observes the requests and replies of all clients of a run. `retries` counts batches that were sent again, and
    acknowledged."""

    def __init__(self, run: ClusterRun) -> None:
        self.retries = 0
        self.reply_checker = ReplyChecker(run.partition_id, run.model.copies_of, run.sole_epoch, self._is_cut_off)
        self._run = run
        run.world.on_request, run.world.on_reply = self.reply_checker.note_request, self._on_reply

    def make_deleter(
        self,
        name: str = "deleter",
        partitions: Callable[[], list[TopicPartition]] | None = None,
        *,
        watches_joins: bool = False,
    ) -> RecordDeleter:
        """Returns an observed client that deletes records, of the topics of the run by default."""
        run = self._run
        client, asks = run.world.client(f"c-{name.removesuffix('r')}s"), run.expected.on_delete_requested
        return RecordDeleter(
            client, run.loop, partitions or run.own_partitions, self._committed_range, asks, self._on_records_deleted,
            name, watches_joins=watches_joins,
        )  # fmt: skip

    def on_resend(self, written: AckedBatch, node: int, code: Code, offset: int) -> None:
        """Records that an acknowledged batch was sent again."""
        run, send = self._run, written.send
        self.retries += 1
        partition_id = run.partition_id(send.tp)
        copies = run.model.copies.get(partition_id) if partition_id is not None else None
        if partition_id is not None and copies is not None:
            crc = batches_of(written.data)[0].crc
            batch, log = copies.committed.get(send.base_offset), run.model.compacted_log(partition_id)
            is_cleaned = batch is not None and log is not None and log.is_removed(batch)
            for finding in retries.check_retry(
                copies, node, send.base_offset, crc, send.invoked_ns, code, offset, is_cleaned=is_cleaned
            ):
                run.findings.report(*finding)

    def _is_cut_off(self, tp: TopicPartition, node_id: int | None) -> bool:
        """True if a broker leads a partition under an earlier epoch, and has no contact with the controller or is an
        earlier controller itself: that one reads in the log that it was replaced, about once a second."""
        node = self._run.world.hosts[node_id].node if node_id is not None else None
        if node is None or self._run.partition_id(tp) is None:
            return False
        image, active = self._run.model.image, node.cluster.active_controller
        is_replaced = active is not None and active.epoch < image.controller_epoch
        if node.cluster.has_controller_contact and not is_replaced:
            return False
        epoch = image.topics[tp.topic].partitions[tp.partition].leader_epoch
        return any(each.tp == tp and each.leader_epoch < epoch for each in node.leader_replicas())

    def is_coordinator(self, node: int) -> bool:
        """True if a broker considers itself the coordinator, ready or not."""
        known = self._run.world.hosts[node].node
        return known is not None and bool(known.group_coordinators.host.led_partitions)

    def _on_reply(self, request: Message, answer: Message, node: int | None, before: Any, requested_ns: int) -> None:
        """Checks a reply to any client."""
        for finding in self.reply_checker.check_reply(request, answer, node, before, requested_ns):
            self._run.findings.report(*finding)

    def _on_records_deleted(self, tp: TopicPartition, start: int) -> None:
        """Records a reply to DeleteRecords."""
        run = self._run
        self.reply_checker.on_records_deleted(tp, run.loop.now_ns, start)
        for finding in run.expected.on_records_deleted(tp, start):
            run.findings.report(*finding)

    def _committed_range(self, tp: TopicPartition) -> CommittedRange:
        """Returns the committed range of a partition, its leader, and brokers that still believe that they lead it."""
        run = self._run
        partition_id = run.partition_id(tp)
        if partition_id is None:
            return CommittedRange(0, 0, [], [], True)
        topic = run.model.image.topics[tp.topic]
        copies, now = run.model.copies_of(partition_id), topic.partitions[tp.partition]
        led = [
            (host.node_id, each) for host, node in run.world.nodes() for each in node.leader_replicas() if each.tp == tp
        ]
        deposed = [node for node, each in led if each.leader_epoch < now.leader_epoch]
        is_joined = any(not each.state._proposed <= each.state.isr for _, each in led)
        leads = [now.leader] if now.leader >= 0 else []
        tiered = topic.configs.get("remote.storage.enable") != "false"
        return CommittedRange(copies.log_start, copies.committed_end, leads, deposed, tiered, is_joined)
