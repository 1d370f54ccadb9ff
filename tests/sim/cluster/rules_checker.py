"""I28 and I29 by what administrators were told: a rule whose change was acknowledged a bound ago holds everywhere.

The other checkers know which rules each broker has applied. This one knows only when each change was sent and when it
was acknowledged. A rule may be in force from the sending of its change on, and until the next change of the same rule
was acknowledged, and the bound has passed. Brokers are frozen and cut off for less than the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.sim.cluster.model_of_copies import ReportFinding

Rule = tuple[str, ...]
"""A rule by its kind and its names: ("password", "alice")."""
Value = object


@dataclass(slots=True)
class Change:
    """One change of a rule. `acked_ns` is None until it is acknowledged."""

    value: Value
    sent_ns: int
    acked_ns: int | None = None


class Factor(NamedTuple):
    """A rule that decides about a request, and the values of it that let the request pass."""

    rule: Rule
    lets_pass: Callable[[Value], bool]


class RulesChecker:
    """The changes of all rules. `bound_ns` is the time after an acknowledgement in which brokers may still lack it."""

    def __init__(self, report: ReportFinding, now: Callable[[], int], bound_ns: int) -> None:
        self.served = self.refused = self.logins_refused = self.paused = self.decided_by_one = 0
        self._report = report
        self._now = now
        self._bound_ns = bound_ns
        self._changes: dict[Rule, list[Change]] = {}

    def begin(self, rule: Rule, value: Value) -> Change:
        """Notes that a change is sent from now on."""
        self._changes.setdefault(rule, []).append(change := Change(value, self._now()))
        return change

    def end(self, change: Change) -> None:
        """Notes that a change is acknowledged."""
        change.acked_ns = self._now()

    def newest(self, rule: Rule) -> Value:
        """Returns the value of the last change that was sent, None if there is none."""
        known = self._changes.get(rule)
        return known[-1].value if known else None

    def past_values(self, rule: Rule) -> list[Value]:
        """Returns the values of all changes, the oldest first."""
        return [each.value for each in self._changes.get(rule, ())]

    def values(self, rule: Rule, from_ns: int, to_ns: int) -> Iterator[Value]:
        """Yields the values that a broker may have had between two times, None before the first change."""
        changes = [Change(None, -1, -1), *self._changes.get(rule, ())]
        for number, each in enumerate(changes):
            acks = [later.acked_ns for later in changes[number + 1 :] if later.acked_ns is not None]
            if each.sent_ns <= to_ns and from_ns <= min(acks, default=to_ns) + self._bound_ns:
                yield each.value

    def check_reply(self, node: int, factors: Sequence[Factor], sent_ns: int, *, is_served: bool, what: str) -> None:
        """I29: each rule may have let a request pass that was served, and one of them may not have, if it was refused.
        The request was sent at `sent_ns`, and its reply is here now."""
        now_ns = self._now()
        found = [{each.lets_pass(value) for value in self.values(each.rule, sent_ns, now_ns)} for each in factors]
        self.served += is_served
        self.refused += not is_served
        self.decided_by_one += all(len(each) == 1 for each in found)
        if is_served and not all(True in each for each in found):
            self._report("I29", f"b{node} serves {what} against {self._name(factors, found, passes=False)}")
        if not is_served and all(each == {True} for each in found):
            self._report("I29", f"b{node} refuses {what} against {self._name(factors, found, passes=True)}")

    def check_pause(self, node: int, rule: Rule, sent_ns: int, pause_ms: int) -> None:
        """I28: a client pauses only for a quota that a broker may have had."""
        self.paused += pause_ms > 0
        if pause_ms and all(value is None for value in self.values(rule, sent_ns, self._now())):
            self._report("I28", f"b{node} gives {rule} a pause of {pause_ms} ms, and it has no quota since a bound ago")

    def check_no_pause(self, node: int, rule: Rule, since_ns: int, used: int, seconds: float) -> None:
        """I28: `used` bytes of the last `seconds` are no more than the quota that brokers had all the time."""
        bounds = set(self.values(rule, since_ns, self._now()))
        if len(bounds) == 1 and isinstance(bound := bounds.pop(), float) and used > bound * seconds:
            self._report("I28", f"b{node} takes {used} bytes in {seconds} s from {rule} of {bound} without a pause")

    def _name(self, factors: Sequence[Factor], found: Sequence[set[bool]], *, passes: bool) -> str:
        names = [each.rule for each, outcomes in zip(factors, found, strict=True) if outcomes == {passes}]
        return f"{names}, unchanged for {self._bound_ns / 1e9} s"
