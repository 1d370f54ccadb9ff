"""The value of `sasl.jaas.config`: one login module with its options, in Kafka's grammar.

`org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret";`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tiered.errors import Code, Refused

TEXT_MAX = 1 << 20
"""Most characters of a value."""
_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r'\s+|//[^\n]*|/\*.*?\*/|(?P<quoted>"(?:[^"\\\n]|\\.)*")|(?P<word>[\w.$-]+)|(?P<mark>[=;])', re.DOTALL
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class LoginModule(NamedTuple):
    """A login module, by the name of its Java class, and its options."""

    name: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule(name={self.name!r})"

    @property
    def short_name(self) -> str:
        """The name of the class without its package."""
        return self.name.rpartition(".")[2]


def parse_jaas(text: str) -> LoginModule:
    """Returns the login module of a value. Raises `Refused` without any part of the value, which has secrets."""
    tokens = _split(text)
    if len(tokens) < 3 or tokens[-1] != ("mark", ";"):
        raise _refuse("it must be the class of a login module, a flag, options, and ; at the end")
    (kind, name), (_, flag), *rest = tokens[:-1]
    if kind != "word" or flag.lower() not in _FLAGS:
        raise _refuse(f"the class of the login module is followed by one of {', '.join(_FLAGS)}")
    if ("mark", ";") in rest:
        raise _refuse("it must have one login module")
    if len(rest) % 3:
        raise _refuse('each option must be name="value"')
    options = {}
    for (key_kind, key), equals, (value_kind, value) in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        if key_kind == "mark" or equals != ("mark", "=") or value_kind == "mark":
            raise _refuse('each option must be name="value"')
        options[key] = value
    return LoginModule(name, options)


def _split(text: str) -> list[tuple[str, str]]:
    if len(text) > TEXT_MAX:
        raise _refuse(f"it has more than {TEXT_MAX} characters")
    found = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _refuse(f"it does not parse at character {position + 1}")
        position = match.end()
        if match.lastgroup == "quoted":
            found.append(("quoted", re.sub(r"\\(.)", _unescape, match["quoted"][1:-1], flags=re.DOTALL)))
        elif match.lastgroup is not None:
            found.append((match.lastgroup, match[0]))
    return found


def _unescape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[1])


def _refuse(why: str) -> Refused:
    return Refused(Code.INVALID_CONFIG, f"sasl.jaas.config: {why}")
