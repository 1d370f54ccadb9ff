"""The rules of possible losses: when a loss is due to be reported, and what falls back because of it (R1, R4, R5).

A loss has a leader epoch and an offset: records of earlier epochs may be missing from that offset on. Later records get
the offsets of the lost ones, so the end of the log alone tells nothing. Each rule goes by the state of the cluster, and
not by the event of a report: a report that a broker missed changes nothing, and a rule that is applied twice neither.

- A committed offset with a leader epoch falls to the lowest loss of a later epoch (`find_limit`).
- A committed offset without one falls if it was certainly committed before the loss was known here (`find_limit`).
- A transactional id gets a new producer if its state may be older than the loss (`find_renewal`).
- The metadata log gets a loss that it lacks, and a smaller one once the bucket has more (`is_unreported`,
  `is_overstated`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tiered.metadata.parts.topics import Loss

ANY_EPOCH = 1 << 31
"""Later than every leader epoch."""
ANY_TIME = 1 << 62
"""Later than every time (ms)."""


class OffsetLimit(NamedTuple):
    """Offsets above `end` with an earlier leader epoch than `leader_epoch`, or with none, are those of lost records."""

    end: int
    leader_epoch: int


class LedSinceLoss(NamedTuple):
    """A partition that this broker leads since it lost records: all from `epoch_start` on are new.

    The broker leads since it applied the slot `led_since_slot` of the metadata.
    """

    leader_epoch: int
    epoch_start: int
    log_end: int
    led_since_slot: int


def find_limit(
    committed_epoch: int,
    losses: Iterable[Loss],
    new_losses: Sequence[Loss],
    led: LedSinceLoss | None,
    loaded_before_slot: int | None = None,
) -> OffsetLimit | None:
    """Returns the limit of a committed offset; None if no loss concerns it.

    `losses` are those that nobody acknowledged. `new_losses` became known after the offset was committed, or just
    before: a consumer that reads a few records again loses nothing. `loaded_before_slot`: the offset was loaded, and
    committed before this broker had applied that slot.

    An offset with a leader epoch is limited by each loss of a later epoch. An offset without one (-1) is limited by the
    new losses. Without new losses it is limited only at a load, if this broker leads the partition since the loss. The
    limit is then the epoch start if this broker did not lead the partition before `loaded_before_slot`, else the log
    end: the offset may be one of a new record.

    A loss from offset 0 sets no limit, because the controller did not know the end of the leader's log. If this broker
    leads since a loss, its epoch start replaces that loss.
    """
    if committed_epoch < 0:
        losses = ()
        if not new_losses and led is not None and loaded_before_slot is not None:
            is_older = led.led_since_slot >= loaded_before_slot
            return OffsetLimit(led.epoch_start, led.leader_epoch) if is_older else OffsetLimit(led.log_end, ANY_EPOCH)
        if not new_losses:
            return None
    here = OffsetLimit(led.epoch_start, led.leader_epoch) if led is not None else None
    until = led.leader_epoch if led is not None else ANY_EPOCH
    limits = [
        OffsetLimit(each.from_offset, each.leader_epoch)
        for each in (*losses, *new_losses)
        if max(committed_epoch, 0) < each.leader_epoch < until and each.from_offset
    ]
    return min([*limits, here] if here is not None else limits, default=None)


def find_new_losses(known: Sequence[Loss], losses: Sequence[Loss]) -> list[Loss]:
    """Returns the losses of a partition that an earlier image has not: the later ones, and the newest known one if its
    offset changed. The image merges the oldest of too many losses (`add_loss`), and no such loss is new."""
    last = known[-1] if known else None
    return [
        each
        for each in losses
        if last is None
        or each.leader_epoch > last.leader_epoch
        or (each.leader_epoch == last.leader_epoch and each.from_offset != last.from_offset)
    ]


def find_renewal(loss: Loss | None, leader_epoch: int, *, is_part_lost: bool, is_renewed: bool) -> int | None:
    """Returns the time (ms) up to which changed transactional ids of a coordinator get new producers; None: none does.

    All of them do if the log lost records with this leader epoch, or if a part of the state is lost (`is_part_lost`).
    `is_renewed`: that has happened in this epoch. After an earlier loss, ids do that are no newer than it.
    """
    if (is_part_lost or (loss is not None and loss.leader_epoch == leader_epoch)) and not is_renewed:
        return ANY_TIME
    return loss.at_ms if loss is not None else None


def is_unreported(reported: Loss | None, leader_epoch: int, epoch_start: int) -> bool:
    """True if the metadata log does not have the loss of all records from the start of a leader epoch on."""
    return reported is None or reported.leader_epoch < leader_epoch or reported.from_offset > epoch_start


def is_overstated(reported: Loss | None, leader_epoch: int, cold_end: int) -> bool:
    """True if the loss of a leader epoch covers records that were in the bucket, up to `cold_end`, when it started.

    The controller that recorded the loss did not know what the bucket had.
    """
    return reported is not None and reported.leader_epoch == leader_epoch and reported.from_offset < cold_end
