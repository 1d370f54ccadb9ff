"""Shares of a pot: a bound that all clients of a broker have in common, and what one of them may hold of it.

Up to three quarters of a pot anybody takes what is free. Above that nobody holds more than a share: an eighth of what
is free then, and at least one. So one greedy holder stops at three quarters. Each further one leaves eight ninths of
what was free to those that come later. A pot needs no list of holders for that, and no guess of their number.

A holder is a principal, else an address, IPv6 by its /64 (`Caller.holder`). The holder "" is the broker itself, or
unknown since a restart: it counts in the total only, and only the bound itself refuses it.

`POTS` has a line for each such bound. `tests/e2e/test_greedy_holders.py` fails for one without, and fills each pot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tiered.errors import Code, Refused

SCARCE_QUARTERS = 3
"""Quarters of a pot that anybody may take."""
FREE_BY_SHARE = 8
"""Above them, what is free by what one holder may hold."""


class Pot(NamedTuple):
    """One bound that all clients have in common."""

    name: str
    """Label of the pot in metrics and in the audit log."""
    setting: str
    """The setting that bounds it; "" if none does."""
    unit: str
    code: Code
    """Code of a refusal: one after which clients try again."""


class PotRefused(Refused):
    """A refusal of something for which a pot has no room. It fits later: HTTP gives 429 for it, whatever the code."""


POTS: dict[str, Pot] = {}
"""All pots by name."""


def _pot(name: str, setting: str, unit: str, code: Code) -> Pot:
    pot = POTS[name] = Pot(name, setting, unit, code)
    return pot


GROUP_BYTES = _pot("group-bytes", "tiered.groups.max.bytes", "bytes of groups", Code.COORDINATOR_NOT_AVAILABLE)
PRODUCER_IDS = _pot("producer-ids", "tiered.producer.ids.max", "producer ids", Code.THROTTLING_QUOTA_EXCEEDED)
PARTITION_PRODUCER_IDS = _pot(
    "partition-producer-ids",
    "tiered.producer.ids.max.per.partition",
    "producer ids of the partition",
    Code.THROTTLING_QUOTA_EXCEEDED,
)
IDEMPOTENCY_KEYS = _pot(
    "idempotency-keys",
    "half of tiered.producer.ids.max.per.partition",
    "idempotency keys of the partition",
    Code.THROTTLING_QUOTA_EXCEEDED,
)
REST_CONSUMERS = _pot("rest-consumers", "", "REST consumers", Code.THROTTLING_QUOTA_EXCEEDED)
TRANSACTION_BYTES = _pot(
    "transaction-bytes",
    "tiered.transactions.max.bytes",
    "bytes of transactional ids",
    Code.COORDINATOR_NOT_AVAILABLE,
)
COLD_READS = _pot("cold-reads", "", "reads of the bucket for fetches", Code.THROTTLING_QUOTA_EXCEEDED)
COLD_READ_BYTES = _pot("cold-read-bytes", "", "bytes of cold reads for fetches", Code.THROTTLING_QUOTA_EXCEEDED)
DELEGATION_TOKENS = _pot("delegation-tokens", "", "delegation tokens", Code.THROTTLING_QUOTA_EXCEEDED)
EVENT_STREAMS = _pot(
    "event-streams", "tiered.http.connections.max", "connections by event streams", Code.THROTTLING_QUOTA_EXCEEDED
)
PARTITIONS = _pot("partitions", "tiered.partitions.max", "partitions of the cluster", Code.THROTTLING_QUOTA_EXCEEDED)
BROKER_REPLICAS = _pot(
    "broker-replicas", "tiered.partitions.max.per.broker", "replicas of one broker", Code.THROTTLING_QUOTA_EXCEEDED
)
HTTP_TRANSACTIONS = _pot("http-transactions", "", "HTTP transactions at a time", Code.THROTTLING_QUOTA_EXCEEDED)

HTTP_MEMORY = _pot("http-memory", "", "bytes of bodies and responses over HTTP", Code.THROTTLING_QUOTA_EXCEEDED)


def is_scarce(bound: int, held: int) -> bool:
    """True if more than three quarters of a pot are taken."""
    return held * 4 > bound * SCARCE_QUARTERS


def find_share(bound: int, held: int) -> int:
    """Returns how much one holder may hold of a scarce pot of which `held` is taken."""
    return max((bound - held) // FREE_BY_SHARE, 1)


def find_room(bound: int, held: int, own: int) -> int:
    """Returns how much more a holder that holds `own` of a pot may take; below 0 if the pot holds too much."""
    return min(bound - held, max(bound * SCARCE_QUARTERS // 4 - held, find_share(bound, held) - own))


def has_room(bound: int, held: int, own: int, more: int) -> bool:
    """True if a holder that holds `own` of a pot may take `more`. Always true for 0 or less."""
    return more <= 0 or more <= find_room(bound, held, own)


OnRefused = Callable[[Pot, str, str], object]
"""Takes the pot, the holder and the reason of each refusal."""


def ignore_refusal(pot: Pot, holder: str, why: str) -> None:
    """Tells nobody of a refusal."""


def describe(pot: Pot, bound: int, held: int) -> str:
    """Returns the level of a pot in words."""
    setting = f" ({pot.setting})" if pot.setting else ""
    return f"{held} of {bound} {pot.unit} are taken{setting}"


def refuse(
    pot: Pot, bound: int, held: int, holder: str, own: int, more: int, on_refused: OnRefused = ignore_refusal
) -> PotRefused:
    """Returns the refusal of `more` to a holder, and reports it."""
    why = describe(pot, bound, held)
    if held + more <= bound:
        share = find_share(bound, held)
        why = f"{why}, {holder} has {own}, and nobody may have more than {share} while so few are free"
    on_refused(pot, holder, why)
    return PotRefused(pot.code, f"{why}: try again later")


class Holdings:
    """The holders of one pot, and what each holds. `read_bound` and `read_held` return the size of the pot, and what is
    taken. `read_parts` returns what holders have in each of several parts, which count themselves."""

    __slots__ = ("_by_holder", "_read_bound", "_read_held", "_read_parts", "on_refused", "pot")

    def __init__(
        self,
        pot: Pot,
        read_bound: Callable[[], int],
        read_held: Callable[[], int],
        read_parts: Callable[[], Iterable[Mapping[str, int]]] | None = None,
    ) -> None:
        self.pot = pot
        self._read_bound = read_bound
        self._read_held = read_held
        self._by_holder: dict[str, int] = {}
        """Holders that hold something: no more than the pot has room for."""
        self._read_parts = read_parts or (lambda: (self._by_holder,))
        self.on_refused: OnRefused = ignore_refusal

    @property
    def bound(self) -> int:
        """The size of the pot."""
        return self._read_bound()

    @property
    def held(self) -> int:
        """The part that is taken."""
        return self._read_held()

    @property
    def is_scarce(self) -> bool:
        """True if shares are in force."""
        return is_scarce(self.bound, self.held)

    def own(self, holder: str) -> int:
        """Returns what a holder holds."""
        return sum(part.get(holder, 0) for part in self._read_parts())

    def add(self, holder: str, count: int) -> None:
        """Counts what a holder took, or gave back if `count` is below 0."""
        count_holder(self._by_holder, holder, count)

    def find_room(self, holder: str) -> int:
        """Returns how much more a holder may take; below 0 if the pot holds too much. Nothing that is unknown has a
        share."""
        bound, held = self.bound, self.held
        return find_room(bound, held, self.own(holder)) if holder else bound - held

    def has_room(self, holder: str, more: int = 1) -> bool:
        """True if a holder may take `more`."""
        return more <= 0 or more <= self.find_room(holder)

    def check(self, holder: str, more: int = 1) -> None:
        """Raises `PotRefused` with the code of the pot and a sentence if a holder may not take `more`."""
        if not self.has_room(holder, more):
            raise self.refuse(holder, more)

    def refuse(self, holder: str, more: int = 1) -> PotRefused:
        """Returns the refusal of `more`, and reports it."""
        return refuse(self.pot, self.bound, self.held, holder, self.own(holder), more, self.on_refused)

    def describe(self) -> str:
        """Returns the level of the pot in words."""
        return describe(self.pot, self.bound, self.held)

    def find_greediest(self) -> tuple[str, int]:
        """Returns the holder that holds most, and what it holds; ("", 0) if all are unknown."""
        counts = Counter[str]()
        for part in self._read_parts():
            counts.update(part)
        return max(counts.items(), key=lambda pair: pair[1], default=("", 0))


def count_holder(by_holder: dict[str, int], holder: str, count: int) -> None:
    """Counts what a holder took, or gave back if `count` is below 0. The unknown holder has no count."""
    if not holder:
        return
    own = by_holder.get(holder, 0) + count
    if own > 0:
        by_holder[holder] = own
    else:
        by_holder.pop(holder, None)
