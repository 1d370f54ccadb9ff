"""Profiles: named settings of connections, as a TOML file has them.

current = "prod"

[profiles.prod]
brokers = "b1.example.com:9092"
command-config = "/home/ann/prod.properties"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from tiered.errors import Code, Refused

COMMAND_CONFIG, DESCRIPTION, HTTP = "command-config", "description", "http"
"""Settings that only profiles have: a file of properties, a text for people, and the address of a broker's HTTP."""
SECRETS = frozenset(
    {
        *("sasl.password", "sasl.jaas.config", "sasl.oauthbearer.client.credentials.client.secret"),
        *("ssl.key.password", "ssl.keystore.password", "ssl.truststore.password", "ssl.keystore.key"),
    }
)
"""Settings that are printed only if they are asked for."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_CURRENT, _PROFILES = "current", "profiles"
_DEPTH_MAX = 20
"""Most parts of a setting's name."""


class Profiles(NamedTuple):
    """All profiles, each with its settings. `current` is the name of one of them, "" for none."""

    current: str = ""
    settings: Mapping[str, Mapping[str, str]] = {}

    def find(self, name: str, where: str) -> Mapping[str, str]:
        """Returns the settings of a profile. Raises `Refused` with the names that `where` has instead."""
        if name in self.settings:
            return self.settings[name]
        known = f"it has {', '.join(sorted(self.settings))}" if self.settings else "it has none"
        raise _refuse(where, f"no profile {name!r}: {known}")

    def with_profile(self, name: str, settings: Mapping[str, str]) -> Profiles:
        """Returns the profiles with other settings of one of them."""
        return self._replace(settings={**self.settings, name: settings})

    def without_profile(self, name: str) -> Profiles:
        """Returns the profiles without one of them. It is not current any more."""
        left = {each: settings for each, settings in self.settings.items() if each != name}
        return Profiles("" if self.current == name else self.current, left)


def check_profile_name(name: str) -> None:
    """Raises `Refused` for a text that cannot name a profile."""
    if not _NAME.fullmatch(name):
        why = "1 to 64 letters, digits, dots, hyphens and underscores, and no dot at the beginning"
        raise Refused(Code.INVALID_REQUEST, f"{name[:100]!r} cannot name a profile: it must have {why}")


def parse_profiles(text: str, where: str) -> Profiles:
    """Parses the file of profiles. Raises `Refused` that begins with `where`, without any value of the file."""
    try:
        body = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _refuse(where, f"it is no TOML: {error}") from None
    except RecursionError:
        raise _refuse(where, "it is nested too deeply") from None
    unknown = [key for key in body if key not in (_CURRENT, _PROFILES)]
    if unknown:
        raise _refuse(where, f"it may have {_CURRENT} and [{_PROFILES}.NAME] only, not {unknown[0][:100]!r}")
    current, tables = body.get(_CURRENT, ""), body.get(_PROFILES, {})
    if not isinstance(current, str):
        raise _refuse(where, f"{_CURRENT} must be the name of a profile in quotes")
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise _refuse(where, f"each profile must be a table [{_PROFILES}.NAME]")
    made = {}
    for name, table in tables.items():
        if not _NAME.fullmatch(name):
            raise _refuse(where, f"{name[:100]!r} cannot name a profile")
        made[name] = _flatten(table, "", f"{where}: profile {name!r}")
    return Profiles(current, made)


def format_profiles(profiles: Profiles) -> str:
    """Returns the text of the file."""
    lines = ["# The profiles of the command `tiered`. `tiered profile` writes this file, and keeps no comments."]
    if profiles.current:
        lines.append(f"{_CURRENT} = {_quote(profiles.current)}")
    for name, settings in sorted(profiles.settings.items()):
        lines += ["", f"[{_PROFILES}.{_quote(name)}]"]
        lines += [f"{_quote(key)} = {_quote(value)}" for key, value in sorted(settings.items())]
    return "\n".join(lines) + "\n"


def _flatten(table: Mapping[str, Any], prefix: str, where: str) -> dict[str, str]:
    """Returns tables inside a profile as dotted names: `security.protocol` without quotes is a table."""
    made = dict[str, str]()
    if prefix.count(".") > _DEPTH_MAX:
        raise _refuse(where, "it is nested too deeply")
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            made |= _flatten(value, f"{name}.", where)
        elif isinstance(value, str):
            made[name] = value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            made[name] = str(value)
        else:
            raise _refuse(where, f"{name[:100]} must be a text in quotes")
    return made


def _quote(text: str) -> str:
    """Returns a text as a basic string of TOML."""
    return '"' + re.sub(r'[\x00-\x1f\x7f"\\]', lambda found: f"\\u{ord(found[0]):04x}", text) + '"'


def _refuse(where: str, why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, f"{where}: {why}")
