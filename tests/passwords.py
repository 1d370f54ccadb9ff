"""The passwords that tests use. None of them may be in a log or in an error."""

from __future__ import annotations

from tests.encryption import KEYS, key_line

PASSWORDS = (
    *("eighty,eight", "eightyeight", 'it"s a pencil', "pencil", "s3cret", "tanstaaftanstaaf"),
    *(key_line(name).split()[2] for name in KEYS),
)


def find_passwords(text: str) -> list[str]:
    """Returns the passwords in a text."""
    return [password for password in PASSWORDS if password in text]
