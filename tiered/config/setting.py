"""One setting as a row of a table: name, type, default, limits and one sentence, with parsing and refusal.

A settings table is a frozen dataclass whose fields are made by `setting(...)`. A field's name is Kafka's dotted name
with underscores for dots: code uses `config.retention_ms`, people use `retention.ms`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, TypeVar

from tiered.errors import Code, Refused
from tiered.security.secret import HIDDEN, Secret

Value = int | float | bool | str | tuple[str, ...] | Secret
T = TypeVar("T", bound=Value)
TRUE_FALSE = {"true": True, "false": False}
VALUE_BYTES_MAX = 32_767
"""Limit on the bytes of a value that is set while brokers run, as in Kafka: the metadata log keeps it as text."""
QUOTED_MAX = 200
"""Limit on the characters of a name or value in an error message."""


@dataclass(frozen=True)
class SettingRow:
    """One setting. `low` and `high` are inclusive; empty `choices` mean free text."""

    name: str
    default: Value
    sentence: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Values that are well-formed but not built yet, with the reason."""
    topic_name: str = ""
    """The topic setting of which this broker setting is the default; "" if there is none."""
    dynamic: bool = False
    """True if a broker setting can change while the broker runs; defaults of topic settings always can."""

    @property
    def secret(self) -> bool:
        """True for passwords and keys: no message and no reply has the value."""
        return isinstance(self.default, Secret)

    @property
    def type_name(self) -> str:
        """Type for tables and messages: boolean, integer, number, text or list."""
        names = {bool: "boolean", int: "integer", float: "number", str: "text", tuple: "list", Secret: "text"}
        return names[type(self.default)]

    @property
    def allowed_values(self) -> str:
        """Allowed values in words."""
        if isinstance(self.default, bool):
            return " or ".join(word for word in TRUE_FALSE if word not in self.unsupported)
        if self.choices:
            only = [choice or "nothing" for choice in self.choices if choice not in self.unsupported]
            words = only[0] if len(only) == 1 else " or ".join((", ".join(only[:-1]), only[-1]))
            return f"a list of {words}" if isinstance(self.default, tuple) else words
        if not isinstance(self.default, int | float):
            return "any text"
        return f"{'an integer' if isinstance(self.default, int) else 'a number'} from {self.low} to {self.high}"

    def parse(self, text: str) -> Value:
        """Returns the typed value of `text`.

        Raises `Refused` (INVALID_CONFIG) with the setting, the value and what is allowed.
        """
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
        if isinstance(self.default, Secret):
            return Secret(text)
        self._check_choice(text, text)
        return text

    def refuse(self, value: str, why: str = "") -> Refused:
        """Returns the error for a value: the setting, the value, and the reason or what is allowed."""
        shown = HIDDEN if self.secret else shorten(value)
        return Refused(Code.INVALID_CONFIG, f"{self.name}={shown}: {why or 'it must be ' + self.allowed_values}")

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
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    unsupported: Mapping[str, str] | None = None,
    topic_name: str = "",
    dynamic: bool = False,
) -> T:
    """Returns a field of a settings table.

    Its type is that of the value, because that is what reading the field gives.
    """
    row = SettingRow(
        "", default, sentence, low, high, choices, unsupported or {}, topic_name, dynamic or bool(topic_name)
    )
    field_: T = field(default=default, metadata={"row": row})
    return field_


def rows(table: type[Any]) -> dict[str, SettingRow]:
    """Returns the rows of a settings table by their dotted names, in order of the fields."""
    table_rows = {}
    for each in setting_fields(table):
        row: SettingRow = each.metadata["row"]
        assert each.default is not MISSING
        name = each.name.replace("_", ".")
        table_rows[name] = replace(row, name=name)
    return table_rows


def setting_fields(table: Any) -> list[Field[Any]]:
    """Returns the fields of a table that are settings."""
    return [each for each in fields(table) if "row" in each.metadata]


def unknown_setting(name: str, known: Iterable[str], what: str) -> Refused:
    """Returns the error for an unknown name, with the most similar known one."""
    name = shorten(name)
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return Refused(Code.INVALID_CONFIG, f"{name}: unknown {what} setting{hint}")


def shorten(text: str) -> str:
    """Returns a name or value as error messages quote it."""
    return text if len(text) <= QUOTED_MAX else text[: QUOTED_MAX - 3] + "..."


def check_lengths(values: Mapping[str, str | None]) -> None:
    """Refuses a value that is longer than the metadata log may keep. None stands for the default."""
    for name, value in values.items():
        if value is not None and len(value.encode()) > VALUE_BYTES_MAX:
            raise Refused(
                Code.INVALID_CONFIG, f"{shorten(name)}: the value must have at most {VALUE_BYTES_MAX} bytes of text"
            )


def text_of(value: Value) -> str:
    """Returns a value as text, as in a file or a reply. A secret is hidden."""
    if isinstance(value, Secret):
        return HIDDEN if value else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)
