"""Decisions about delegation tokens: Kafka's times and refusals, and the limits of ours."""

from __future__ import annotations

import pytest

from tests.refusal import refuses
from tiered.config.settings import Settings
from tiered.controller import delegation_tokens
from tiered.controller.delegation_tokens import create_token, expire_token, remove_expired, renew_token
from tiered.controller.requests import CreateDelegationToken, ExpireDelegationToken, RenewDelegationToken
from tiered.errors import Code, Refused
from tiered.metadata.changes import DelegationTokenRemoved, DelegationTokenSet
from tiered.metadata.image import Image

ALICE, BOB, CAROL, DAVE = "User:alice", "User:bob", "User:carol", "User:dave"
SETTINGS = Settings(delegation_token_max_lifetime_ms=1000, delegation_token_expiry_time_ms=100)
TOKEN = DelegationTokenSet("t", ALICE, BOB, (CAROL,), issued_ms=0, max_ms=1000, expiry_ms=100)
IMAGE = Image().apply([TOKEN])
FOREVER = 2**63 - 1


@pytest.mark.parametrize(
    ("lifetime_ms", "max_ms", "expiry_ms"),
    [(-1, 1005, 105), (0, 1005, 105), (50, 55, 55), (500, 505, 105), (FOREVER, 1005, 105)],
)
def test_lifetime_is_that_of_the_settings_at_most(lifetime_ms: int, max_ms: int, expiry_ms: int) -> None:
    wanted = CreateDelegationToken(ALICE, BOB, (CAROL, CAROL), lifetime_ms)
    made = create_token(Image(), SETTINGS, wanted, "id", 5).reply
    assert made == DelegationTokenSet("id", ALICE, BOB, (CAROL,), 5, max_ms, expiry_ms)


@pytest.mark.parametrize(("period_ms", "expiry_ms"), [(-1, 190), (0, 190), (10, 100), (100, 190), (FOREVER, 190)])
def test_renewal_sets_the_expiry_from_now_on(period_ms: int, expiry_ms: int) -> None:
    decided = renew_token(IMAGE, SETTINGS, RenewDelegationToken("t", CAROL, period_ms), 90)
    assert decided.reply == expiry_ms
    assert IMAGE.apply(decided.changes).delegation_tokens["t"].expiry_ms == expiry_ms


def test_renewal_does_not_outlast_the_longest_lifetime() -> None:
    late = Image().apply([DelegationTokenSet("t", ALICE, ALICE, (), 0, 1000, 960)])
    assert renew_token(late, SETTINGS, RenewDelegationToken("t", ALICE), 950).reply == 1000


@pytest.mark.parametrize(("period_ms", "expiry_ms"), [(0, 90), (10, 100), (500, 590), (FOREVER, 1000)])
def test_expiry_is_set_from_now_on(period_ms: int, expiry_ms: int) -> None:
    assert expire_token(IMAGE, ExpireDelegationToken("t", ALICE, period_ms), 90).reply == expiry_ms


@pytest.mark.parametrize("now_ms", [90, 5000])
def test_expiry_below_zero_removes_a_token_also_if_it_has_expired(now_ms: int) -> None:
    decided = expire_token(IMAGE, ExpireDelegationToken("t", ALICE, -1), now_ms)
    assert (decided.changes, decided.reply) == ((DelegationTokenRemoved("t"),), now_ms)


@pytest.mark.parametrize(
    ("token_id", "principal", "now_ms", "code"),
    [
        ("other", ALICE, 90, Code.DELEGATION_TOKEN_NOT_FOUND),
        ("t", BOB, 90, Code.DELEGATION_TOKEN_OWNER_MISMATCH),
        ("t", "User:mallory", 90, Code.DELEGATION_TOKEN_OWNER_MISMATCH),
        ("t", ALICE, 101, Code.DELEGATION_TOKEN_EXPIRED),
    ],
)
def test_renewal_and_expiry_are_refused_alike(token_id: str, principal: str, now_ms: int, code: Code) -> None:
    with refuses(code):
        renew_token(IMAGE, SETTINGS, RenewDelegationToken(token_id, principal), now_ms)
    with refuses(code):
        expire_token(IMAGE, ExpireDelegationToken(token_id, principal, 1), now_ms)


def test_tokens_of_a_cluster_and_of_a_requester_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "TOKENS_MAX", 4)
    monkeypatch.setattr(delegation_tokens, "TOKENS_OF_REQUESTER_MAX", 2)
    image = Image()

    def create(requester: str) -> str:
        nonlocal image
        request = CreateDelegationToken(ALICE, requester)
        try:
            decided = create_token(image, SETTINGS, request, f"t{len(image.delegation_tokens)}", 0)
        except Refused as refused:
            return f"{refused.code.name} {refused.why}"
        image = image.apply(decided.changes)
        return ""

    assert [create(BOB), create(BOB)] == ["", ""]
    assert create(BOB) == "POLICY_VIOLATION User:bob has requested 2 delegation tokens already"
    assert create(CAROL) == ""
    assert create(CAROL).startswith("THROTTLING_QUOTA_EXCEEDED 3 of 4 delegation tokens are taken, User:carol has 1")
    assert create(DAVE) == ""
    assert create("User:eve").startswith("THROTTLING_QUOTA_EXCEEDED 4 of 4 delegation tokens are taken")


@pytest.mark.parametrize(
    "wanted",
    [
        CreateDelegationToken(ALICE, ALICE, tuple(f"User:{number}" for number in range(101))),
        CreateDelegationToken(ALICE, ALICE, ("User:" + "r" * 251,)),
        CreateDelegationToken("User:" + "o" * 251, ALICE),
    ],
)
def test_token_with_too_long_texts_is_refused(wanted: CreateDelegationToken) -> None:
    with refuses(Code.POLICY_VIOLATION):
        create_token(Image(), SETTINGS, wanted, "id", 0)


def test_expired_tokens_are_removed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "REMOVED_AT_ONCE", 2)
    tokens = [DelegationTokenSet(f"t{number}", ALICE, ALICE, (), 0, 1000, 100 * number) for number in range(4)]
    image = Image().apply(tokens)
    left = []
    for _ in range(3):
        removed = remove_expired(image, 201)
        image = image.apply(removed.changes)
        left.append((removed.reply, list(image.delegation_tokens)))
    assert left == [(2, ["t2", "t3"]), (1, ["t3"]), (0, ["t3"])]
