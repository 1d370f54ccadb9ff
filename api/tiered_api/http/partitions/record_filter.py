"""The records that a read wants: each part of the filter has to fit.

Texts are searched in bytes, where the letters A to Z count as a to z.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.records.model import Record
from tiered.records.native import find_text
from tiered_api.http.partitions.json_condition import JsonCondition, parse_condition, parse_json

TEXT_BYTES_MAX = 256
"""Longest part of a filter."""


class RecordFilter(NamedTuple):
    """A part is None if records of any kind fit."""

    text: bytes | None = None
    """A text in key, value, or the name or value of a header, without capital letters of ASCII."""
    key: bytes | None = None
    """The whole key."""
    header: tuple[str, bytes] | None = None
    """The name of a header, and a text in its value, without capital letters of ASCII."""
    json: JsonCondition | None = None
    """A condition on the value as JSON. A value that is no JSON does not fit."""

    def texts(self) -> list[tuple[bytes, ...]]:
        """Returns groups of texts without capital letters of ASCII: the bytes of a record that fits have one text of
        each group."""
        groups = list[tuple[bytes, ...]]()
        if self.text is not None:
            groups.append((self.text,))
        if self.key is not None:
            groups.append((self.key.lower(),))
        if self.header is not None:
            groups.append((self.header[0].encode().lower(),))
            groups.append((self.header[1],))
        if self.json is not None:
            groups.append(tuple(each.lower() for each in self.json.texts()))
        return [group for group in groups if group and all(group)]

    def fits(self, record: Record) -> bool:
        """True if the record is wanted."""
        if self.key is not None and record.key != self.key:
            return False
        if self.text is not None and not _has_text(record, self.text):
            return False
        if self.header is not None and not _has_header(record, *self.header):
            return False
        return self.json is None or _is_met(self.json, record.value)


def parse_filter(parameters: dict[str, str]) -> RecordFilter | None:
    """Returns the filter that a query has: `contains`, `key`, `header` (`NAME` or `NAME:TEXT`) and `json`. Returns None
    without these. Raises `ValueError` for a part that is empty, too long, or no condition."""
    parts = {name: parameters[name] for name in FILTERS if name in parameters}
    for name, part in parts.items():
        if not 0 < len(part.encode()) <= TEXT_BYTES_MAX:
            raise ValueError(f"{name} has to be a text of 1 to {TEXT_BYTES_MAX} bytes")
    if not parts:
        return None
    text, key, header, json = map(parts.get, FILTERS)
    name, _, within = (header or "").partition(":")
    try:
        condition = None if json is None else parse_condition(json)
    except ValueError as error:
        raise ValueError(f"json={json!r} is no condition: {error}") from None
    return RecordFilter(
        None if text is None else text.encode().lower(),
        None if key is None else key.encode(),
        None if header is None else (name, within.strip().encode().lower()),
        condition,
    )


FILTERS = ("contains", "key", "header", "json")
"""The parameters of a query that make a filter."""


def _has_text(record: Record, text: bytes) -> bool:
    headers = (part for name, value in record.headers for part in (name.encode(), value))
    return any(part is not None and find_text(part, text, 0) >= 0 for part in (record.key, record.value, *headers))


def _has_header(record: Record, name: str, text: bytes) -> bool:
    return any(
        each == name and (not text or (value is not None and find_text(value, text, 0) >= 0))
        for each, value in record.headers
    )


def _is_met(condition: JsonCondition, value: bytes | None) -> bool:
    try:
        return value is not None and condition.is_met(parse_json(value))
    except ValueError:
        return False
