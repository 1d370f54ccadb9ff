"""Parses a schema that a user declares: `id BIGINT, city STRING, items ARRAY<STRUCT<sku: STRING, n: INT>>`. Pure."""

from __future__ import annotations

import re

from pyspark_tiered.typed.evolve import DEPTH_MAX
from pyspark_tiered.typed.kinds import DECIMAL_DIGITS_MAX, ColumnType, Field, ListOf, MapOf, Scalar, StructOf, Variant
from pyspark_tiered.typed.names import KEY_COLUMN, RECORD_COLUMNS, choose_column, fold
from tiered.errors import Code, Refused

ALIASES = {"bigint": "long", "integer": "int", "float": "double", "text": "string", "bool": "boolean"}
KNOWN = ("boolean", "int", "bigint", "double", "string", "date", "timestamp")
"""Types without parts that a field may get; a declared schema may also have decimals, maps and variants."""

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|(\w+)|([<>,:()]))", re.ASCII)
_SPACES = re.compile(r"\s*")


def parse_ddl(text: str, has_key: bool = False) -> StructOf:
    """Returns the schema; `has_key`: of a table with typed keys. Raises `Refused` with the place of a fault."""
    reader = _Reader(text)
    found = reader.read_fields((), ("",), (*RECORD_COLUMNS, *([KEY_COLUMN] if has_key else [])))
    if not found.fields:
        raise Refused(Code.INVALID_REQUEST, "a schema needs at least one column")
    return found


def parse_key_ddl(text: str) -> ColumnType:
    """Returns the type of a key: that of `BIGINT` or `ARRAY<INT>`, or an object with the fields `id BIGINT, ...`.

    Raises `Refused` as `parse_ddl` does.
    """
    try:
        if (found := _Reader(text).read_single_type()) is not None:
            return found
    except Refused:
        pass
    return _Reader(text).read_fields(("",), ("",))


def parse_scalar(text: str) -> str:
    """Returns the name of a scalar type. Raises `Refused`."""
    word = text.strip().lower()
    if word not in (*ALIASES, "long", *KNOWN):
        raise Refused(
            Code.INVALID_REQUEST, f"{text!a} is no type of a field without parts; there are {', '.join(KNOWN)}"
        )
    return ALIASES.get(word, word)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read_single_type(self) -> ColumnType | None:
        """Returns the type that the whole text is; None if more follows."""
        found = self._read_type(())
        return found if not self._peek() else None

    def read_fields(self, path: tuple[str, ...], ends: tuple[str, ...], reserved: tuple[str, ...] = ()) -> StructOf:
        fields: list[Field] = []
        taken = {fold(name) for name in reserved}
        while True:
            name = self._read_name()
            if self._peek() == ":":
                self._next()
            kind = self._read_type((*path, name))
            if any(field.json_name == name for field in fields):
                raise self._refuse(f"the name {name} twice")
            fields.append(Field(name, choose_column(name, taken), kind))
            taken.add(fold(fields[-1].column))
            if self._peek() in ends:
                return StructOf(tuple(fields))
            self._expect(",")

    def _read_name(self) -> str:
        token = self._next()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not token or not (token[0].isalnum() or token[0] == "_"):
            raise self._refuse("a name of a column is missing")
        return token

    def _read_type(self, path: tuple[str, ...]) -> ColumnType:
        if len(path) > DEPTH_MAX:
            raise self._refuse(f"more than {DEPTH_MAX} types inside each other")
        word = self._next().lower()
        if word == "array":
            self._expect("<")
            element = self._read_type((*path, "[]"))
            self._expect(">")
            return ListOf(element)
        if word == "variant":
            return Variant()
        if word == "map":
            return self._read_map(path)
        if word == "struct":
            self._expect("<")
            found = self.read_fields(path, (">",))
            self._expect(">")
            return found
        if word in ("decimal", "numeric"):
            return self._read_decimal()
        name = ALIASES.get(word, word)
        if word == "long" or name in ("long", *KNOWN):
            return Scalar(name)
        raise self._refuse(
            f"{word or 'nothing'} is no type of a column; there are {', '.join(KNOWN)}, decimal, array, map, struct, "
            "variant"
        )

    def _read_map(self, path: tuple[str, ...]) -> ColumnType:
        self._expect("<")
        names = self._next().lower()
        if ALIASES.get(names, names) != "string":
            raise self._refuse(f"the names of a map are string, not {names or 'nothing'}")
        self._expect(",")
        value = self._read_type((*path, "{}"))
        self._expect(">")
        return MapOf(value)

    def _read_decimal(self) -> ColumnType:
        digits, behind = 10, 0
        if self._peek() == "(":
            self._next()
            digits = self._read_number()
            if self._peek() == ",":
                self._next()
                behind = self._read_number()
            self._expect(")")
        if not (1 <= digits <= DECIMAL_DIGITS_MAX and behind <= digits):
            raise self._refuse(f"a decimal has 1 to {DECIMAL_DIGITS_MAX} digits, and no more behind the point")
        return Scalar(f"decimal({digits},{behind})")

    def _read_number(self) -> int:
        token = self._next()
        if not token.isdecimal() or len(token) > 2:
            raise self._refuse("a number of digits is missing")
        return int(token)

    def _peek(self) -> str:
        at = self._at
        try:
            return self._next()
        finally:
            self._at = at

    def _next(self) -> str:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            self._at = _SPACES.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                raise self._refuse(f"{self._text[self._at]!a} is not expected")
            return ""
        self._at = found.end()
        return found[1] or found[2] or found[3]

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise self._refuse(f"{token!a} is expected in the place of {found!a}")

    def _refuse(self, why: str) -> Refused:
        return Refused(Code.INVALID_REQUEST, f"the schema is wrong at character {self._at}: {why}")
