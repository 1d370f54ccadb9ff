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


class Silence(NamedTuple):
    """What a broker knows that does not hear the controller.

    `silent_ms`: since it heard it last. `gone`: nothing listens at the controller's address any more, its process has
    ended. `others_ms`: how long ago brokers that could be asked heard that controller. `rank`: place of this broker
    among the live ones. `unable_ms`: for how long the controller says it has tried in vain to write to the bucket.
    """

    silent_ms: int
    gone: bool
    others_ms: Sequence[int]
    rank: int
    unable_ms: int = 0


class Wait(NamedTuple):
    """Ask the controller again after so long."""

    ms: int


class Stand(NamedTuple):
    """Take the next slot after so long, unless a newer controller shows up by then."""

    after_ms: int


def next_step(silence: Silence, session_ms: int) -> Wait | Stand:
    """A controller whose process has ended is replaced at once; one that is only silent when nobody has heard it for a
    session. What others heard before the process ended says nothing."""
    if silence.gone:
        return Stand(silence.rank * RANK_MS)
    if silence.silent_ms < session_ms:
        return Wait(min(RETRY_MS, session_ms - silence.silent_ms))
    if any(heard < session_ms for heard in silence.others_ms):
        return Wait(RETRY_MS)
    return Stand(silence.rank * RANK_MS)


def next_step_of_unable(silence: Silence, session_ms: int) -> Stand | None:
    """A controller that answers but cannot write makes room for one that can, if there is one: whoever stands finds the
    bucket."""
    return Stand(silence.rank * RANK_MS) if silence.unable_ms >= 2 * session_ms else None
