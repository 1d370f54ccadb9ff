"""JSON bodies with a long list of records, parsed in pieces.

Keeps: the objects of one piece exist at a time, and a piece holds the interpreter's lock for a few milliseconds. A body
is JSON if and only if it was parsed to its end: until then the entries of earlier pieces are given already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from tiered.records.native import json_entries
from tiered_api.http.exchange.errors import BAD_REQUEST, HttpError
from tiered_api.http.exchange.fields import ELEMENTS_MAX, TEXT_BYTES, check_text, load_json

PIECE_ELEMENTS = 20_000
"""Most values and names of a piece of several entries."""
PIECE_BYTES = 1 << 20
"""Most bytes of a piece of several entries, which is copied."""

REST_BYTES = 4 << 20
"""Most bytes of a body beside its list."""

Piece = tuple[int, int, int, int]


class JsonEntries:
    """The entries of a list in a body, in order. Each iteration parses them anew."""

    def __init__(
        self, data: bytes | bytearray, name: str, pieces: Sequence[Piece], free: tuple[bytes, ...], code: int
    ) -> None:
        self._data = data
        self._name = name
        self._pieces = pieces
        self._free = free
        self._code = code

    def __len__(self) -> int:
        return sum(entries for _, _, entries, _ in self._pieces)

    def __iter__(self) -> Iterator[Any]:
        """Yields the entries. Raises `HttpError` 400 if they are not JSON, 413 for an entry that is too long or has too
        many values and names, and as `load_json` does for a field that an object has twice."""
        number = 0
        with memoryview(self._data) as view:
            for start, end, entries, elements in self._pieces:
                with view[start:end] as text:
                    if entries == 1 and max(elements, len(text)) > ELEMENTS_MAX:  # others are smaller
                        check_text(text, f"{self._name}[{number}]")
                    parsed = self._parse(text, entries)
                yield from parsed
                del parsed  # before the next piece is parsed
                number += entries

    def _parse(self, text: memoryview, entries: int) -> list[Any]:
        try:
            if entries == 1:  # perhaps long: it is not copied
                return [load_json(text, self._free, self._code)]
            parsed: list[Any] = load_json(b"".join((b"[", text, b"]")), self._free, self._code)
            return parsed
        except orjson.JSONDecodeError as error:
            raise malformed_json(error) from None


def load_with_entries(data: bytes | bytearray, name: str, free: tuple[bytes, ...] = (), code: int = BAD_REQUEST) -> Any:
    """Parses a JSON body as `load_json` does. If it is an object with a list as its field `name`, `JsonEntries` stand
    in the place of the list. The list does not count for the limits on the body. The rest may have `REST_BYTES`."""
    found = json_entries(data, name.encode(), PIECE_ELEMENTS, PIECE_BYTES)
    if found is None and len(data) > TEXT_BYTES:
        raise HttpError(400, f"malformed JSON: the body is no object with an array {name!r}, or the array has no end")
    if found is None:
        return load_json(data, free, code)
    start, end, pieces = found
    if len(data) - (end - start) > REST_BYTES:
        raise HttpError(413, f"the body has more than {REST_BYTES} bytes of JSON beside {name!r}")
    with memoryview(data) as view:
        value = load_json(b"".join((view[:start], view[end:])), free, code)
    value[name] = JsonEntries(data, name, pieces, free, code)
    return value


def malformed_json(error: orjson.JSONDecodeError) -> HttpError:
    """Returns the error for malformed JSON."""
    return HttpError(400, f"malformed JSON: {error.msg}")
