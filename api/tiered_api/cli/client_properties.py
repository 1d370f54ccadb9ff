"""`--command-config FILE`: the properties of a client of Kafka, such as its tools take them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from tiered.clients.properties import BROKERS, TIMEOUT_MS, choose_properties, read_properties_file
from tiered.errors import Code, Refused

OPTION = "--command-config"
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


def read_client_properties(file: str | None) -> Mapping[str, str]:
    """Returns the properties of a file that say how a connection is made, with `brokers` and `timeout`, in seconds, as
    `-X` names them. Raises `Refused` without any secret of the file."""
    if file is None:
        return NO_PROPERTIES
    where = f"{OPTION} {file}"
    made = choose_properties(read_properties_file(file, where), where)
    if BROKERS in made:
        made["brokers"] = made.pop(BROKERS)
    if TIMEOUT_MS in made:
        made["timeout"] = _to_seconds(where, made.pop(TIMEOUT_MS))
    return made


def find_option(name: str, extra: Mapping[str, str], properties: Mapping[str, str]) -> str:
    """Returns an option of `-X`, else of the file of properties, else of the environment; without all, an empty
    text."""
    return extra.get(name) or properties.get(name) or os.environ.get(environment_variable(name), "")


def environment_variable(name: str) -> str:
    """Returns the variable that has an option for all commands."""
    return "TIERED_" + name.upper().replace(".", "_")


def _to_seconds(where: str, text: str) -> str:
    if not text.isdecimal():
        raise Refused(Code.INVALID_REQUEST, f"{where}: {TIMEOUT_MS} must be a number")
    return str(int(text[:9]) / 1000)
