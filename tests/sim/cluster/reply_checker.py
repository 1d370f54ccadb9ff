"""I21, I22 at the moment of a reply: the beginning of a partition as clients see it.

Once DeleteRecords was acknowledged, no later request returns a record below its offset, nor a log start below it. And
no request for a readable offset gets OFFSET_OUT_OF_RANGE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.sim.cluster.model_of_copies import ModelOfCopies
from tests.sim.cluster.observer import Finding
from tiered.errors import Code
from tiered.ids import PartitionId, TopicPartition
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.client.leader_routing import EARLIEST
from tiered_api.kafka.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from tiered_api.kafka.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tiered_api.kafka.protocol.schema import Message

_BASE, _DELTA = slice(0, 8), slice(23, 27)
"""Positions of the base offset and of the last offset delta in a batch."""


@dataclass
class DeletionReplies:
    """Acknowledged deletions: (ns, offset, epoch of the last unclean election or -1)."""

    replies: list[tuple[int, int, int]] = field(default_factory=list)

    def on_reply(self, at_ns: int, offset: int, unclean_epoch: int) -> None:
        if not self.replies or offset > self.replies[-1][1] or unclean_epoch != self.replies[-1][2]:
            self.replies.append((at_ns, offset, unclean_epoch))

    def start_before(self, at_ns: int, unclean_epoch: int) -> int:
        """Returns the highest offset of a deletion that was acknowledged by then and after the unclean election of that
        epoch. A leader of an unclean election may lack a deletion as it lacks records."""
        answers = self.replies
        return max(
            (offset for told_ns, offset, after in answers if told_ns <= at_ns and after >= unclean_epoch), default=0
        )


class ReplyChecker:
    """Checks each reply to a client. A log that is lost as a whole begins again, below deleted records.

    `copies` returns the model of a partition by its present name, `sole` the epoch of its leader while no other broker
    can reply for it, else -1. `is_cut_off` returns True if a broker leads a partition under an earlier epoch and cannot
    know of the next one. Such a leader shows the log as it was.
    """

    def __init__(
        self,
        pid: Callable[[TopicPartition], PartitionId | None],
        copies: Callable[[PartitionId], ModelOfCopies],
        sole_epoch: Callable[[TopicPartition], int],
        is_cut_off: Callable[[TopicPartition, int | None], bool],
    ) -> None:
        self.checked = 0
        """Number of checked replies about partitions with an acknowledged deletion."""
        self._deletions: dict[PartitionId, DeletionReplies] = {}
        self._pid = pid
        self._copies = copies
        self._sole_epoch = sole_epoch
        self._is_cut_off = is_cut_off

    def on_records_deleted(self, tp: TopicPartition, at_ns: int, offset: int) -> None:
        """Records an acknowledged deletion with this log start."""
        partition_id = self._pid(tp)
        if partition_id is not None:
            # A leader that may not know that election did it before the election.
            parted = self._copies(partition_id).parted if self._sole_epoch(tp) >= 0 else -1
            self._deletions.setdefault(partition_id, DeletionReplies()).on_reply(at_ns, offset, parted)

    def deleted_below(self, tp: TopicPartition, at_ns: int) -> int:
        """Returns the offset below which records stay deleted, by the replies until then."""
        partition_id = self._pid(tp)
        known = self._deletions.get(partition_id) if partition_id is not None else None
        if partition_id is None or known is None:
            return 0
        return known.start_before(at_ns, self._copies(partition_id).parted_uncold)

    def note_request(self, request: Message) -> dict[TopicPartition, tuple[int, int]]:
        """Returns the state at the time of a request, for `check_reply`: for each fetched partition, its sole leader
        epoch and the fetch offset."""
        if type(request) is not FetchRequest:
            return {}
        known = {}
        for topic in request.topics:
            for each in topic.partitions:
                tp = TopicPartition(topic.topic, each.partition)
                known[tp] = self._sole_epoch(tp), each.fetch_offset
        return known

    def check_reply(
        self,
        request: Message,
        answer: Message,
        node: int | None,
        before: dict[TopicPartition, tuple[int, int]],
        requested_ns: int,
    ) -> Iterator[Finding]:
        """Checks the reply of `node` to a request that was sent at `requested_ns`."""
        if type(answer) is FetchResponse:
            for topic in answer.responses:
                for part in topic.partitions:
                    tp = TopicPartition(topic.topic, part.partition_index)
                    if tp in before:
                        yield from self._check_fetch(tp, part, node, *before[tp], requested_ns)
        elif type(answer) is ListOffsetsResponse and _is_earliest(request):
            for told in answer.topics:
                for each in told.partitions:
                    if not each.error_code:
                        tp = TopicPartition(told.name, each.partition_index)
                        yield from self._check_start(tp, node, each.offset, requested_ns, "ListOffsets")

    def _check_start(
        self, tp: TopicPartition, node: int | None, start: int, asked_ns: int, who: str
    ) -> Iterator[Finding]:
        partition_id = self._pid(tp)
        known = self._deletions.get(partition_id) if partition_id is not None else None
        if partition_id is not None and known is not None:
            self.checked += 1
            if self._is_shown_again(partition_id, tp, node, start, asked_ns):
                yield Finding("I22", f"{tp}: {who} says that it starts at {start}, {known.replies[-1]} was told")

    def _check_fetch(
        self, tp: TopicPartition, part: PartitionData, node: int | None, sole: int, offset: int, asked_ns: int
    ) -> Iterator[Finding]:
        if code_from_number(part.error_code) is Code.OFFSET_OUT_OF_RANGE:
            yield from self._check_out_of_range(tp, node, sole, offset)
        if part.error_code:
            return
        if part.log_start_offset >= 0:
            yield from self._check_start(tp, node, part.log_start_offset, asked_ns, "a fetch")
        partition_id = self._pid(tp)
        known = self._deletions.get(partition_id) if partition_id is not None else None
        if partition_id is not None and known is not None and part.records is not None and len(part.records):
            head = bytes(part.records[:27])
            last = int.from_bytes(head[_BASE], "big") + int.from_bytes(head[_DELTA], "big")
            if self._is_shown_again(partition_id, tp, node, last, asked_ns):
                yield Finding("I22", f"{tp}: a fetch from {offset} gives {last}, {known.replies[-1]} was told")

    def _is_shown_again(
        self, partition_id: PartitionId, tp: TopicPartition, node: int | None, offset: int, asked_ns: int
    ) -> bool:
        """True if `node` replied with an offset that a deletion took before the request."""
        return (
            offset < self.deleted_below(tp, asked_ns)
            and not self._copies(partition_id).may_be_gone(offset, 0)
            and not self._is_cut_off(tp, node)
        )

    def _check_out_of_range(self, tp: TopicPartition, node: int | None, sole: int, offset: int) -> Iterator[Finding]:
        """Checks replies of the sole leader only: a deposed one may lack later records, and a follower sends requests
        for records that are not on its disk to the leader (KIP-392), until it leads itself."""
        partition_id = self._pid(tp)
        if partition_id is None or sole < 0 or sole != self._sole_epoch(tp):
            return
        copies = self._copies(partition_id)
        if (
            copies.state is None
            or copies.state.leader != node
            or not copies.has_leader_begun(copies.state.leader_epoch)
        ):
            return
        if copies.log_start <= offset <= copies.committed_end and not copies.may_be_gone(offset, 0):
            start, end = copies.log_start, copies.committed_end
            yield Finding("I21", f"{tp}: who asks for {offset} is sent away, from {start} to {end} it may be read")


def _is_earliest(request: Message) -> bool:
    """True if the request asks for the earliest offset: of all its partitions, or of none."""
    asked = (
        [each for topic in request.topics for each in topic.partitions] if type(request) is ListOffsetsRequest else []
    )
    return bool(asked) and asked[0].timestamp == EARLIEST
