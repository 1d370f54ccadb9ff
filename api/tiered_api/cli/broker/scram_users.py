"""`--add-scram`: the first users of a cluster, in the form of Kafka's storage tool.

`SCRAM-SHA-512=[name=admin,password=secret]`, with `iterations` and `salt` (base64) if wanted. `@FILE` stands for the
lines of a file, which keeps passwords out of the list of processes.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tiered.broker.broker import Broker
from tiered.controller.requests import AlterScramCredentials
from tiered.controller.scram_credentials import set_password
from tiered.errors import Code, Refused
from tiered.metadata.changes import ScramCredentialSet
from tiered.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISMS,
    make_salt,
    salt_password,
)

OPTION = "--add-scram"
SUBMIT_SECONDS = 30.0
SALT_RANDOM_BYTES = 32
FIELDS = ("name", "password", "iterations", "salt")
_FORM = re.compile(r"(?P<mechanism>[A-Za-z0-9-]+)=\[(?P<fields>.*)\]")
_FIELD = re.compile(rf"(?P<key>{'|'.join(FIELDS)})=(?P<value>.*?)(?=,(?:{'|'.join(FIELDS)})=|$)")


def read_credentials(given: Iterable[str]) -> tuple[ScramCredentialSet, ...]:
    """Returns the credentials that the command line asks for. Raises `Refused` without the password in its text."""
    return tuple(_read_credential(text) for text in _read_files(given))


async def add_users(broker: Broker, credentials: Sequence[ScramCredentialSet]) -> None:
    """Gives the cluster those of the credentials that it does not have. Returns once they are in force."""
    for each in credentials:
        results = await broker.submit(AlterScramCredentials((), (each,), if_absent=True), SUBMIT_SECONDS)
        refused = results[each.user]
        if refused is not None:
            raise refused


def _read_files(given: Iterable[str]) -> Iterator[str]:
    for text in given:
        if not text.startswith("@"):
            yield text
            continue
        try:
            lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise _refuse(f"{text[1:]} cannot be read: {reason}") from None
        yield from (line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


def _read_credential(text: str) -> ScramCredentialSet:
    form = _FORM.fullmatch(text)
    mechanism = MECHANISMS.get(form["mechanism"].upper()) if form is not None else None
    if form is None or mechanism is None:
        raise _refuse("it must be SCRAM-SHA-256=[name=...,password=...] or SCRAM-SHA-512=[...]")
    fields = {each["key"]: each["value"] for each in _FIELD.finditer(form["fields"])}
    name, password = fields.get("name"), fields.get("password")
    if not name or not password:
        raise _refuse("it has no name or no password")
    iterations_text = fields.get("iterations", str(ITERATIONS_MIN))
    if not iterations_text.isdecimal() or not ITERATIONS_MIN <= int(iterations_text) <= ITERATIONS_MAX:
        raise _refuse(f"iterations must be a number from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    try:
        salt = (
            b64decode(fields["salt"], validate=True) if "salt" in fields else make_salt(os.urandom(SALT_RANDOM_BYTES))
        )
    except (Base64Error, ValueError):
        raise _refuse("salt must be base64") from None
    salted = salt_password(mechanism, password, salt, int(iterations_text))
    return set_password(name, mechanism, salted, salt, int(iterations_text))


def _refuse(why: str) -> Refused:
    return Refused(Code.INVALID_CONFIG, f"{OPTION}: {why}")
