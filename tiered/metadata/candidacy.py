"""When a broker that does not hear the controller stands for its place (rule M4): it asks the others first.

Pure; times are milliseconds. Being wrong here costs a change of controller, never a record: the slot in the metadata
log decides (election.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

RANK_DELAY_MS = 150
"""Between two candidates who miss the same controller, so that the first has the slot before the next one tries."""
RETRY_MS = 500
ISOLATED_SESSIONS = 1.5
"""Sessions of silence after which a broker stands that was answered by no other one: it is more likely cut off itself,
and the controller has fenced it by then."""
FENCED_SESSIONS = 30
"""Sessions without a sign of any controller, on the wire or in the log, after which a broker stands that was fenced and
is answered by nobody: others may go on without it. Twice as many each time that nobody followed it."""
FENCED_MAX_MS = 3_600_000


class ContactLoss(NamedTuple):
    """What a broker knows that does not hear the controller.

    `silent_ms`: since it heard it last. `gone`: nothing listens at the controller's address any more, its process has
    ended. `others_ms`: how long ago brokers that could be asked heard that controller. `rank`: place of this broker
    among the live ones. `unable_ms`: for how long the controller says it has tried in vain to write to the bucket.
    `asked`, `answered`: how many other brokers were, whatever they hear. `fenced`: a controller has fenced this one.
    `quiet_ms`: since it saw any sign of a controller, a new slot of the log too. `in_vain`: how often in a row it was
    controller and nobody followed.
    """

    silent_ms: int
    process_gone: bool
    others_contact_ms: Sequence[int]
    rank: int
    store_stalled_ms: int = 0
    brokers_queried: int = 0
    brokers_replied: int = 0
    fenced: bool = False
    inactive_ms: int = 0
    unfollowed_epochs: int = 0


class Wait(NamedTuple):
    """Ask the controller again after so long."""

    ms: int


class BecomeCandidate(NamedTuple):
    """Take the next slot after so long, unless a newer controller shows up by then."""

    delay_ms: int


def decide_candidacy(loss: ContactLoss, session_ms: int) -> Wait | BecomeCandidate:
    """A controller whose process has ended is replaced at once; one that is only silent when nobody has heard it for a
    session. What others heard before the process ended says nothing. Who may be cut off itself leaves it to others."""
    if loss.process_gone:
        return BecomeCandidate(loss.rank * RANK_DELAY_MS)
    if loss.silent_ms < session_ms:
        return Wait(min(RETRY_MS, session_ms - loss.silent_ms))
    if any(contact_ms < session_ms for contact_ms in loss.others_contact_ms):
        return Wait(RETRY_MS)
    if not loss.brokers_replied and _may_be_isolated(loss, session_ms):
        return Wait(RETRY_MS)
    return BecomeCandidate(loss.rank * RANK_DELAY_MS)


def _may_be_isolated(loss: ContactLoss, session_ms: int) -> bool:
    if loss.fenced:
        return loss.inactive_ms < min(FENCED_SESSIONS * session_ms << min(loss.unfollowed_epochs, 20), FENCED_MAX_MS)
    return loss.brokers_queried > 0 and loss.silent_ms < ISOLATED_SESSIONS * session_ms


def decide_if_store_stalled(loss: ContactLoss, session_ms: int) -> BecomeCandidate | None:
    """A controller that answers but cannot write makes room for one that can, if there is one: whoever stands finds the
    bucket."""
    return BecomeCandidate(loss.rank * RANK_DELAY_MS) if loss.store_stalled_ms >= 2 * session_ms else None
