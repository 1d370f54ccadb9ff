"""Output formats of records: `-f '%t %p %o %k %v\\n'`, in the verbs and modifiers of rpk and kcat.

A format is compiled once into a list of functions. A record is printed as their outputs, one after the other, as bytes.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

import orjson

from tiered.errors import Code, Refused
from tiered.records.model import APPEND_TIME, CODEC_MASK, CONTROL, TRANSACTIONAL, Codec, Header, Record


class PrintableRecord(NamedTuple):
    """A record with all fields that a format may print."""

    topic: str
    partition: int
    record: Record
    leader_epoch: int = -1
    attributes: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    log_start: int = -1
    last_stable: int = -1
    high_watermark: int = -1
    number: int = 0


Piece = Callable[[PrintableRecord], bytes]
T = TypeVar("T")
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\", "0": "\0"}
NUMBERS: dict[str, Callable[[PrintableRecord], int]] = {
    "T": lambda shown: len(shown.topic.encode()),
    "K": lambda shown: len(shown.record.key or b""),
    "V": lambda shown: len(shown.record.value or b""),
    "H": lambda shown: len(shown.record.headers),
    "p": lambda shown: shown.partition,
    "o": lambda shown: shown.record.offset,
    "e": lambda shown: shown.leader_epoch,
    "x": lambda shown: shown.producer_id,
    "y": lambda shown: shown.producer_epoch,
    "[": lambda shown: shown.log_start,
    "|": lambda shown: shown.last_stable,
    "]": lambda shown: shown.high_watermark,
    "i": lambda shown: shown.number,
}
TEXTS: dict[str, Callable[[PrintableRecord], bytes | None]] = {
    "t": lambda shown: shown.topic.encode(),
    "k": lambda shown: shown.record.key,
    "v": lambda shown: shown.record.value,
}
ATTRIBUTES: dict[str, Callable[[PrintableRecord], int]] = {
    "compression": lambda shown: shown.attributes & CODEC_MASK,
    "timestamp-type": lambda shown: int(bool(shown.attributes & APPEND_TIME)),
    "transactional-bit": lambda shown: int(bool(shown.attributes & TRANSACTIONAL)),
    "control-bit": lambda shown: int(bool(shown.attributes & CONTROL)),
}
UNPACK = {"b": "b", "B": "B", "h": "h", "H": "H", "i": "i", "I": "I", "q": "q", "Q": "Q", "c": "c", ".": "c"}
GO_TIMES = (
    ("2006", "%Y"), ("January", "%B"), ("Jan", "%b"), ("Monday", "%A"), ("Mon", "%a"), ("01", "%m"), ("02", "%d"),
    ("15", "%H"), ("03", "%I"), ("04", "%M"), ("05", "%S"), ("PM", "%p"), ("Z07:00", "Z"), ("MST", "UTC"),
)  # fmt: skip


def compile_format(text: str) -> Callable[[PrintableRecord], bytes]:
    """Returns the printer for a format. Raises `Refused` (INVALID_REQUEST) if the format is wrong."""
    pieces = _compile_pieces(text)
    return lambda shown: b"".join([piece(shown) for piece in pieces])


def format_error(text: str, why: str) -> Refused:
    """Returns the error for a wrong format."""
    return Refused(Code.INVALID_REQUEST, f"format {text!r}: {why}")


def read_escape(text: str, at: int) -> tuple[str, int]:
    """Returns the character of the escape whose backslash is at `at`, and its end."""
    following = text[at + 1 : at + 2]
    if following == "x":
        digits = text[at + 2 : at + 4]
        if not re.fullmatch("[0-9a-fA-F]{2}", digits):
            raise format_error(text, r"\x takes two hex digits")
        return chr(int(digits, 16)), at + 4
    if following not in ESCAPES:
        raise format_error(text, f"\\{following} is no escape")
    return ESCAPES[following], at + 2


def read_modifier(text: str, at: int) -> tuple[str, int]:
    """Returns the text in braces at `at`, "" if there are none, and its end. Braces may nest."""
    if text[at : at + 1] != "{":
        return "", at
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if not depth:
            return text[at + 1 : end], end + 1
    raise format_error(text, "a brace is not closed")


def literal_bytes(character: str) -> bytes:
    """Returns the bytes of a literal: an escape below 256 is one byte, as in `\\xff`."""
    return character.encode("latin-1") if ord(character) < 256 else character.encode()


def _compile_pieces(text: str) -> list[Piece]:
    out: list[Piece] = []
    at = 0
    while at < len(text):
        if text[at] == "\\":
            character, at = read_escape(text, at)
            out.append(_literal(literal_bytes(character)))
        elif text[at] == "%":
            verb = text[at + 1 : at + 2]
            inside, at = read_modifier(text, at + 2) if verb not in ("{", "}", "%") else ("", at + 2)
            out.append(_literal(verb.encode()) if verb in ("{", "}", "%") and verb else _verb(text, verb, inside))
        else:
            out.append(_literal(text[at].encode()))
            at += 1
    return out


def _literal(data: bytes) -> Piece:
    return lambda shown: data


def _verb(text: str, verb: str, inside: str) -> Piece:
    if verb in NUMBERS:
        return _compose(NUMBERS[verb], number_form(text, inside))
    if verb in TEXTS:
        return _compose(TEXTS[verb], text_form(text, inside))
    if verb == "d":
        return _compose(lambda shown: shown.record.timestamp, _time_form(text, inside))
    if verb == "a":
        return _attribute(text, inside)
    if verb == "h":
        return _headers(inside or "%k=%v ")
    raise format_error(text, f"%{verb} is no field" if verb else "it ends in a single %")


def _compose(field: Callable[[PrintableRecord], T], form: Callable[[T], bytes]) -> Piece:
    return lambda shown: form(field(shown))


def _headers(inside: str) -> Piece:
    one = compile_format(inside)

    def print_headers(shown: PrintableRecord) -> bytes:
        return b"".join(one(shown._replace(record=_as_record(header))) for header in shown.record.headers)

    return print_headers


def _as_record(header: Header) -> Record:
    """Returns a header as a record for the same verbs: its name is %k, its value %v."""
    return Record(0, 0, header[0].encode(), header[1], ())


def _attribute(text: str, inside: str) -> Piece:
    name, semicolon, number = inside.partition(";")
    if name not in ATTRIBUTES:
        raise format_error(text, f"%a{{{inside}}}: one of {', '.join(ATTRIBUTES)}")
    if name == "compression" and not semicolon:
        return lambda shown: Codec(ATTRIBUTES[name](shown)).name.lower().encode()
    return _compose(ATTRIBUTES[name], number_form(text, "" if number == "number" else number))


def number_form(text: str, inside: str) -> Callable[[int], bytes]:
    """Returns the printer of a number."""
    if inside in ("", "ascii"):
        return lambda value: b"%d" % value
    if inside == "bool":
        return lambda value: b"true" if value else b"false"
    kind, bits = ("big", "8") if inside == "byte" else (inside.rstrip("0123456789"), inside.lstrip("abcdefghilrtx"))
    if kind == "hex" and bits in ("64", "32", "16", "8", "4"):
        width = int(bits) // 4
        return lambda value: b"%0*x" % (width, value & ((1 << 4 * width) - 1))
    if kind == "big" and bits in ("64", "32", "16", "8"):
        return lambda value: (value & ((1 << int(bits)) - 1)).to_bytes(int(bits) // 8, "big")
    if kind == "little" and bits in ("64", "32", "16", "8"):
        return lambda value: (value & ((1 << int(bits)) - 1)).to_bytes(int(bits) // 8, "little")
    raise format_error(text, f"{{{inside}}} is no form of a number")


def text_form(text: str, inside: str) -> Callable[[bytes | None], bytes]:
    """Returns the printer of bytes; null prints nothing (`null` in JSON)."""
    if not inside:
        return lambda data: data or b""
    if inside == "hex":
        return lambda data: (data or b"").hex().encode()
    if inside == "base64":
        return lambda data: base64.b64encode(data or b"")
    if inside == "base64raw":
        return lambda data: base64.b64encode(data or b"").rstrip(b"=")
    if inside == "json":
        return lambda data: orjson.dumps(None if data is None else data.decode("utf-8", "replace"))
    if inside.startswith("unpack"):
        return _unpacker(text, strip_delimiters(text, inside.removeprefix("unpack")))
    raise format_error(text, f"{{{inside}}} is no form of a text")


def strip_delimiters(text: str, inside: str) -> str:
    """Returns the text between brackets, braces or any number of #."""
    found = re.fullmatch(r"\[(.*)\]|\{(.*)\}|(#+)(.*)\3", inside, re.DOTALL)
    if not found:
        raise format_error(text, f"{inside!r} must stand in [brackets], {{braces}} or #signs#")
    return found[1] or found[2] or found[4] or ""


def _unpacker(text: str, spec: str) -> Callable[[bytes | None], bytes]:
    if bad := re.sub(r"[x<>bBhHiIqQc.s$]", "", spec):
        raise format_error(text, f"unpack knows no {bad!r}")

    def unpack(data: bytes | None) -> bytes:
        left, order, out = data or b"", ">", b""
        for letter in spec:
            if letter in "<>":
                order = letter
            elif letter == "s":
                out, left = out + left, b""
            elif letter == "$":
                out += f" (unpack: {len(left)} bytes left)".encode() if left else b""
            else:
                form = struct.Struct(order + UNPACK.get(letter, "x"))
                if len(left) < form.size and letter != "x":
                    return out + b" (unpack: too short)"
                for value in form.unpack(left[: form.size]) if letter != "x" else ():
                    out += value if isinstance(value, bytes) else b"%d" % value
                left = left[form.size :] if letter != "x" else left[1:]
        return out

    return unpack


CALENDAR_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999. A timestamp outside of them is printed as a number."""


def _time_form(text: str, inside: str) -> Callable[[int], bytes]:
    if inside.startswith("strftime"):
        layout = strip_delimiters(text, inside.removeprefix("strftime"))
    elif inside.startswith("go"):
        layout = _go_to_strftime(strip_delimiters(text, inside.removeprefix("go")))
    else:
        return number_form(text, inside)

    def form(ms: int) -> bytes:
        if not CALENDAR_MS[0] <= ms <= CALENDAR_MS[1]:
            return b"%d" % ms
        moment = datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
        fractions = re.sub(r"\x00(\d)", lambda found: f"{ms % 1000:03d}".ljust(9, "0")[: int(found[1])], layout)
        return moment.strftime(fractions).encode()

    return form


def _go_to_strftime(layout: str) -> str:
    """Converts Go's time layout, which is an example, to strftime's; a fraction becomes NUL and its digits."""
    layout = re.sub(r"(?<=[.,])([09]+)", lambda found: f"\0{min(len(found[1]), 9)}", layout.replace("%", "%%"))
    names = "|".join(re.escape(example) for example, _ in GO_TIMES)
    return re.sub(names, lambda found: dict(GO_TIMES)[found[0]], layout)
