"""Records from a stream: `-f '%k %v\\n'`, by delimiters, by sizes or by patterns, in the syntax of rpk.

A format is a row of fields with literals between them. A field whose size came before it (`%K{big32}%k`) takes that
many bytes. A field with a pattern takes what matches. Any other field takes all bytes up to the literal behind it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from tiered.errors import Code, Refused
from tiered_api.cli.text.record_format import format_error, literal_bytes, read_escape, read_modifier, strip_delimiters

INPUT_MAX = 64 << 20
"""Most bytes that are buffered for one record: an input without the expected delimiter fails here, and does not fill
the memory."""
FIELDS = "tkvpdh"


@dataclass(slots=True)
class InputRecord:
    """One record of the input; a field that the format does not read is None."""

    topic: str | None = None
    partition: int | None = None
    timestamp: int | None = None
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


class _NeedMoreInput(Exception):
    """The record is not complete: more input is needed."""


class _Token(NamedTuple):
    """A literal (`verb` is ""), or a field or a size with its modifier."""

    verb: str
    inside: str = ""
    literal: bytes = b""
    inner: tuple[_Token, ...] = ()


class RecordReader:
    """A reader that cuts a stream into records. Feed it bytes, iterate over its results."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _parse_tokens(text)
        if not any(token.verb for token in self._tokens):
            raise format_error(text, "it reads no field")
        fields = [token.verb for token in self._tokens]
        self._is_lines = self._tokens == (_Token("v"), _Token("", literal=b"\n"))
        if "h" in fields and "H" not in fields:
            raise format_error(text, "%h needs %H before it, the number of headers")
        self._rest = b""
        self._ended = False

    def feed(self, data: bytes, *, end: bool = False) -> Iterator[InputRecord]:
        """Yields the records that are complete now. With `end`, the rest must be one record. Raises `Refused` if the
        input does not fit."""
        self._ended = end
        whole = self._rest + data
        self._rest = b""
        if self._is_lines:
            *lines, self._rest = whole.split(b"\n")
            if end and self._rest:
                lines, self._rest = [*lines, self._rest], b""
            for line in lines:
                yield InputRecord(value=line)
        else:
            at = 0
            while at < len(whole):
                try:
                    parsed, at = self._read_record(whole, at)
                except _NeedMoreInput:
                    break
                yield parsed
            self._rest = whole[at:]
        if self._rest and end:
            raise self._format_mismatch("ends in the middle of a record", self._rest)
        if len(self._rest) > INPUT_MAX:
            raise self._format_mismatch(f"has no end of a record in {INPUT_MAX} bytes", self._rest)

    def _format_mismatch(self, why: str, rest: bytes) -> Refused:
        return Refused(Code.INVALID_REQUEST, f"input {why} of format {self._text!r}: {rest[:40]!r}")

    def _read_record(self, data: bytes, at: int) -> tuple[InputRecord, int]:
        parsed = InputRecord()
        at = self._read_tokens(self._tokens, parsed, data, at)
        return parsed, at

    def _read_tokens(self, tokens: tuple[_Token, ...], parsed: InputRecord, data: bytes, at: int) -> int:
        sizes: dict[str, int] = {}
        for number, token in enumerate(tokens):
            following = tokens[number + 1].literal if number + 1 < len(tokens) else b""
            if not token.verb:
                at = self._skip_literal(token.literal, data, at, is_last=number + 1 == len(tokens))
            elif token.verb in "TKVH":
                sizes[token.verb], at = self._read_number(token.inside, data, at)
            elif token.verb == "h":
                for _ in range(sizes["H"]):
                    one = InputRecord()
                    at = self._read_tokens(token.inner, one, data, at)
                    parsed.headers.append(((one.key or b"").decode("utf-8", "replace"), one.value))
            elif token.verb in "pd":
                value, at = self._read_number(token.inside, data, at)
                parsed.partition, parsed.timestamp = (
                    (value, parsed.timestamp) if token.verb == "p" else (parsed.partition, value)
                )
            else:
                text, at = self._read_text(token, sizes.get(token.verb.upper()), following, data, at)
                self._store_field(parsed, token.verb, text)
        return at

    def _store_field(self, parsed: InputRecord, verb: str, text: bytes) -> None:
        if verb == "k":
            parsed.key = text
        elif verb == "v":
            parsed.value = text
        else:
            parsed.topic = text.decode("utf-8", "replace")

    def _skip_literal(self, literal: bytes, data: bytes, at: int, *, is_last: bool) -> int:
        if data.startswith(literal, at):
            return at + len(literal)
        if literal.startswith(data[at:]):
            if not self._ended:
                raise _NeedMoreInput
            if is_last and at == len(data) and literal == b"\n":
                return at  # a last line without its newline
        raise self._format_mismatch(f"does not have {literal!r} where it is expected", data[at:])

    def _read_number(self, inside: str, data: bytes, at: int) -> tuple[int, int]:
        if inside in ("", "ascii"):
            found = re.compile(rb"-?\d+").match(data, at)
            if not found and data[at : at + 1] not in (b"", b"-"):
                raise self._format_mismatch("has no number where one is expected", data[at:])
            if not found or (found.end() == len(data) and not self._ended):
                raise _NeedMoreInput
            return int(found[0]), found.end()
        if inside == "bool":
            for word, value in ((b"true", 1), (b"false", 0)):
                if data.startswith(word, at):
                    return value, at + len(word)
            if len(data) - at < 5 and not self._ended:
                raise _NeedMoreInput
            raise self._format_mismatch("has neither true nor false where one is expected", data[at:])
        if inside.isdecimal():
            return int(inside), at
        size, read = _fixed_width(self._text, inside)
        if len(data) - at < size:
            raise _NeedMoreInput
        try:
            return read(data[at : at + size]), at + size
        except ValueError:
            raise self._format_mismatch("has no number where one is expected", data[at:]) from None

    def _read_text(self, token: _Token, size: int | None, following: bytes, data: bytes, at: int) -> tuple[bytes, int]:
        kind = token.inside
        if size is not None or kind.isdecimal():
            end = at + (int(kind) if size is None else size)
            if len(data) < end:
                raise _NeedMoreInput
        elif kind.startswith("re"):
            found = re.compile(strip_delimiters(self._text, kind[2:]).encode()).match(data, at)
            if found is None or found.end() == len(data):
                if not self._ended:
                    raise _NeedMoreInput
                if found is None:
                    raise self._format_mismatch("does not match the pattern", data[at:])
            end = found.end()
        elif following:
            end = data.find(following, at)
            if end < 0:
                if not (self._ended and following == b"\n"):
                    raise _NeedMoreInput
                end = len(data)
        elif self._ended:
            end = len(data)
        else:
            raise _NeedMoreInput
        return self._decode(kind, data[at:end]), end

    def _decode(self, kind: str, text: bytes) -> bytes:
        try:
            if kind == "hex":
                return bytes.fromhex(text.decode("ascii"))
            if kind == "base64":
                return base64.b64decode(text, validate=True)
            if kind == "json":
                return orjson.dumps(orjson.loads(text))
        except (ValueError, binascii.Error):
            raise self._format_mismatch(f"is not {kind} where it should be", text) from None
        return text


def _fixed_width(text: str, inside: str) -> tuple[int, Callable[[bytes], int]]:
    """Returns size and reader of a number of fixed width."""
    if inside == "byte":
        return 1, lambda data: data[0]
    found = re.fullmatch(r"(hex|big|little)(64|32|16|8|4)", inside)
    if not found or (found[1] != "hex" and found[2] == "4"):
        raise format_error(text, f"{{{inside}}} is no form of a number")
    if found[1] == "hex":
        return int(found[2]) // 4, lambda data: int(data, 16)
    order: str = found[1]
    return int(found[2]) // 8, lambda data: int.from_bytes(data, "big" if order == "big" else "little")


def _parse_tokens(text: str) -> tuple[_Token, ...]:
    out: list[_Token] = []
    at = 0
    while at < len(text):
        if text[at] == "%" and text[at + 1 : at + 2] not in ("%", "{", "}"):
            verb = text[at + 1 : at + 2]
            inside, at = read_modifier(text, at + 2)
            if not verb or verb not in FIELDS + "TKVH":
                raise format_error(text, f"%{verb} cannot be read")
            inner = _parse_tokens(inside) if verb == "h" else ()
            if verb == "h" and not inner:
                raise format_error(text, "%h takes the format of a header in braces")
            if verb in "tkv" and inside and not _is_text_form(inside):
                raise format_error(text, f"{{{inside}}} is no form of a text")
            if verb in "TKVHpd" and inside not in ("", "ascii", "bool") and not inside.isdecimal():
                _fixed_width(text, inside)
            out.append(_Token(verb, inside, inner=inner))
            continue
        if text[at] == "%":
            literal, at = text[at + 1].encode(), at + 2
        elif text[at] == "\\":
            character, at = read_escape(text, at)
            literal = literal_bytes(character)
        else:
            literal, at = text[at].encode(), at + 1
        if out and not out[-1].verb:
            out[-1] = _Token("", literal=out[-1].literal + literal)
        else:
            out.append(_Token("", literal=literal))
    return tuple(out)


def _is_text_form(inside: str) -> bool:
    return inside in ("hex", "base64", "json") or inside.isdecimal() or inside.startswith("re")
