"""The settings of a connection, each from the first of several sources that has it.

Options win over variables of the environment, and these win over the current profile. A file of properties or a
profile is a whole client: TLS and login are those of the first one, even if it has none. Otherwise a file that names
another broker would send the password of the profile there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tiered.clients.properties import MECHANISM, PASSWORD, PROTOCOL, USER
from tiered.errors import Code, Refused
from tiered.security.sasl_oauthbearer import MECHANISM as OAUTHBEARER

NO_SETTINGS: Mapping[str, str] = {}
LOGIN_REFUSALS = (Code.SASL_AUTHENTICATION_FAILED, Code.UNSUPPORTED_SASL_MECHANISM, Code.ILLEGAL_SASL_STATE)


class Source(NamedTuple):
    """Settings from one place."""

    name: str
    settings: Mapping[str, str]
    is_client: bool = False
    """True for a file of properties and a profile: settings of TLS and of the login that it lacks are absent."""
    is_option: bool = False
    """True if the caller has just typed the settings, and needs no word on their source."""


class ClientSettings(NamedTuple):
    """Settings of a connection by their sources, the first one first. An empty value counts as absent."""

    sources: tuple[Source, ...]

    def get(self, name: str, default: str = "") -> str:
        """Returns a setting from its first source."""
        source = self.source(name)
        return default if source is None else source.settings[name]

    def source(self, *names: str) -> Source | None:
        """Returns the first source that has one of the settings, None without any."""
        return next((each for each in self.sources if any(each.settings.get(name) for name in names)), None)

    def first(self, name: str, default: str) -> str:
        """Returns a setting from the first source that has it, also if it is empty there."""
        return next((each.settings[name] for each in self.sources if name in each.settings), default)

    def is_behind(self, names: Sequence[str], others: Sequence[str]) -> bool:
        """True if some of `others` come from an earlier source than all of `names`."""
        for each in self.sources:
            if any(each.settings.get(name) for name in names):
                return False
            if any(each.settings.get(name) for name in others):
                return True
        return False

    def is_option(self, name: str) -> bool:
        """True if an option has the setting."""
        return any(each.is_option and name in each.settings for each in self.sources)

    @property
    def properties(self) -> Mapping[str, str]:
        """The settings of the file or the profile that says how to log in."""
        return next((each.settings for each in self.sources if each.is_client), NO_SETTINGS)

    def explain(self, refused: Refused) -> Refused:
        """Returns an error that also says the sources of the settings that it names, but for options."""
        told = "; ".join(f"{name} from {source.name}" for name, source in self._named(refused.why))
        return Refused(refused.code, f"{refused.why} ({told})") if told else refused

    def explain_login(self, refused: Refused) -> Refused:
        """Returns an error of a broker that also says the source of the login, if the login is refused and is not from
        options alone. The user and the password may have sources of their own."""
        if refused.code not in LOGIN_REFUSALS:
            return refused
        login = self.source(PROTOCOL)
        is_by_token = self.get(MECHANISM).upper() == OAUTHBEARER
        user, password = (login, login) if is_by_token else (self.source(USER), self.source(PASSWORD))
        user, password = user or login, password or login
        if user is None or password is None or (user.is_option and password.is_option):
            return refused
        told = f"the login is from {user.name}"
        if user != password:
            told = f"the user is from {user.name}, the password from {password.name}"
        return Refused(refused.code, f"{refused.why} ({told})")

    def _named(self, why: str) -> Iterator[tuple[str, Source]]:
        for name in dict.fromkeys(name for each in self.sources for name in each.settings):
            source = self.source(name)
            if source and not source.is_option and source.name not in why and _names(why, name):
                yield name, source


def _names(why: str, setting: str) -> bool:
    """True if an error is about a setting. One without a dot is also a word, so it has to stand first."""
    if "." not in setting:
        return why.startswith((f"{setting}=", f"{setting} "))
    return re.search(rf"(?<![\w.-]){re.escape(setting)}\b", why) is not None


def merge_sources(sources: Sequence[Source]) -> ClientSettings:
    """Returns the settings of sources, the first one first. Only the first whole client keeps its TLS and its
    login."""
    kept = list[Source]()
    for each in sources:
        if each.is_client and any(other.is_client for other in kept):
            others = {name: value for name, value in each.settings.items() if not is_security(name)}
            kept.append(Source(each.name, others))
        else:
            kept.append(each)
    return ClientSettings(tuple(kept))


def is_security(name: str) -> bool:
    """True for a setting of TLS or of the login."""
    return name not in ("brokers", "timeout", "http")
