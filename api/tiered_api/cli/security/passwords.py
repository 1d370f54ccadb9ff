"""A password from a file, from standard input, or typed: never from the command line, which all processes can read."""

from __future__ import annotations

import sys
from getpass import getpass
from pathlib import Path

from tiered.errors import Code, Refused

OPTION = "--password-file"
STDIN = "-"
CHARS_MAX = 1024


def read_password(file: str | None, user: str) -> str:
    """Returns the password for a user: the first line of a file, else what somebody types twice."""
    if file is None:
        password = _prompt(user)
    elif file == STDIN:
        password = sys.stdin.readline(CHARS_MAX + 2).rstrip("\r\n")
    else:
        try:
            with Path(file).open(encoding="utf-8") as opened:
                password = opened.readline(CHARS_MAX + 2).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise _refuse(f"{OPTION} {file}: it cannot be read: {reason}") from None
    if not password:
        raise _refuse("the password is empty")
    if len(password) > CHARS_MAX:
        raise _refuse(f"the password has more than {CHARS_MAX} characters")
    return password


def _prompt(user: str) -> str:
    if not sys.stdin.isatty():
        raise _refuse(f"a password needs {OPTION} FILE, or {OPTION} - for the first line of standard input")
    password = getpass(f"Password for {user}: ", sys.stderr)
    if getpass("Once more: ", sys.stderr) != password:
        raise _refuse("the two passwords differ")
    return password


def _refuse(why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, why)
