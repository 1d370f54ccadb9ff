"""The rule of shares: anybody takes three quarters of a pot, and nobody more than an eighth of what is free after."""

from __future__ import annotations

import pytest

from tiered.errors import Code
from tiered.quotas.shares import Holdings, Pot, PotRefused, find_share, has_room, is_scarce
from tiered.security.principal import ANONYMOUS, Caller, Principal

POT = Pot("seats", "seats.max", "seats", Code.THROTTLING_QUOTA_EXCEEDED)


class Seats:
    """A pot of seats that holders take one by one."""

    def __init__(self, bound: int) -> None:
        self.taken = 0
        self.refused: list[tuple[str, str]] = []
        self.holdings = Holdings(POT, lambda: bound, lambda: self.taken)
        self.holdings.on_refused = lambda _, holder, why: self.refused.append((holder, why))

    def fill(self, holder: str, most: int = 1 << 30) -> int:
        """Takes seats until one is refused, or `most` are taken. Returns their number."""
        taken = 0
        while taken < most and self.holdings.has_room(holder):
            self.holdings.add(holder, 1)
            self.taken += 1
            taken += 1
        return taken


@pytest.mark.parametrize(("bound", "held", "expected"), [(100, 75, False), (100, 76, True), (1, 1, True)])
def test_pot_is_scarce_above_three_quarters(bound: int, held: int, expected: bool) -> None:
    assert is_scarce(bound, held) is expected


@pytest.mark.parametrize(("held", "expected"), [(76, 3), (92, 1), (99, 1), (100, 1)])
def test_share_is_an_eighth_of_what_is_free_and_at_least_one(held: int, expected: int) -> None:
    assert find_share(100, held) == expected


def test_holder_may_always_give_back_or_change_in_place() -> None:
    assert has_room(10, 20, 20, 0) and has_room(10, 20, 20, -5)


def test_greedy_holder_stops_at_three_quarters() -> None:
    seats = Seats(1_000)
    assert seats.fill("a") == 750


def test_lone_holder_leaves_the_last_quarter_to_those_that_come_later() -> None:
    seats = Seats(1_000)
    assert seats.fill("alone") == 750 and seats.fill("alone") == 0
    assert seats.fill("later") == 27, "of 250 that are free"


def test_holder_that_shrank_grows_back_only_while_others_left_its_room() -> None:
    seats = Seats(1_000)
    seats.fill("large")
    for given, grown in ((100, 100), (0, 0)):
        seats.holdings.add("large", -given)
        seats.taken -= given
        assert seats.fill("large") == grown, "nobody took its room"
    seats.holdings.add("large", -100)
    seats.taken -= 100
    assert seats.fill("other") == 100, "what was given back"
    assert seats.fill("large") == 0, "no holder has a claim on what it once had"
    seats.holdings.add("other", -100)
    seats.taken -= 100
    assert seats.fill("large") == 100


def test_small_holder_finds_room_after_fifty_greedy_ones() -> None:
    """Each greedy one takes a ninth of what is free."""
    seats = Seats(200_000)
    taken = [seats.fill(f"greedy {each}") for each in range(50)]
    assert taken[0] == 150_000 and taken[1] == 5_555
    assert taken == sorted(taken, reverse=True) and taken[-1] > 10
    assert seats.fill("small") > 10


def test_last_seats_of_a_small_pot_go_to_holders_that_have_none() -> None:
    seats = Seats(8)
    assert [seats.fill(each) for each in "abcd"] == [6, 1, 1, 0]


def test_pot_is_never_exceeded_by_holders_that_are_unknown() -> None:
    seats = Seats(8)
    assert seats.fill("") == 8
    assert seats.holdings.find_greediest() == ("", 0)


def test_what_an_unknown_holder_has_counts_in_the_total_only() -> None:
    seats = Seats(1_000)
    seats.fill("", 800)
    assert seats.fill("a") == 22 and seats.holdings.own("a") == 22


def test_refusal_names_pot_holder_and_numbers_and_is_reported() -> None:
    seats = Seats(8)
    seats.fill("a")
    with pytest.raises(PotRefused) as caught:
        seats.holdings.check("a")
    assert caught.value.code is Code.THROTTLING_QUOTA_EXCEEDED
    why = "6 of 8 seats are taken (seats.max), a has 6, and nobody may have more than 1 while so few are free"
    assert caught.value.why == f"{why}: try again later"
    assert seats.refused == [("a", why)]


def test_full_pot_is_refused_without_a_share() -> None:
    seats = Seats(2)
    seats.fill("", 2)
    with pytest.raises(PotRefused, match=r"^2 of 2 seats are taken \(seats.max\): try again later$"):
        seats.holdings.check("b")


def test_holder_that_gave_all_back_is_forgotten() -> None:
    seats = Seats(8)
    seats.fill("a", 2)
    seats.fill("b", 1)
    assert seats.holdings.find_greediest() == ("a", 2)
    seats.holdings.add("a", -2)
    assert seats.holdings.find_greediest() == ("b", 1) and seats.holdings.own("a") == 0


@pytest.mark.parametrize(
    ("principal", "host", "holder"),
    [
        (Principal("User", "alice"), "2001:db8::7", "User:alice"),
        (Principal("Broker", "2"), "10.0.0.7", ""),
        (ANONYMOUS, "10.0.0.7", "10.0.0.7"),
        (ANONYMOUS, "2001:db8:0:1::7", "2001:db8:0:1::/64"),
    ],
)
def test_holder_is_the_principal_else_the_network(principal: Principal, host: str, holder: str) -> None:
    assert Caller(principal, host).holder == holder
