"""Settings of connections in files: the properties of a client of Kafka, such as its tools take them, and profiles."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from tiered.clients.properties import (
    BROKERS,
    JAAS,
    TIMEOUT_MS,
    TOKEN_LOGIN,
    USER,
    choose_properties,
    is_connection_property,
    read_properties_file,
)
from tiered.errors import Code, Refused
from tiered_api.cli import encryption, login
from tiered_api.cli.profiles import COMMAND_CONFIG, DESCRIPTION, HTTP

OPTION = "--command-config"
EXTRAS = ("brokers", "timeout", *encryption.EXTRAS, *login.EXTRAS)
"""Names of `-X`."""
_OWN = (COMMAND_CONFIG, DESCRIPTION, HTTP)
LOCATIONS = (
    *(COMMAND_CONFIG, "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
    *("ssl.truststore.location", "ssl.keystore.location"),
)
"""Settings that name a file."""


def read_client_properties(file: str, option: str = OPTION) -> dict[str, str]:
    """Returns the properties of a file that say how a connection is made, with `brokers` and `timeout`, in seconds, as
    `-X` names them. Raises `Refused` without any secret of the file."""
    where = f"{option} {file}"
    return _to_settings(read_properties_file(file, where), where)


def read_profile_settings(given: Mapping[str, str], where: str, folder: Path) -> dict[str, str]:
    """Returns the settings of a profile, those of its file of properties included; its own ones win. A relative path of
    that file begins at `folder`. Raises `Refused` that begins with `where`, without any secret."""
    check_setting_names(given, where)
    own = {name: value for name, value in given.items() if name in EXTRAS or name == HTTP}
    others = {name: value for name, value in given.items() if name not in _OWN}
    kafka = _to_settings({name: value for name, value in others.items() if is_property(name)}, where)
    made = {**kafka, **own}
    if COMMAND_CONFIG not in given:
        return made
    found = read_client_properties(str(folder / given[COMMAND_CONFIG]), f"{where}: {COMMAND_CONFIG}")
    if USER in made:
        found.pop(TOKEN_LOGIN, None)
    return {**found, **made}


def check_setting_names(names: Mapping[str, str], where: str) -> None:
    """Raises `Refused` for a setting that no profile has."""
    for name in names:
        if not (name in EXTRAS or name in _OWN or is_property(name)):
            near = difflib.get_close_matches(name, [*EXTRAS, *_OWN, BROKERS, JAAS], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Refused(Code.INVALID_REQUEST, f"{where}: unknown setting {name[:100]!r}{hint}")


def is_property(name: str) -> bool:
    """True for a property of Kafka's clients that says how a connection is made."""
    return name in (BROKERS, TIMEOUT_MS) or is_connection_property(name)


def _to_settings(given: Mapping[str, str], where: str) -> dict[str, str]:
    made = choose_properties(given, where)
    if BROKERS in made:
        made["brokers"] = made.pop(BROKERS)
    if TIMEOUT_MS in made:
        made["timeout"] = _to_seconds(where, made.pop(TIMEOUT_MS))
    return made


def _to_seconds(where: str, text: str) -> str:
    if not text.isdecimal():
        raise Refused(Code.INVALID_REQUEST, f"{where}: {TIMEOUT_MS} must be a number")
    return str(int(text[:9]) / 1000)
