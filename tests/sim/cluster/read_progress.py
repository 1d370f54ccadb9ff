"""I19: after all faults, groups come to rest and readers reach the end, while all clients still work.

The end is the committed end at the end of the faults: senders continue meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tests.sim.cluster.members import REBALANCE_MS, GroupMember
from tests.sim.cluster.readers import StandaloneReader
from tiered.ids import TopicPartition

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun

REBALANCED_SECONDS = 2 * REBALANCE_MS / 1000
REACHED_SECONDS = 30.0
Ends = Mapping[TopicPartition, int]


async def wait_until_read(run: ClusterRun) -> None:
    """Lets time pass until every reader has read everything."""
    ends = {
        tp: run.model.copies_of(partition_id).committed_end
        for tp in run.own_partitions()
        if (partition_id := run.partition_id(tp)) is not None
    }
    members = [each for each in run.clients if isinstance(each, GroupMember)]
    readers = [each for each in run.clients if isinstance(each, StandaloneReader)]
    for member in members:
        member.stays = True
    for reader in readers:
        reader.stays = True
    if members:
        wanted = [tp for tp in ends if tp.topic in run.options.subscription]
        await run.wait_until(
            lambda: not any(find_unowned([member.positions() for member in members], wanted)),
            REBALANCED_SECONDS, "every partition of the group has an owner",
        )  # fmt: skip
        await run.wait_until(
            lambda: not any(find_behind(_merge_positions(members), {tp: ends[tp] for tp in wanted})),
            REACHED_SECONDS, "the group reads to the end",
        )  # fmt: skip
    await run.wait_until(
        lambda: not any(tp for reader in readers for tp in find_behind(reader.positions(), ends)),
        REACHED_SECONDS, "every reader reads to the end",
    )  # fmt: skip


def find_unowned(owned: list[dict[TopicPartition, int]], wanted: list[TopicPartition]) -> Iterator[TopicPartition]:
    """Yields the partitions that do not have exactly one owner."""
    return (tp for tp in wanted if sum(tp in each for each in owned) != 1)


def find_behind(positions: Ends, ends: Ends) -> Iterator[TopicPartition]:
    """Yields the partitions that are not read to the end."""
    return (tp for tp, end in ends.items() if positions.get(tp, -1) < end)


def _merge_positions(members: list[GroupMember]) -> dict[TopicPartition, int]:
    return {tp: offset for member in members for tp, offset in member.positions().items()}
