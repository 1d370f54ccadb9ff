"""When a broker that does not hear the controller stands for its place (rule M4): it asks the others first.

Pure; times are milliseconds. Being wrong here costs a change of controller, never a record: the slot in the metadata
log decides (election.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

RANK_MS = 150
"""Between two candidates who miss the same controller, so that the first has the slot before the next one tries."""
RETRY_MS = 500
ALONE = 1.5
"""Sessions of silence after which a broker stands that was answered by no other one: it is more likely cut off itself,
and the controller has fenced it by then."""
FENCED_ALONE = 30
"""Sessions without a sign of any controller, on the wire or in the log, after which a broker stands that was fenced and
is answered by nobody: others may go on without it. Twice as many each time that nobody followed it."""
FENCED_ALONE_MAX_MS = 3_600_000


class Silence(NamedTuple):
    """What a broker knows that does not hear the controller.

    `silent_ms`: since it heard it last. `gone`: nothing listens at the controller's address any more, its process has
    ended. `others_ms`: how long ago brokers that could be asked heard that controller. `rank`: place of this broker
    among the live ones. `unable_ms`: for how long the controller says it has tried in vain to write to the bucket.
    `asked`, `answered`: how many other brokers were, whatever they hear. `fenced`: a controller has fenced this one.
    `quiet_ms`: since it saw any sign of a controller, a new slot of the log too. `in_vain`: how often in a row it was
    controller and nobody followed.
    """

    silent_ms: int
    gone: bool
    others_ms: Sequence[int]
    rank: int
    unable_ms: int = 0
    asked: int = 0
    answered: int = 0
    fenced: bool = False
    quiet_ms: int = 0
    in_vain: int = 0


class Wait(NamedTuple):
    """Ask the controller again after so long."""

    ms: int


class Stand(NamedTuple):
    """Take the next slot after so long, unless a newer controller shows up by then."""

    after_ms: int


def next_step(silence: Silence, session_ms: int) -> Wait | Stand:
    """A controller whose process has ended is replaced at once; one that is only silent when nobody has heard it for a
    session. What others heard before the process ended says nothing. Who may be cut off itself leaves it to others."""
    if silence.gone:
        return Stand(silence.rank * RANK_MS)
    if silence.silent_ms < session_ms:
        return Wait(min(RETRY_MS, session_ms - silence.silent_ms))
    if any(heard < session_ms for heard in silence.others_ms):
        return Wait(RETRY_MS)
    if not silence.answered and _may_be_cut_off(silence, session_ms):
        return Wait(RETRY_MS)
    return Stand(silence.rank * RANK_MS)


def _may_be_cut_off(silence: Silence, session_ms: int) -> bool:
    if silence.fenced:
        return silence.quiet_ms < min(FENCED_ALONE * session_ms << min(silence.in_vain, 20), FENCED_ALONE_MAX_MS)
    return silence.asked > 0 and silence.silent_ms < ALONE * session_ms


def next_step_of_unable(silence: Silence, session_ms: int) -> Stand | None:
    """A controller that answers but cannot write makes room for one that can, if there is one: whoever stands finds the
    bucket."""
    return Stand(silence.rank * RANK_MS) if silence.unable_ms >= 2 * session_ms else None
