"""The time at which a broker becomes a candidate for controller (M4): it queries the other brokers first.

Pure; times are milliseconds. A wrong decision costs a change of controller and never a record: the slot in the metadata
log decides (M2, `election`). A lost controller is replaced in bounded time (I19).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

RANK_DELAY_MS = 150
"""Delay between two candidates that lost the same controller: the first has the slot before the next one tries."""
RETRY_MS = 500
ISOLATED_TIMEOUTS, ISOLATED_SESSIONS = 2, 1.5
"""Suspect timeouts of silence, or sessions if these are no longer, after which a broker becomes a candidate although no
other broker replies.

It is more likely to be cut off itself, and the controller has fenced it by then.
"""
EXCLUDED_SESSIONS = 30
"""Session timeouts without any sign of a controller after which an excluded broker becomes a candidate if no broker
replies.

Signs are replies and new slots of the log: other brokers may go on without this one. The number doubles each time that
no broker followed it as controller.
"""
EXCLUDED_MAX_MS = 3_600_000


class ContactLoss(NamedTuple):
    """Knowledge of a broker that lost contact with the controller.

    `silent_ms`: time since the last contact. `process_gone`: no process listens at the controller's address any more.
    `others_contact_ms`: time since the last contact of each other broker that replied. `rank`: position of this broker
    among the live ones. `store_stalled_ms`: time for which the controller reports that its writes to the bucket fail.
    `brokers_queried`, `brokers_replied`: number of other brokers, whatever their replies. `excluded`: a controller goes
    on without this broker. The controller has fenced this broker, or writes and has not registered this process.
    `inactive_ms`: time since any sign of a controller, a new slot of the log included. `unfollowed_epochs`: times in a
    row that this broker was controller and no broker followed it. `controller_replied`: it replied to another request
    than the fetch. `was_paused`: this broker did not run while it waited for replies, so their absence says nothing.
    """

    silent_ms: int
    process_gone: bool
    others_contact_ms: Sequence[int]
    rank: int
    store_stalled_ms: int = 0
    brokers_queried: int = 0
    brokers_replied: int = 0
    excluded: bool = False
    inactive_ms: int = 0
    unfollowed_epochs: int = 0
    controller_replied: bool = False
    was_paused: bool = False


class Wait(NamedTuple):
    """Fetch from the controller again after `ms`."""

    ms: int


class BecomeCandidate(NamedTuple):
    """Take the next slot after `delay_ms`, unless a newer controller appears by then."""

    delay_ms: int


def decide_candidacy(loss: ContactLoss, session_ms: int, suspect_ms: int) -> Wait | BecomeCandidate:
    """Returns whether to wait or to become a candidate.

    A controller whose process has ended is replaced at once; earlier contacts of other brokers do not count then. A
    controller that is silent to all is replaced after the suspect timeout: no broker had contact with it for that long,
    and it does not reply to this one. A controller that replies, but to no fetch, is only slow: it is replaced after
    the session timeout. A broker that may itself be cut off waits longer.
    """
    if loss.process_gone:
        return BecomeCandidate(loss.rank * RANK_DELAY_MS)
    if loss.silent_ms < suspect_ms:
        return Wait(min(RETRY_MS, suspect_ms - loss.silent_ms))
    if suspect_ms < session_ms and (loss.was_paused or (loss.controller_replied and loss.silent_ms < session_ms)):
        return Wait(0 if loss.was_paused else RETRY_MS)
    if any(contact_ms < suspect_ms for contact_ms in loss.others_contact_ms):
        return Wait(RETRY_MS)
    if not loss.brokers_replied and _may_be_isolated(loss, session_ms, suspect_ms):
        return Wait(RETRY_MS)
    return BecomeCandidate(loss.rank * RANK_DELAY_MS)


def _may_be_isolated(loss: ContactLoss, session_ms: int, suspect_ms: int) -> bool:
    if loss.excluded:
        return loss.inactive_ms < min(
            EXCLUDED_SESSIONS * session_ms << min(loss.unfollowed_epochs, 20), EXCLUDED_MAX_MS
        )
    isolated_ms = ISOLATED_TIMEOUTS * suspect_ms if suspect_ms < session_ms else ISOLATED_SESSIONS * session_ms
    return loss.brokers_queried > 0 and loss.silent_ms < isolated_ms


def decide_if_store_stalled(loss: ContactLoss, session_ms: int) -> BecomeCandidate | None:
    """Returns a candidacy if the controller replies but could not write to the bucket for two session timeouts.

    Another broker may be able to write: a candidate succeeds only if it reaches the bucket.
    """
    return BecomeCandidate(loss.rank * RANK_DELAY_MS) if loss.store_stalled_ms >= 2 * session_ms else None
