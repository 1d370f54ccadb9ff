"""One setting as a row of a table: name, type, default, limits and one sentence, with parsing and refusal.

A settings table is a frozen dataclass whose fields are made by `setting(...)`. A field's name is Kafka's dotted name
with underscores for dots: code uses `config.retention_ms`, people use `retention.ms`.

Text is read as Kafka reads it, and each value has one text, its normal form. Requests, files and flags all go through
`SettingRow.parse`. The metadata keeps the normal form, and replies show it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from decimal import Decimal
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
_BLANKS = "".join(map(chr, range(0x21)))
"""The characters that Java's `trim` cuts off a value."""
_WORD_BLANKS = " \t\n\x0b\f\r"
"""The characters that Kafka cuts off each word of a list."""
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_PLAIN_DECIMALS = (1e-3, 1e7)
"""The numbers that Java writes without an exponent."""


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
    without_effect: Mapping[str, str] = field(default_factory=dict)
    """Values that are kept and shown and change nothing, with the reason."""
    skips_blank_words: bool = False
    """True for a list with words that may be empty, as in Kafka: they are left out."""
    topic_name: str = ""
    """The topic setting of which this broker setting is the default; "" if there is none."""
    dynamic: bool = False
    """True if a broker setting can change while the broker runs; defaults of topic settings always can."""
    internal: bool = False
    """True for a setting that is for tests: replies show it only where it is set."""
    of_machine: bool = False
    """True for a number that is the machine's: each of its processes has a share."""

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
        text = text.strip(_BLANKS)
        if isinstance(self.default, tuple):
            return self._parse_list(text)
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

    def normalize(self, text: str) -> str:
        """Returns the normal form of `text`, as it is stored. Raises `Refused` like `parse`."""
        value = self.parse(text)
        return value.reveal() if isinstance(value, Secret) else text_of(value)

    def normalize_stored(self, text: str) -> str:
        """Returns the normal form of a text that the metadata has.

        Earlier releases stored the text as it was typed, and read it as Python does: `1_000`, `compact,`. They also
        took smaller numbers: such a number counts as the least that is taken now. A text that has no value is returned
        as it is.
        """
        text = text.strip()
        try:
            if isinstance(self.default, tuple):
                text = ",".join(word for word in map(str.strip, text.split(",")) if word)
            elif isinstance(self.default, int | float) and not isinstance(self.default, bool):
                assert self.low is not None, self.name
                text = str(max(type(self.default)(text), self.low))
            return self.normalize(text)
        except (ValueError, Refused):
            return text

    def refuse(self, value: str, why: str = "") -> Refused:
        """Returns the error for a value: the setting, the value, and the reason or what is allowed."""
        shown = HIDDEN if self.secret else shorten(value)
        return Refused(Code.INVALID_CONFIG, f"{self.name}={shown}: {why or 'it must be ' + self.allowed_values}")

    def _parse_number(self, text: str) -> int | float:
        assert self.low is not None and self.high is not None, self.name
        is_integer = isinstance(self.default, int)
        if not (_INTEGER if is_integer else _DECIMAL).fullmatch(text):
            raise self.refuse(text)
        try:
            number = int(text) if is_integer else float(text.rstrip("fFdD"))
        except ValueError:  # more digits than Python reads
            raise self.refuse(text) from None
        if not self.low <= number <= self.high:
            raise self.refuse(text)
        return number

    def _parse_list(self, text: str) -> tuple[str, ...]:
        """Returns the words, each once. An empty text is an empty list, and no word of another is empty."""
        words = [word.strip(_WORD_BLANKS) for word in text.split(",")] if text else []
        if self.skips_blank_words:
            words = [word for word in words if word]
        if "" in words:
            raise self.refuse(text, "no word between its commas may be empty")
        for word in words:
            self._check_choice(word, text)
        return tuple(dict.fromkeys(words))

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
    without_effect: Mapping[str, str] | None = None,
    skips_blank_words: bool = False,
    topic_name: str = "",
    dynamic: bool = False,
    internal: bool = False,
    of_machine: bool = False,
) -> T:
    """Returns a field of a settings table.

    Its type is that of the value, because that is what reading the field gives.
    """
    row = SettingRow(
        "", default, sentence, low, high, choices, unsupported or {}, without_effect or {}, skips_blank_words,
        topic_name, dynamic or bool(topic_name), internal, of_machine,
    )  # fmt: skip
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


def split_words(text: str) -> tuple[str, ...]:
    """Returns the words to append to a list, or to remove from it, as Kafka splits them: empty ones at the end do not
    count, and an empty text is one empty word."""
    words = [word.strip(_WORD_BLANKS) for word in text.split(",")]
    while len(words) > 1 and not words[-1]:
        words.pop()
    return tuple(words) if words != [""] or "," not in text else ()


def text_of(value: Value) -> str:
    """Returns a value as text, as in a file or a reply: the normal form. A secret is hidden."""
    if isinstance(value, Secret):
        return HIDDEN if value else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _decimal_text(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _decimal_text(number: float) -> str:
    """Returns a number as Java writes it, such as 0.5 or 1.0E-5."""
    smallest, end = _PLAIN_DECIMALS
    if number == 0 or smallest <= abs(number) < end:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int), "no limit of a setting is infinite"
    shown = "".join(map(str, digits)).rstrip("0")
    return f"{'-' * sign}{shown[0]}.{shown[1:] or '0'}E{exponent + len(digits) - 1}"
