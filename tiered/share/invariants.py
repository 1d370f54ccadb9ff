"""A check of all that must hold between two steps of a share partition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tiered.share.in_flight import NO_WRITE
from tiered.share.partition import SharePartition
from tiered.share.state import RecordState


def find_violations(partition: SharePartition) -> Iterator[str]:
    """Yields a sentence for each broken rule."""
    runs, at = partition.in_flight.runs, partition.start_offset
    for run in runs:
        if run.first_offset != at or run.last_offset < at:
            yield f"a run has {run.first_offset} to {run.last_offset}, and {at} is the next offset"
        at = run.last_offset + 1
        is_acquired = run.state is RecordState.ACQUIRED
        if is_acquired is not bool(run.member_id) or is_acquired is not bool(run.lock_until_ms):
            yield f"{run.first_offset} is {run.state.name}, with member {run.member_id!r}, lock {run.lock_until_ms}"
        if run.write_id != NO_WRITE and not is_acquired:
            yield f"{run.first_offset} is {run.state.name}, and write {run.write_id} is about to change that"
        if is_acquired and run.delivery_count == 0:
            yield f"{run.first_offset} is acquired, and was never delivered"
        if run.is_held and (partition.next_due_ms is None or partition.next_due_ms > run.lock_until_ms):
            yield f"the lock of {run.first_offset} runs out at {run.lock_until_ms}, after {partition.next_due_ms}"
    if at != partition.end_offset:
        yield f"the runs end at {at}, and the share partition at {partition.end_offset}"
    if runs and runs[0].state.is_terminal:
        yield f"{runs[0].first_offset} is {runs[0].state.name} at the start"
    for one, other in pairwise(runs):
        if one.is_like(other):
            yield f"{one.first_offset} and {other.first_offset} begin runs that are one"
    available = next((run.first_offset for run in runs if run.state is RecordState.AVAILABLE), partition.end_offset)
    if partition.next_fetch_offset != available:
        yield f"{available} is available, and {partition.next_fetch_offset} is the next fetch offset"
