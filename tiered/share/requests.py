"""Requests to a share coordinator about one share partition each, and its replies."""

from __future__ import annotations

from typing import NamedTuple

from tiered.errors import Code
from tiered.ids import TopicId
from tiered.share.state import UNINITIALIZED_OFFSET, StateBatch
from tiered.value import value

NO_EPOCH = -1
"""Leader epoch of a reader that leads nothing: it fences nobody."""
NO_COUNT = -1
"""Delivery complete count that is not known."""


class SharePartitionKey(NamedTuple):
    """One partition of one topic for one share group."""

    group: str
    topic_id: TopicId
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The text whose partition of `__share_group_state` coordinates the share partition, as in Kafka."""
        return f"{self.group}:{self.topic_id}:{self.partition}"


@value
class InitializeState:
    """Begins a share partition, or begins it again under a higher state epoch. The state before is gone."""

    key: SharePartitionKey
    state_epoch: int
    start_offset: int


@value
class ReadState:
    """Reads the state for a leader. Its leader epoch fences all writes of earlier leaders."""

    key: SharePartitionKey
    leader_epoch: int


@value
class WriteState:
    """Adds what a leader has changed. `start_offset` is UNINITIALIZED_OFFSET where that is not changed."""

    key: SharePartitionKey
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


@value
class DeleteState:
    """Removes a share partition. One that does not exist is removed already."""

    key: SharePartitionKey


@value
class SummarizeState:
    """Reads the state without its batches."""

    key: SharePartitionKey


@value
class TopicsDeleted:
    """Topics are gone, and the share partitions of these with them."""

    topic_ids: frozenset[TopicId]


@value
class StateReply:
    """The outcome of a change. `why` is empty for the code NONE."""

    code: Code = Code.NONE
    why: str = ""


@value
class ReadReply:
    """The state of a share partition."""

    code: Code = Code.NONE
    why: str = ""
    state_epoch: int = 0
    start_offset: int = UNINITIALIZED_OFFSET
    batches: tuple[StateBatch, ...] = ()


@value
class SummaryReply:
    """The state of a share partition without its batches."""

    code: Code = Code.NONE
    why: str = ""
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = UNINITIALIZED_OFFSET
    delivery_complete_count: int = NO_COUNT


KeyedRequest = InitializeState | ReadState | WriteState | DeleteState | SummarizeState
"""A request about one share partition."""
Request = KeyedRequest | TopicsDeleted
Reply = StateReply | ReadReply | SummaryReply
