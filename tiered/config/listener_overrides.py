"""Settings of one listener: `listener.name.NAME.SETTING`, as Kafka has them.

A listener can have its own TLS, mechanisms, time between logins and limits of connections. The users of PLAIN are in
the login module of `listener.name.NAME.plain.sasl.jaas.config`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from tiered.config.setting import SettingRow, Value, shorten
from tiered.errors import Code, Refused
from tiered.security import sasl_plain
from tiered.security.jaas import parse_jaas
from tiered.security.secret import Secret

PREFIX = "listener.name."
JAAS = "sasl.jaas.config"
PLAIN_USERS = f"plain.{JAAS}"
OWN_LOGIN = "brokers log in at each other with the secret of the brokers"
DYNAMIC = ("max.connections", "max.connection.creation.rate")
"""Settings of a listener that can change while the broker runs, as in Kafka: for one broker, or for all."""
_OVERRIDABLE = ("sasl.enabled.mechanisms", "connections.max.reauth.ms", *DYNAMIC)
_LOGIN_MODULES_WITHOUT_EFFECT = (f"scram-sha-256.{JAAS}", f"scram-sha-512.{JAAS}")


class ListenerOverride(NamedTuple):
    """One setting of one listener."""

    listener: str
    name: str
    value: Value


def split_overrides(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the settings of a broker, and those of single listeners."""
    ours = {name: text for name, text in given.items() if name.startswith(PREFIX)}
    return {name: text for name, text in given.items() if name not in ours}, ours


def parse_overrides(given: Mapping[str, str], table: Mapping[str, SettingRow]) -> tuple[ListenerOverride, ...]:
    """Returns settings of listeners, typed. Raises `Refused` (INVALID_CONFIG) with the name that is wrong."""
    return tuple(_parse(name, text, table) for name, text in given.items() if not has_no_effect(name))


def has_no_effect(name: str) -> bool:
    """True if a setting of Kafka's own files is accepted without effect."""
    return name.startswith(PREFIX) and name.removeprefix(PREFIX).partition(".")[2] in _LOGIN_MODULES_WITHOUT_EFFECT


def is_dynamic(name: str) -> bool:
    """True if a setting of a listener can change while the broker runs. Its name is in small letters, as in Kafka."""
    return name == name.lower() and _split(name)[1] in DYNAMIC


def is_shown(name: str, table: Mapping[str, SettingRow]) -> bool:
    """True if a setting of a listener is shown with those of its broker. The users of PLAIN are not."""
    return name == name.lower() and _split(name)[1] in table


def has_listener(name: str, listeners: Collection[str]) -> bool:
    """True if a setting belongs to one of the listeners."""
    return _split(name)[0] in listeners


def override_row(name: str, table: Mapping[str, SettingRow]) -> SettingRow:
    """Returns the row of a setting of a listener. It is that of the setting without the prefix."""
    return replace(table[_split(name)[1]], name=name, dynamic=is_dynamic(name))


def _split(name: str) -> tuple[str, str]:
    """Returns the listener of a setting, and the name of the setting there."""
    listener, _, key = name.removeprefix(PREFIX).partition(".")
    return (listener.upper(), key) if name.startswith(PREFIX) else ("", "")


def read_plain_users(value: Secret) -> Mapping[str, Secret]:
    """Returns the users in the value of a login module."""
    return _read_plain_users(value)


@lru_cache(maxsize=64)
def _read_plain_users(value: Secret) -> Mapping[str, Secret]:
    return sasl_plain.read_users(parse_jaas(value.reveal()))


def _parse(name: str, text: str, table: Mapping[str, SettingRow]) -> ListenerOverride:
    listener, key = _split(name)
    if key == PLAIN_USERS:
        try:
            read_plain_users(Secret(text))
        except Refused as refused:
            raise Refused(refused.code, f"{name}: {refused.why.removeprefix(JAAS + ': ')}") from None
        return ListenerOverride(listener, PLAIN_USERS, Secret(text))
    if key not in table or not (key.startswith("ssl.") or key in _OVERRIDABLE):
        known = ", ".join((*_OVERRIDABLE, PLAIN_USERS))
        why = f"a listener has no setting {shorten(key) or 'without a name'} of its own: it can have ssl.*, {known}"
        raise Refused(Code.INVALID_CONFIG, f"{shorten(name)}: {why}")
    return ListenerOverride(listener, key, replace(table[key], name=name).parse(text))
