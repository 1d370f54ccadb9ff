"""I19: after all faults, groups come to rest and readers reach the end, while all clients still work.

The end is the committed end at the end of the faults: senders continue meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tests.sim.cluster.consumers import Consumer
from tests.sim.cluster.members import REBALANCE_MS, GroupMember
from tests.sim.cluster.readers import StandaloneReader
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun

REBALANCED_SECONDS = 2 * REBALANCE_MS / 1000
COORDINATOR_MOVES_MAX = 20
REACHED_SECONDS = 30.0
DRAINED_SECONDS = 60.0
"""Time in which consumers that were left end, and one reads all that the group has not read."""
Ends = Mapping[TopicPartition, int]


async def wait_until_read(run: ClusterRun) -> None:
    """Lets time pass until every reader has read everything."""
    ends = {
        tp: run.model.copies_of(partition_id).committed_end
        for tp in run.own_partitions()
        if (partition_id := run.partition_id(tp)) is not None
    }
    members = [each for each in run.clients if isinstance(each, GroupMember)]
    consumers = [each for each in run.clients if isinstance(each, Consumer)]
    readers = [each for each in run.clients if isinstance(each, StandaloneReader)]
    for member in members:
        member.stays = True
    for consumer in consumers:
        consumer.stays = True
    for reader in readers:
        reader.stays = True
    if run.rest is not None:
        run.rest.begin_drain(ends)
    for group in (members, consumers):
        if group:
            await _wait_read_by_group(run, group, ends)
    if (rest := run.rest) is not None:
        await run.wait_until(
            lambda: not any(find_behind(rest.positions, ends)), DRAINED_SECONDS, "a REST consumer reads to the end"
        )
    await run.wait_until(
        lambda: not any(tp for reader in readers for tp in find_behind(reader.positions(), ends)),
        REACHED_SECONDS, "every reader reads to the end",
    )  # fmt: skip


async def _wait_read_by_group(run: ClusterRun, members: Sequence[GroupMember] | Sequence[Consumer], ends: Ends) -> None:
    wanted = [tp for tp in ends if tp.topic in run.options.subscription]
    await _wait_rebalanced(run, lambda: not any(find_unowned([each.positions() for each in members], wanted)))
    await run.wait_until(
        lambda: not any(find_behind(_merge_positions(members), {tp: ends[tp] for tp in wanted})),
        REACHED_SECONDS, "the group reads to the end",
    )  # fmt: skip


async def _wait_rebalanced(run: ClusterRun, is_rebalanced: Callable[[], bool]) -> None:
    """Lets time pass until the group is at rest. Each move of its coordinator begins the rebalance anew."""
    for _ in range(COORDINATOR_MOVES_MAX):
        epoch = _coordinator_epoch(run)

        def is_over(epoch: int = epoch) -> bool:
            return is_rebalanced() or _coordinator_epoch(run) != epoch

        await run.wait_until(is_over, REBALANCED_SECONDS, "every partition of the group has an owner")
        if is_rebalanced():
            return
    raise AssertionError(f"liveness: the coordinator of the group moved {COORDINATOR_MOVES_MAX} times")


def _coordinator_epoch(run: ClusterRun) -> int:
    offsets = run.model.image.topics.get(OFFSETS_TOPIC)
    return offsets.partitions[0].leader_epoch if offsets is not None else -1


def find_unowned(owned: list[dict[TopicPartition, int]], wanted: list[TopicPartition]) -> Iterator[TopicPartition]:
    """Yields the partitions that do not have exactly one owner."""
    return (tp for tp in wanted if sum(tp in each for each in owned) != 1)


def find_behind(positions: Ends, ends: Ends) -> Iterator[TopicPartition]:
    """Yields the partitions that are not read to the end."""
    return (tp for tp, end in ends.items() if positions.get(tp, -1) < end)


def _merge_positions(members: Sequence[GroupMember] | Sequence[Consumer]) -> dict[TopicPartition, int]:
    return {tp: offset for member in members for tp, offset in member.positions().items()}
