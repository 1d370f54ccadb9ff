"""One setting as a row of data: its name, type, default, limits and one sentence; reading it and refusing it.

A settings table is a frozen dataclass whose fields are made by `setting(...)`. Kafka's dotted name is the field's name
with underscores for dots, so code says `config.retention_ms` and people say `retention.ms`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, TypeVar

from tiered.errors import Code, Refused

Value = int | float | bool | str | tuple[str, ...]
T = TypeVar("T", bound=Value)
TRUE_FALSE = {"true": True, "false": False}


@dataclass(frozen=True)
class SettingRow:
    """What is known of one setting. `low` and `high` are inclusive; `choices` empty means free text."""

    name: str
    default: Value
    sentence: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Values that are well-formed but not built, with the reason."""
    topic_name: str = ""
    """For a broker setting that is the default of a topic setting: that setting's name."""
    dynamic: bool = False
    """Whether a broker setting can be changed while the broker runs; defaults of topics always can."""

    @property
    def type_name(self) -> str:
        """For tables and messages: boolean, integer, number, text or list."""
        names = {bool: "boolean", int: "integer", float: "number", str: "text", tuple: "list"}
        return names[type(self.default)]

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        if isinstance(self.default, bool):
            return " or ".join(word for word in TRUE_FALSE if word not in self.unsupported)
        if self.choices:
            only = [choice for choice in self.choices if choice not in self.unsupported]
            words = only[0] if len(only) == 1 else " or ".join((", ".join(only[:-1]), only[-1]))
            return f"a list of {words}" if isinstance(self.default, tuple) else words
        if not isinstance(self.default, int | float):
            return "any text"
        return f"{'an integer' if isinstance(self.default, int) else 'a number'} from {self.low} to {self.high}"

    def parse(self, text: str) -> Value:
        """The typed value of `text`; Refused(INVALID_CONFIG) names the key, the value and what is allowed."""
        text = text.strip()
        if isinstance(self.default, tuple):
            parts = tuple(part.strip() for part in text.split(",") if part.strip())
            for part in parts:
                self._check_choice(part, text)
            return parts
        if isinstance(self.default, bool):
            if text.lower() not in TRUE_FALSE:
                raise self.refuse(text)
            self._check_choice(text.lower(), text)
            return TRUE_FALSE[text.lower()]
        if isinstance(self.default, int | float):
            return self._parse_number(text)
        self._check_choice(text, text)
        return text

    def refuse(self, value: str, why: str = "") -> Refused:
        """The one form of a refusal: key, value, reason or what is allowed."""
        return Refused(Code.INVALID_CONFIG, f"{self.name}={value}: {why or 'it must be ' + self.allowed}")

    def _parse_number(self, text: str) -> int | float:
        assert self.low is not None and self.high is not None, self.name
        try:
            number = int(text) if isinstance(self.default, int) else float(text)
        except ValueError:
            raise self.refuse(text) from None
        if not self.low <= number <= self.high:
            raise self.refuse(text)
        return number

    def _check_choice(self, word: str, whole: str) -> None:
        if word in self.unsupported:
            raise self.refuse(whole, self.unsupported[word])
        if self.choices and word not in self.choices:
            raise self.refuse(whole)


def setting(
    default: T,
    sentence: str,
    low: int | None = None,
    high: int | None = None,
    choices: tuple[str, ...] = (),
    unsupported: Mapping[str, str] | None = None,
    topic_name: str = "",
    dynamic: bool = False,
) -> T:
    """A field of a settings table. (Typed as its value: that is what reading the field gives.)"""
    row = SettingRow(
        "", default, sentence, low, high, choices, unsupported or {}, topic_name, dynamic or bool(topic_name)
    )
    made: T = field(default=default, metadata={"row": row})
    return made


def rows(table: type[Any]) -> dict[str, SettingRow]:
    """The rows of a settings table by their dotted names, in the order of the fields."""
    made = {}
    for each in fields(table):
        row: SettingRow = each.metadata["row"]
        assert each.default is not MISSING
        name = each.name.replace("_", ".")
        made[name] = replace(row, name=name)
    return made


def unknown_setting(name: str, known: Iterable[str], what: str) -> Refused:
    """The refusal of a name that no table holds, with the nearest known one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return Refused(Code.INVALID_CONFIG, f"{name}: unknown {what} setting{hint}")


def text_of(value: Value) -> str:
    """A value as it is written in a file or an answer."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)
