"""The passwords that tests use. None of them may be in a log or in a reply."""

from __future__ import annotations

from tests.encryption import KEYS, key_line

PASSWORDS = (
    *("eighty,eight", "eightyeight", 'it"s a pencil', "pencil", "s3cret", "tanstaaftanstaaf"),
    *(key_line(name).split()[2] for name in KEYS),
)


SEARCHED_MAX = 1 << 18
"""Bytes of a reply that are searched: a larger one has records."""


def check_reply(data: bytes) -> None:
    """Fails if a reply to a client has a password."""
    assert not find_passwords(data[:SEARCHED_MAX].decode("latin-1")), data[:1_000]


def find_passwords(text: str) -> list[str]:
    """Returns the passwords in a text."""
    return [password for password in PASSWORDS if password in text]
