"""Decisions about SCRAM credentials: Kafka's refusals, user by user, and the limits of ours."""

from __future__ import annotations

import pytest

from tiered.controller import scram_credentials
from tiered.controller.requests import AlterScramCredentials, ScramDeletion
from tiered.controller.scram_credentials import alter_credentials
from tiered.errors import Code
from tiered.metadata.changes import ScramCredentialRemoved, ScramCredentialSet
from tiered.metadata.image import Image


def credential(user: str, mechanism: str = "SCRAM-SHA-256", iterations: int = 4096) -> ScramCredentialSet:
    """Returns a credential as the log has it."""
    return ScramCredentialSet(user, mechanism, "c2FsdA==", "c3RvcmVk", "c2VydmVy", iterations)


ALICE = Image().apply([credential("alice")])


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (credential("", iterations=1), Code.UNACCEPTABLE_CREDENTIAL),
        (credential("u" * 256), Code.UNACCEPTABLE_CREDENTIAL),
        (credential("bob", iterations=4095), Code.UNACCEPTABLE_CREDENTIAL),
        (credential("bob", iterations=16385), Code.UNACCEPTABLE_CREDENTIAL),
        (credential("bob", "SCRAM-SHA-1"), Code.UNSUPPORTED_SASL_MECHANISM),
        (ScramDeletion("bob", "SCRAM-SHA-256"), Code.RESOURCE_NOT_FOUND),
        (ScramDeletion("alice", "SCRAM-SHA-512"), Code.RESOURCE_NOT_FOUND),
        (ScramDeletion("", "SCRAM-SHA-256"), Code.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_refused_user_changes_nothing_and_others_do(wanted: ScramCredentialSet | ScramDeletion, code: Code) -> None:
    is_deletion = isinstance(wanted, ScramDeletion)
    good = credential("carol")
    request = AlterScramCredentials((wanted,) if is_deletion else (), (good,) if is_deletion else (wanted, good))  # type: ignore[arg-type]
    decided = alter_credentials(ALICE, request)
    assert decided.changes == (good,)
    results = {user: refused and refused.code for user, refused in decided.reply.items()}
    assert results == {wanted.user: code, "carol": None}


def test_user_is_altered_at_most_once_in_a_request() -> None:
    twice = AlterScramCredentials(
        (ScramDeletion("alice", "SCRAM-SHA-256"),), (credential("alice", "SCRAM-SHA-512"), credential("bob"))
    )
    decided = alter_credentials(ALICE, twice)
    assert decided.changes == (credential("bob"),)
    refused = decided.reply["alice"]
    assert refused is not None and refused.code is Code.DUPLICATE_RESOURCE


def test_credentials_are_replaced_and_removed() -> None:
    new = credential("alice", iterations=8192)
    assert alter_credentials(ALICE, AlterScramCredentials((), (new,))).changes == (new,)
    removal = ScramDeletion("alice", "SCRAM-SHA-256")
    assert alter_credentials(ALICE, AlterScramCredentials((removal,))).changes == (
        ScramCredentialRemoved("alice", "SCRAM-SHA-256"),
    )


def test_credential_that_exists_stays_if_only_absent_ones_are_wanted() -> None:
    new = (credential("alice", iterations=8192), credential("bob"))
    decided = alter_credentials(ALICE, AlterScramCredentials((), new, if_absent=True))
    assert decided.changes == (credential("bob"),)
    assert decided.reply == {"alice": None, "bob": None}


def test_number_of_users_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram_credentials, "USERS_MAX", 2)
    decided = alter_credentials(ALICE, AlterScramCredentials((), (credential("bob"), credential("carol"))))
    assert decided.changes == (credential("bob"),)
    refused = decided.reply["carol"]
    assert refused is not None and refused.code is Code.POLICY_VIOLATION
    again = AlterScramCredentials((), (credential("alice", "SCRAM-SHA-512"),))
    assert alter_credentials(ALICE.apply(decided.changes), again).changes, "known users may still change"
