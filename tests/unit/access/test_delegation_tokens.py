"""Delegation tokens as a broker knows them: look-ups that follow the image, and a bounded memory of credentials."""

from __future__ import annotations

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tiered.access import delegation_tokens
from tiered.access.delegation_tokens import DelegationTokens
from tiered.config.settings import Settings
from tiered.metadata.changes import Change, DelegationTokenRemoved, DelegationTokenSet
from tiered.metadata.image import Image
from tiered.security.delegation_tokens import make_hmac
from tiered.security.scram import ScramCredential, ScramMechanism
from tiered.security.secret import Secret

KEY = Secret("key")
SMALL, LARGE = ScramMechanism


class Known:
    """The tokens of a broker, and the image that it has."""

    def __init__(self, key: Secret = KEY) -> None:
        self.image = Image()
        self.clock = SimClock(SimLoop(1))
        self.calls = 0
        self.tokens = DelegationTokens(Settings(delegation_token_secret_key=key), self.clock, lambda: self.image)
        self.tokens.subscribe(self._count)

    def _count(self) -> None:
        self.calls += 1

    def apply(self, *changes: Change) -> None:
        self.image = self.image.apply(changes)
        self.tokens.on_image()

    def add(self, token_id: str, lifetime_ms: int = 1000) -> None:
        now_ms = self.clock.wall_ms()
        until_ms = now_ms + lifetime_ms
        self.apply(DelegationTokenSet(token_id, "User:alice", "User:alice", (), now_ms, until_ms, until_ms))


def test_token_is_found_by_its_hmac_until_it_is_removed() -> None:
    known = Known()
    known.add("a")
    known.add("b")
    assert [known.tokens.find_id(make_hmac(KEY, each)) for each in ("a", "b", "c")] == ["a", "b", None]
    assert known.tokens.hmac_of("a") == make_hmac(KEY, "a") and len(known.tokens.list_all()) == 2
    known.apply(DelegationTokenRemoved("a"))
    assert known.tokens.find_id(make_hmac(KEY, "a")) is None and known.tokens.find("a") is None
    assert known.tokens.find_credentials(SMALL, "a") == ()
    assert known.tokens.find_id(make_hmac(KEY, "b")) == "b"


def test_expired_token_is_listed_and_proves_nothing() -> None:
    known = Known()
    known.add("a", lifetime_ms=-1)
    assert known.tokens.find("a") is None and known.tokens.find_credentials(SMALL, "a") == ()
    assert [each.token_id for each in known.tokens.list_all()] == ["a"]


def test_broker_without_a_key_knows_no_tokens() -> None:
    known = Known(Secret())
    known.add("a")
    assert not known.tokens.is_enabled and not known.tokens.list_all()
    assert known.tokens.find("a") is None and known.tokens.find_id(make_hmac(Secret(), "a")) is None


def test_credentials_are_computed_once_while_their_token_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[ScramMechanism, str]] = []

    def make(key: Secret, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        made.append((mechanism, token_id))
        return ScramCredential(b"salt", mechanism.name.encode(), token_id.encode(), 4096)

    monkeypatch.setattr(delegation_tokens, "make_token_credential", make)
    known = Known()
    pairs = [(mechanism, f"{n}") for n in range(1_100) for mechanism in (SMALL, LARGE)]
    known.apply(*(DelegationTokenSet(f"{n}", "User:a", "User:a", (), 0, 2**60, 2**60) for n in range(1_100)))
    found = [known.tokens.find_credentials(*each)[0] for each in pairs]
    assert [known.tokens.find_credentials(*each)[0] for each in pairs] == found and made == pairs
    known.apply(DelegationTokenRemoved("7"))
    assert known.tokens.find_credentials(SMALL, "7") == (), "and nothing is kept of it"
    known.apply(DelegationTokenSet("7", "User:a", "User:a", (), 0, 2**60, 2**60))
    for each in pairs:
        known.tokens.find_credentials(*each)
    assert made == [*pairs, (SMALL, "7"), (LARGE, "7")]


def test_subscribers_hear_of_changes_of_tokens_alone() -> None:
    known = Known()
    known.add("a")
    before = known.calls
    known.tokens.on_image()
    assert known.calls == before
    known.apply(DelegationTokenRemoved("a"))
    assert known.calls == before + 1
