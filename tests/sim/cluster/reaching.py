"""I19: once all heals, groups come to rest and who reads gets to the end, while everybody still works.

The end is what was committed when all had healed: senders go on meanwhile.
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
    """Lets time pass until everybody has read all of it."""
    ends = {
        where: run.model.copies_of(pid).committed_end for where in run.own_partitions() if (pid := run.partition_id(where)) is not None
    }
    members = [each for each in run.clients if isinstance(each, GroupMember)]
    readers = [each for each in run.clients if isinstance(each, StandaloneReader)]
    for member in members:
        member.stays = True
    for reader in readers:
        reader.stays = True
    if members:
        wanted = [where for where in ends if where.topic == run.options.topics[0].name]
        await run.wait_until(
            lambda: not any(find_unowned([member.positions() for member in members], wanted)),
            REBALANCED_SECONDS, "every partition of the group has an owner",
        )  # fmt: skip
        await run.wait_until(
            lambda: not any(find_behind(_merge_positions(members), {where: ends[where] for where in wanted})),
            REACHED_SECONDS, "the group reads to the end",
        )  # fmt: skip
    await run.wait_until(
        lambda: not any(where for reader in readers for where in find_behind(reader.positions(), ends)),
        REACHED_SECONDS, "every reader reads to the end",
    )  # fmt: skip


def find_unowned(owned: list[dict[TopicPartition, int]], wanted: list[TopicPartition]) -> Iterator[TopicPartition]:
    """What not exactly one has."""
    return (where for where in wanted if sum(where in each for each in owned) != 1)


def find_behind(positions: Ends, ends: Ends) -> Iterator[TopicPartition]:
    """What is not read to the end."""
    return (where for where, end in ends.items() if positions.get(where, -1) < end)


def _merge_positions(members: list[GroupMember]) -> dict[TopicPartition, int]:
    return {where: offset for member in members for where, offset in member.positions().items()}
