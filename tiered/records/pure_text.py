"""Helpers of the HTTP API in plain Python: the hash that spreads keys, a text in bytes, the spans and the number of
JSON values, and names that repeat in them."""

from __future__ import annotations

import json
import re
import sys

from tiered.ports import Buffer

DEPTH_MAX = 64


def murmur2(data: Buffer) -> int:
    """Returns MurmurHash2 with Kafka's seed, as a signed 32-bit number."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    raw = bytes(data)
    hashed = 0x9747B28C ^ (len(raw) & mask)
    whole = len(raw) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(raw[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        hashed = (hashed * m & mask) ^ k
    if whole != len(raw):
        hashed = (hashed ^ int.from_bytes(raw[whole:], "little")) * m & mask
    hashed = (hashed ^ hashed >> 13) * m & mask
    hashed ^= hashed >> 15
    return hashed - (hashed >> 31 << 32)


def find_text(buf: Buffer, text: bytes, start: int, /) -> int:
    """Returns where `text` begins in `buf` at or after `start`, -1 if it is not there. `text` has no capital letters,
    and the letters A to Z of `buf` count as a to z."""
    if not text or start < 0:
        raise ValueError("find_text takes a text, and a start that is not negative")
    return bytes(buf).lower().find(text, start)


_SPACE = re.compile(rb"[ \t\n\r]*")
_SCALAR = re.compile(rb"[0-9A-Za-z+.\-]*")
_STRING_REST = re.compile(rb'(?:[^"\\]|\\.)*"', re.DOTALL)
_MARK = re.compile(rb'["{}\[\]]')
_CLOSERS = {ord("{"): ord("}"), ord("["): ord("]")}


def json_spans(buf: Buffer, most: int = sys.maxsize, /) -> tuple[list[tuple[int, int]], int]:
    """Returns the top-level values of concatenated JSON as spans `[start, end)`, and where the incomplete rest begins.
    The values after the first `most` are part of the rest.

    Only strings and brackets are parsed: a span may still be invalid JSON. A number or word at the very end is
    incomplete, because the next byte may belong to it: end the last piece with a newline. Invalid bytes or nesting
    deeper than 64 raise `ValueError` if they come first. Otherwise the spans before them are returned, and they are the
    rest.
    """
    data = bytes(buf)
    spans: list[tuple[int, int]] = []
    at = _skip(_SPACE, data, 0)
    while at < len(data) and len(spans) < most:
        try:
            end = _json_value(data, at)
        except ValueError:
            if spans:
                return spans, at
            raise
        if end < 0:
            return spans, at
        spans.append((at, end))
        at = _skip(_SPACE, data, end)
    return spans, at


def _skip(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    match = pattern.match(data, at)
    return match.end() if match else at


def _json_value(data: bytes, at: int) -> int:
    """Returns the end of the value at `at`, or -1 if it is incomplete."""
    first = data[at : at + 1]
    if first == b'"':
        match = _STRING_REST.match(data, at + 1)
        return match.end() if match else -1
    if first in (b"{", b"["):
        return _json_nested(data, at)
    if first in b"-0123456789tfn":
        end = _skip(_SCALAR, data, at)
        return end if end < len(data) else -1
    raise ValueError(f"unexpected byte 0x{first[0]:02x} at {at}")


def _json_nested(data: bytes, at: int) -> int:
    open_brackets: list[int] = []
    while (mark := _MARK.search(data, at)) is not None:
        byte = data[mark.start()]
        at = mark.end()
        if byte == ord('"'):
            rest = _STRING_REST.match(data, at)
            if rest is None:
                return -1
            at = rest.end()
        elif byte in _CLOSERS:
            if len(open_brackets) == DEPTH_MAX:
                raise ValueError(f"nested deeper than {DEPTH_MAX} at {mark.start()}")
            open_brackets.append(_CLOSERS[byte])
        elif open_brackets.pop() != byte:
            raise ValueError(f"unexpected byte 0x{byte:02x} at {mark.start()}")
        if not open_brackets:
            return at
    return -1


_ELEMENT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{\[,:]', re.DOTALL)


def json_elements(buf: Buffer, /) -> int:
    """Returns the number of values and names of a JSON value, or a little more: 1, and 1 for each `[`, `{`, `,` and `:`
    outside of strings. Parsers take time and memory for each of them. `buf` may be any bytes."""
    return 1 + sum(mark[0][0] != _QUOTE for mark in _ELEMENT.finditer(bytes(buf)))


_QUOTE = ord('"')
_PART = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[{}\[\],:]', re.DOTALL)


def json_entries(
    buf: Buffer, name: bytes, elements_max: int, bytes_max: int, /
) -> tuple[int, int, list[tuple[int, int, int, int]]] | None:
    """Cuts the array that an object has as the value of `name` into pieces of consecutive entries. Returns the place
    after its `[`, the place of the bracket that closes it, and the pieces as (start, end, entries, elements).

    A piece has at most `elements_max` elements, each entry counted as by `json_elements`, and `bytes_max` bytes; or it
    is one entry with more. Returns None if the value is no object, if it has no such array, or if the array has no end.
    `name` is compared with the bytes between the quotes. The value has to be parsed to know if it is JSON at all: it is
    if it is JSON with the array empty, and if each piece in brackets is an array of so many entries.
    """
    data = bytes(buf)
    at = _find_array(data, name)
    if at < 0:
        return None
    pieces: list[tuple[int, int, int, int]] = []
    depth, start, elements = 0, at, 1
    for part in _PART.finditer(data, at):
        byte = data[part.start()]
        if byte == _QUOTE:
            if not part[1]:
                return None
            continue
        closes = byte in _ENDS
        if depth or (not closes and byte != _COMMA):
            elements += not closes
            depth += (byte in _OPENERS) - closes
            continue
        end = part.start()
        if not (closes and not pieces and _skip(_SPACE, data, start) >= end):
            _add_entry(pieces, (start, end, 1, elements), elements_max, bytes_max)
        if closes:
            return at, end, pieces
        start, elements = end + 1, 1
    return None


_COMMA = ord(",")


def _find_array(data: bytes, name: bytes) -> int:
    """Returns the place after the `[` of the array `name` of an object, or -1."""
    at = _skip(_SPACE, data, 0)
    if data[at : at + 1] != b"{":
        return -1
    depth = 0
    for part in _PART.finditer(data, at):
        byte = data[part.start()]
        if byte == _QUOTE:
            if not part[1]:
                return -1
            colon = _skip(_SPACE, data, part.end())
            if depth == 1 and data[part.start() + 1 : part.end() - 1] == name and data[colon : colon + 1] == b":":
                at = _skip(_SPACE, data, colon + 1)
                return at + 1 if data[at : at + 1] == b"[" else -1
        elif byte in _OPENERS:
            depth += 1
        elif byte in _ENDS:
            depth -= 1
            if depth == 0:
                return -1
    return -1


def _add_entry(
    pieces: list[tuple[int, int, int, int]], entry: tuple[int, int, int, int], elements_max: int, bytes_max: int
) -> None:
    if pieces:
        (start, _, entries, elements), (_, end, _, more) = pieces[-1], entry
        if elements + more <= elements_max and end - start <= bytes_max:
            pieces[-1] = start, end, entries + 1, elements + more
            return
    pieces.append(entry)


_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"([ \t\n\r]*:)?|[{}\[\]]', re.DOTALL)
_OPENERS = b"{["
_ENDS = b"}]"


def json_repeated_name(buf: Buffer, free: tuple[bytes, ...], /) -> str | None:
    """Returns the first name that an object of a JSON value has twice, None without one. Parsers keep one of its two
    values without a word.

    Objects inside the value of a name in `free` do not count. `buf` must be valid JSON, else the result has no meaning,
    or `ValueError` is raised.
    """
    data = bytes(buf)
    open_names: list[set[bytes]] = []  # a set for each open bracket
    skipped, is_free = 0, False  # brackets in the value of a free name; the last token was a free name
    for token in _TOKEN.finditer(data):
        first = data[token.start()]
        was_free, is_free = is_free, False
        if first in _OPENERS:
            if skipped or was_free:
                skipped += 1
            else:
                open_names.append(set())
        elif first in _ENDS:
            if skipped:
                skipped -= 1
            elif open_names:
                open_names.pop()
        elif token[1] is not None and not skipped and open_names:
            name = _decode_name(data[token.start() + 1 : data.rindex(b'"', 0, token.end())])
            if name in open_names[-1]:
                return name.decode(errors="replace")
            open_names[-1].add(name)
            is_free = name in free
    return None


def _decode_name(raw: bytes) -> bytes:
    """Returns the UTF-8 of a name without its escapes."""
    if b"\\" not in raw:
        return raw
    return str(json.loads(b'"%b"' % raw, strict=False)).encode(errors="surrogatepass")
