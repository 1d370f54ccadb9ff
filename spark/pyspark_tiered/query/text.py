"""SQL as text: its tokens, names in backticks, and Delta's words for time travel. Pure.

Nothing here decides what a query may do: DuckDB parses the text that comes out of it, and `statement` checks the
result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tiered.errors import Code, Refused

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*)
    | (?P<comment>/\*.*?(?:\*/|\Z))
    | (?P<backtick>`(?:[^`]|``)*(?:`|\Z))
    | (?P<quoted>"(?:[^"]|"")*(?:"|\Z))
    | (?P<escaped>[eE]'(?:[^'\\]|''|\\.)*(?:'|\Z))
    | (?P<string>'(?:[^']|'')*(?:'|\Z))
    | (?P<dollar>\$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z))
    | (?P<number>\d[\w.]*)
    | (?P<word>[^\W\d][\w$]*)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_BLANK = ("space", "comment")
_NAMES = ("word", "quoted", "backtick")

_BEFORE_COLUMNS = frozenset(
    [
        "select",
        "where",
        "and",
        "or",
        "not",
        "by",
        "on",
        "when",
        "then",
        "else",
        "case",
        "between",
        "distinct",
        "all",
        "having",
        "using",
        "qualify",
        "in",
        "like",
        "ilike",
        "is",
        "as",
        "from",
        "union",
        "except",
        "intersect",
        "exclude",
        "over",
        "partition",
        "order",
    ]
)
"""Words after which `offset` is a column. Behind other words it is the clause of SQL, as in LIMIT 5 OFFSET 10."""

RAW = "raw"
"""Schema of the tables with their columns as they are stored: keys and values as bytes."""


class Token(NamedTuple):
    """A piece of a query. `kind` is one of the groups of the pattern."""

    kind: str
    text: str


class Moment(NamedTuple):
    """The point in time that a query asks for: a version, or the text of a timestamp."""

    version: int | None = None
    timestamp: str | None = None


class PreparedQuery(NamedTuple):
    """A query in DuckDB's form. `moments` are the points in time by the name of the schema that stands for them."""

    text: str
    moments: dict[str, Moment]


def tokens(text: str) -> Iterator[Token]:
    """Yields all tokens, blanks included: together they are the text."""
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or "other"
        yield Token("dollar" if kind == "tag" else kind, found[0])


def prepare(text: str) -> PreparedQuery:
    """Returns a query in DuckDB's form: names in double quotes, and a schema for each point in time.

    `t VERSION AS OF 3` and `t TIMESTAMP AS OF '...'` become tables in such a schema. The column `offset` gets quotes,
    because the word is a clause of SQL too. A `;` at the end is dropped. Raises `Refused` for a point in time that is
    behind no name.
    """
    found = _quote_offsets([_in_double_quotes(token) for token in tokens(text)])
    while found and (found[-1].kind in _BLANK or found[-1].text == ";"):
        found.pop()
    moments: dict[str, Moment] = {}
    out: list[Token] = []
    at = 0
    while at < len(found):
        match = _match_moment(found, at)
        if match is None:
            out.append(found[at])
            at += 1
            continue
        moment, at = match
        number = next((name for name, each in moments.items() if each == moment), f"@{len(moments) + 1}")
        moments[number] = moment
        _put_schema(out, number)
    return PreparedQuery("".join(token.text for token in out), moments)


def is_complete(text: str) -> bool:
    """True if a statement ends here: its last token is a `;`, and no quote or comment is open."""
    last = [token for token in tokens(text) if token.kind not in _BLANK]
    return bool(last) and last[-1] == Token("other", ";")


def quote_name(name: str) -> str:
    """Returns an identifier in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Returns a literal in single quotes."""
    return "'" + text.replace("'", "''") + "'"


def _in_double_quotes(token: Token) -> Token:
    if token.kind != "backtick" or len(token.text) < 2 or not token.text.endswith("`"):
        return token
    return Token("quoted", quote_name(token.text[1:-1].replace("``", "`")))


def _quote_offsets(found: list[Token]) -> list[Token]:
    out: list[Token] = []
    last = Token("word", "select")
    for token in found:
        if token.kind == "word" and token.text.lower() == "offset" and _comes_column(last):
            token = Token("quoted", quote_name(token.text))
        out.append(token)
        if token.kind not in _BLANK:
            last = token
    return out


def _comes_column(last: Token) -> bool:
    """True if a column may follow this token."""
    if last.kind == "word":
        return last.text.lower() in _BEFORE_COLUMNS
    return last.kind == "other" and last.text not in ")]"


def _match_moment(found: list[Token], at: int) -> tuple[Moment, int] | None:
    """Returns the point in time whose words begin here, and the place behind them."""
    if found[at].kind != "word" or found[at].text.upper() not in ("VERSION", "TIMESTAMP"):
        return None
    words = [(i, found[i]) for i in range(at, len(found)) if found[i].kind not in _BLANK][:4]
    if len(words) < 4 or [each.text.upper() for _, each in words[1:3]] != ["AS", "OF"]:
        return None
    last, value = words[3]
    if found[at].text.upper() == "VERSION" and value.kind == "number" and value.text.isdecimal():
        return Moment(version=int(value.text[:20])), last + 1
    if found[at].text.upper() == "TIMESTAMP" and value.kind == "string":
        return Moment(timestamp=value.text[1:-1].replace("''", "'")), last + 1
    return None


def _put_schema(out: list[Token], schema: str) -> None:
    """Puts a schema before the name that was read last; after `raw.` it becomes the raw form of the schema.

    Raises `Refused` if there is no name: DuckDB would not see that the words were there.
    """
    places = [i for i, token in enumerate(out) if token.kind not in _BLANK]
    if places and out[places[-1]].kind == "word" and out[places[-1]].text.upper() == "FOR":
        del out[places.pop() :]  # FOR VERSION AS OF, as Delta also allows
    if not places or out[places[-1]].kind not in _NAMES:
        raise Refused(
            Code.INVALID_REQUEST,
            "VERSION AS OF and TIMESTAMP AS OF come right behind the name of a table, not elsewhere",
        )
    name = places[-1]
    if len(places) > 2 and out[places[-2]].text == "." and out[places[-3]].text.strip('"').lower() == RAW:
        out[places[-3]] = Token("quoted", quote_name(f"{RAW}{schema}"))
    else:
        out.insert(name, Token("quoted", f"{quote_name(schema)}."))
