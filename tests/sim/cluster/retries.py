"""I11 for retries: a retry gets the offset of its first try, and writes nothing.

A leader keeps the last five batches of a producer, as far as it can know them after a start: those that its log still
has, or all if the log began at the cold end. The check judges replies of the leader of the metadata log about batches
that are committed and not lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.cluster.model_of_copies import ModelOfCopies
from tests.sim.cluster.observer import Finding
from tiered.errors import Code


def check_retry(
    copies: ModelOfCopies,
    node: int,
    first: int,
    crc: int,
    since_ns: int,
    code: Code,
    offset: int,
    *,
    is_cleaned: bool = False,
) -> Iterator[Finding]:
    """Checks the reply of `node` to a repeated batch with this `crc` that was acknowledged at `first`. The batch was
    first sent at `since_ns`. If a clean removed the batch (`is_cleaned`), a start need not know it."""
    batch, copy = copies.committed.get(first), copies.copy(node)
    if batch is None or batch.crc != crc or first < copies.log_start or copies.may_be_gone(first, since_ns):
        return
    if copies.state is None or copies.state.leader != node:
        return  # who was deposed and does not know it may lack what was written since
    if code is Code.NONE:
        if offset != first:
            yield Finding("I11", f"{copies.name}: the retry of the batch at {first} is told {offset} by b{node}")
    elif not is_cleaned and (copy.began_behind_cold or first >= copy.start):
        where = "which began behind the bucket" if copy.began_behind_cold else f"whose log begins at {copy.start}"
        yield Finding(
            "I11", f"{copies.name}: the retry of the batch at {first} is told {code.name} by b{node}, {where}"
        )
