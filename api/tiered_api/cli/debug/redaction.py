"""Secrets in replies and in lines of logs, hidden. Brokers show none: this is for what users put elsewhere.

A value is secret if the name beside it says so, as in the log of metadata changes (`metadata.shown_changes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tiered.metadata.shown_changes import SECRET_WORDS
from tiered.security.secret import HIDDEN

WORDS = (*SECRET_WORDS, "authorization", "access.key", "access_key", "salted", "stored_key", "server_key")
_NAMED = re.compile(
    rf"""(?P<name>[\w.\-]*(?:{"|".join(map(re.escape, WORDS))})[\w.\-]*["']?\s*[=:]\s*)"""
    r"""(?P<value>"[^"]*"|'[^']*'|(?:basic|bearer)\s+\S+|[^\s,;}\]]+)""",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.\-]*://)[^/\s@]+@", re.IGNORECASE)
_TOKEN = re.compile(r"\b(basic|bearer)\s+[A-Za-z0-9+/._~=\-]{8,}", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """True if a name says that its value is a secret."""
    lower = name.lower()
    return any(word in lower for word in WORDS)


def hide_text(text: str) -> str:
    """Returns a text without values whose names say that they are secret, logins in URLs and HTTP logins."""
    text = _NAMED.sub(lambda found: f"{found['name']}{HIDDEN}", text)
    text = _TOKEN.sub(lambda found: f"{found[1]} {HIDDEN}", text)
    return _LOGIN.sub(lambda found: f"{found['scheme']}{HIDDEN}@", text)


def hide_json(value: Any) -> Any:
    """Returns a value of JSON with secrets hidden, in objects of a `name` and a `value` too."""
    if isinstance(value, str):
        return hide_text(value)
    if isinstance(value, list):
        return [hide_json(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    name = value.get("name")
    is_secret = isinstance(name, str) and is_secret_name(name)
    return {
        key: HIDDEN if each is not None and (is_secret_name(key) or (is_secret and key == "value")) else hide_json(each)
        for key, each in value.items()
    }
