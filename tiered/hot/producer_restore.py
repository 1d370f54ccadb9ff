"""The producer state of a log from a snapshot that the bucket or a leader has (R5).

A log that begins above offset 0 may lack the producers of the records below. Their snapshot comes from elsewhere, and
the local log is replayed on top of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiered.hot.log_writer import LogWriter
from tiered.hot.producer_recovery import replay_producers
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates
from tiered.records.model import WalkedBatch


def decode_producers(writer: LogWriter, offset: int, snapshot: bytes, where: str) -> ProducerStates:
    """Returns the state at `offset` in a snapshot. The limits that all logs share count its producers once the log
    takes the state. Raises `Corrupt`."""
    limits = ProducerLimits(writer.producer_limits.per_partition)
    return ProducerStates.from_snapshot(snapshot, offset, limits, where=where)


def restore_producers(
    writer: LogWriter, offset: int, snapshot: bytes | None, batches: Iterable[WalkedBatch], where: str
) -> None:
    """Completes the producer state of a log from the snapshot that the bucket has at `offset`, and the batches that
    follow in this log. `batches` are older ones.

    Without a snapshot nobody knows the missing producers. The state then counts as complete. Raises `Unavailable`.
    """
    known = writer.producers
    if snapshot is not None:
        states = decode_producers(writer, offset, snapshot, where)
        states.restore_batches(batches)
        replay_producers(writer.files, writer.segments, states, writer.end_offset, offset)
        states.restore_window(known)
        states.restore_others(known)
        writer.replace_producers(states)
    known.is_incomplete = False
    writer.take_snapshot()
