"""The vocabulary of message tables: a message is a dataclass whose fields name the versions that carry them.

A field is declared by the function of its wire type. So code reads and writes plain typed attributes, while `codec.py`
reads the field specs. Version ranges are written as in Kafka's message definitions: `0+`, `3-5`, `2`, or empty for
none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypeVar

HIGHEST = 32767
FIRST_PRIVATE_TAG = 10_000
"""The lowest tag of our own tagged fields. Clients skip tags that they do not know (KIP-482)."""
ZERO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The text form of the zero UUID, which means "no id"."""

T = TypeVar("T")


class Versions(NamedTuple):
    """An inclusive range of versions; empty if `low` is above `high`."""

    low: int
    high: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parses `0+`, `3-5`, `2`, or an empty text for no version."""
        if not text:
            return cls(1, 0)
        low, dash, high = text.rstrip("+").partition("-")
        if text.endswith("+"):
            return cls(int(low), HIGHEST)
        return cls(int(low), int(high) if dash else int(low))


class FieldType(Enum):
    """Wire types. A UUID is a text in Kafka's form (22 characters); RECORDS are buffers that are never copied."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    FLOAT64 = "float64"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"
    UUID = "uuid"
    STRUCT = "struct"


@dataclass(frozen=True)
class FieldSpec:
    """The wire format of a field. `of` is the dataclass of a struct; `tag` is -1 for a field without a tag."""

    name: str
    kind: FieldType
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: Any
    is_array: bool = False
    of: type[Any] | None = None


class MessageSpec(NamedTuple):
    """The API key of a message, its versions, and which of them are flexible (KIP-482)."""

    key: int
    versions: Versions
    flexible: Versions


class Message:
    """A whole message: the content after a header. The decorator `message` sets `spec`."""

    spec: ClassVar[MessageSpec]
    __slots__ = ()


M = TypeVar("M", bound=type[Message])


def message(key: int, versions: str, flexible: str = "") -> Callable[[M], M]:
    """Sets the API key, the versions of the table, and the flexible versions."""

    def name(table: M) -> M:
        table.spec = MessageSpec(key, Versions.parse(versions), Versions.parse(flexible))
        return table

    return name


def field_specs(table: type[Any]) -> tuple[FieldSpec, ...]:
    """Returns the fields of a message or struct, in wire order."""
    made = []
    for each in fields(table):
        row: FieldSpec = each.metadata["row"]
        made.append(FieldSpec(each.name, *list(row.__dict__.values())[1:]))
    return tuple(made)


def _field(
    kind: FieldType,
    versions: str,
    nullable: str,
    default: Any,
    tag: int,
    tagged: str,
    is_array: bool = False,
    of: type[Any] | None = None,
) -> Any:
    ranges = (Versions.parse(versions), Versions.parse(nullable), Versions.parse(tagged))
    row = FieldSpec("", kind, *ranges, tag, default, is_array, of)
    if isinstance(default, list):
        return field(default_factory=list, metadata={"row": row})
    if kind is FieldType.STRUCT and not is_array and default is not None:
        assert of is not None
        return field(default_factory=of, metadata={"row": row})
    return field(default=default, metadata={"row": row})


def boolean(versions: str = "0+", *, default: bool = False, tag: int = -1, tagged: str = "") -> bool:
    """Declares a field of one byte, 0 or 1."""
    made: bool = _field(FieldType.BOOL, versions, "", default, tag, tagged)
    return made


def integer(kind: FieldType, versions: str = "0+", *, default: int = 0, tag: int = -1, tagged: str = "") -> int:
    """Declares a number of the size of `kind`."""
    made: int = _field(kind, versions, "", default, tag, tagged)
    return made


def double(versions: str = "0+") -> float:
    """Declares a number of 8 bytes that may have a fraction (IEEE 754)."""
    made: float = _field(FieldType.FLOAT64, versions, "", 0.0, -1, "")
    return made


def string(
    versions: str = "0+", *, nullable: str = "", default: str | None = "", tag: int = -1, tagged: str = ""
) -> Any:
    """Declares a UTF-8 text."""
    return _field(FieldType.STRING, versions, nullable, default, tag, tagged)


def data(
    versions: str = "0+", *, nullable: str = "", default: bytes | None = b"", tag: int = -1, tagged: str = ""
) -> Any:
    """Declares bytes, copied out of the frame."""
    return _field(FieldType.BYTES, versions, nullable, default, tag, tagged)


def records(versions: str = "0+", *, nullable: str = "", default: bytes | None = None) -> Any:
    """Declares record batches: decoded as a view of the frame, encoded from the given buffer or file slice."""
    return _field(FieldType.RECORDS, versions, nullable, default, -1, "")


def uuid(versions: str = "0+", *, tag: int = -1, tagged: str = "") -> str:
    """Declares a UUID: 16 bytes on the wire, Kafka's text form in code."""
    made: str = _field(FieldType.UUID, versions, "", ZERO_ID, tag, tagged)
    return made


def array(
    of: type[Any] | FieldType,
    versions: str = "0+",
    *,
    nullable: str = "",
    default: list[Any] | None = [],  # noqa: B006  (never handed out: a sign for a fresh list)
    tag: int = -1,
    tagged: str = "",
) -> Any:
    """Declares a list of structs or of plain values."""
    kind, table = (of, None) if isinstance(of, FieldType) else (FieldType.STRUCT, of)
    return _field(kind, versions, nullable, default, tag, tagged, True, table)


def struct(
    of: type[T], versions: str = "0+", *, nullable: str = "", default: Any = ..., tag: int = -1, tagged: str = ""
) -> Any:
    """Declares one struct; a nullable one is preceded by a byte (KIP-893)."""
    return _field(FieldType.STRUCT, versions, nullable, default, tag, tagged, False, of)
