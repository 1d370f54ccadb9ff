"""The checker of acknowledged rules against short histories of one rule."""

from __future__ import annotations

import pytest

from tests.sim.cluster.rules_checker import Factor, Rule, RulesChecker

RULE: Rule = ("acl", "alice", "t", "READ")
QUOTA: Rule = ("quota", "alice")
BOUND = 10


class History:
    """A checker whose clock stands at `now`, and its findings."""

    def __init__(self) -> None:
        self.now = 0
        self.found: list[str] = []
        self.checker = RulesChecker(lambda rule, what: self.found.append(rule), lambda: self.now, BOUND)

    def change(self, rule: Rule, value: object, sent: int, acked: int | None) -> None:
        """Adds a change that was acknowledged at `acked`."""
        self.now = sent
        made = self.checker.begin(rule, value)
        if acked is not None:
            self.now = acked
            self.checker.end(made)

    def judge(self, sent: int, replied: int, *, is_served: bool) -> list[str]:
        """Returns the findings about a request."""
        self.now = replied
        self.checker.check_reply(1, [Factor(RULE, bool)], sent, is_served=is_served, what="a request")
        found, self.found = self.found, []
        return found


@pytest.mark.parametrize(
    ("sent", "replied", "served", "refused"),
    [
        (0, 99, ["I29"], []),
        (0, 100, [], []),
        (115, 120, [], []),
        (121, 130, [], ["I29"]),
        (150, 199, [], ["I29"]),
        (150, 200, [], []),
        (230, 240, [], []),
        (231, 240, ["I29"], []),
    ],
)
def test_rule_holds_from_its_sending_until_a_bound_after_the_next(
    sent: int, replied: int, served: list[str], refused: list[str]
) -> None:
    history = History()
    history.change(RULE, True, 100, 110)
    history.change(RULE, False, 200, 220)
    assert history.judge(sent, replied, is_served=True) == served
    assert history.judge(sent, replied, is_served=False) == refused


def test_change_without_an_acknowledgement_ends_no_other_one() -> None:
    history = History()
    history.change(RULE, True, 100, 110)
    history.change(RULE, False, 200, None)
    for is_served in (True, False):
        assert history.judge(900, 910, is_served=is_served) == []
    history.change(RULE, True, 1000, 1010)
    assert history.judge(1021, 1030, is_served=False) == ["I29"]


def test_pause_needs_a_quota_and_a_quota_needs_pauses() -> None:
    history = History()
    history.change(QUOTA, 100.0, 100, 110)
    history.change(QUOTA, None, 200, 210)
    history.now = 215
    history.checker.check_pause(1, QUOTA, 214, 5)
    history.checker.check_no_pause(1, QUOTA, 150, 10_000, 11.0)
    assert history.found == [], "the quota may be there or gone"
    history.now = 230
    history.checker.check_pause(1, QUOTA, 221, 5)
    assert history.found == ["I28"]
    history.change(QUOTA, 100.0, 300, 310)
    history.now = 400
    history.checker.check_no_pause(1, QUOTA, 321, 1_100, 11.0)
    assert history.found == ["I28"]
    history.checker.check_no_pause(1, QUOTA, 321, 1_101, 11.0)
    assert history.found == ["I28", "I28"]
