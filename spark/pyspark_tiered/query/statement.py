"""The check of a query that DuckDB has parsed: it may only read tables. And the fields of JSON in keys and values.

The syntax tree comes from DuckDB's `json_serialize_sql`, which knows SELECT only. A query that passes names its tables.
It can reach no file and no setting, so that others may send queries. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark_tiered.query.text import RAW, quote_name, quote_text
from tiered.errors import Code, Refused

Node = Any
"""A part of the syntax tree: an object, a list or a plain value."""

TABLE_FUNCTIONS = ("unnest", "range", "generate_series", "json_each", "json_tree", "repeat")
"""Functions that make rows and read nothing."""
REFUSED_FUNCTIONS = frozenset(
    [
        "current_setting",
        "getvariable",
        "getenv",
        "nextval",
        "currval",
        "setval",
        "write_log",
        "json_serialize_plan",
        "pg_get_viewdef",
        "finalize",
        "combine",
        "to_aggregate_state",
    ]
)
"""Functions that show or change something else than rows, or that trust bytes to be the state of an aggregate."""
SUMS = [
    "sum",
    "fsum",
    "kahan_sum",
    "sumkahan",
    "avg",
    "mean",
    "favg",
    "median",
    "mad",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "variance",
    "var_pop",
    "var_samp",
    "quantile_cont",
    "quantile_disc",
    "skewness",
    "kurtosis",
    "sem",
    "product",
]
"""Aggregates of numbers."""
ARITHMETIC = ("+", "-", "*", "/", "%", "//", "**", "^")
_CALL = re.compile(
    r"""(?:TRY_CAST\()?TRY\(json_extract_string\((?P<column>(?:"[^"]+"|\w+)(?:\.(?:"[^"]+"|\w+))?), """
    r"""(?P<pointer>'(?:[^']|'')*')\)\)(?:\ AS\ DOUBLE\))?""",
    re.IGNORECASE,
)
"""The call that reads a field, as this module writes it and as DuckDB prints it."""
EXACT_INTEGER = 1 << 53
"""Integers below it are exact in a double."""


class TableRef(NamedTuple):
    """A table that a query names, in a schema: none, the one of raw forms, or one of a point in time."""

    schema: str
    name: str


class ParsedQuery(NamedTuple):
    """A query that may run. `tables` have to exist, `perhaps` are names of WITH that may hide a table."""

    tree: Node
    tables: tuple[TableRef, ...]
    perhaps: tuple[TableRef, ...]
    aliases: Mapping[str, TableRef | None]
    """Name of each item of a FROM, in lower case -> its table, None for anything else."""


class Edit(NamedTuple):
    """Bytes of the query that are replaced."""

    start: int
    end: int
    text: str


def check_query(serialized: str, schemas: Iterable[str]) -> ParsedQuery:
    """Returns what a query reads. `schemas` are those of its points in time. Raises `Refused` in words."""
    try:
        found = json.loads(serialized)
    except RecursionError:
        raise _refuse("the query is nested too deeply") from None
    if found.get("error"):
        raise _refuse(_describe_error(found))
    statements = found["statements"]
    if len(statements) != 1:
        raise _refuse(f"one query at a time, not {len(statements)}")
    tree = statements[0]
    known = {"", RAW, *schemas, *(f"{RAW}{each}" for each in schemas)}
    tables: dict[TableRef, bool] = {}
    aliases: dict[str, TableRef | None] = {}
    hidden = {str(each["key"]).lower() for node in walk(tree) for each in (node.get("cte_map") or {}).get("map", ())}
    for node in walk(tree):
        _check_node(node, known)
        if node.get("type") == "BASE_TABLE":
            ref = TableRef(str(node["schema_name"]).lower(), str(node["table_name"]))
            is_hidden = not ref.schema and ref.name.lower() in hidden
            tables[ref] = tables.get(ref, True) and is_hidden
            aliases[(node["alias"] or ref.name).lower()] = ref
        elif node.get("alias") and ("column_name_alias" in node or node.get("type") == "SUBQUERY"):
            aliases[str(node["alias"]).lower()] = None
    _check_case(tables)
    must = tuple(ref for ref, is_hidden in tables.items() if not is_hidden)
    return ParsedQuery(tree, must, tuple(ref for ref, is_hidden in tables.items() if is_hidden), aliases)


def walk(tree: Node) -> Iterator[dict[str, Any]]:
    """Yields each object of a syntax tree."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield node
            left += node.values()
        elif isinstance(node, list):
            left += node


def find_edits(query: ParsedQuery, columns: Mapping[TableRef, Mapping[str, bool]]) -> list[Edit]:
    """Returns the edits that read fields of JSON: `value.city` becomes a call of DuckDB's function for it.

    `columns` has the columns of each table, true for those that hold text which may be JSON. A field is text. Beside
    numbers, in arithmetic and in sums it is a double, and NULL if it is no number.
    """
    return _EditFinder(query, columns).find()


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Returns the query with its edits."""
    data = text.encode()
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new.encode() + data[end:]
    return data.decode()


def restore_names(names: Iterable[str], text: str, edits: Iterable[Edit]) -> list[str]:
    """Returns the names of a result's columns, with fields as the query has them in the place of calls."""
    data = text.encode()
    sources = {_call_key(_CALL.search(each.text)): data[each.start : each.end].decode() for each in edits}
    return [_CALL.sub(lambda found: sources.get(_call_key(found), found[0]), name) for name in names]


def _call_key(found: re.Match[str] | None) -> tuple[str, str]:
    assert found is not None
    return found["column"].replace('"', ""), found["pointer"]


class _EditFinder:
    def __init__(self, query: ParsedQuery, columns: Mapping[TableRef, Mapping[str, bool]]) -> None:
        self._query = query
        self._columns = columns
        self._edits: list[Edit] = []

    def find(self) -> list[Edit]:
        if not any(any(each.values()) for each in self._columns.values()):
            return []
        left: list[tuple[Node, bool, bool]] = [(self._query.tree, False, False)]
        while left:
            node, is_number, is_selected = left.pop()
            if isinstance(node, list):
                left += [(each, is_number, is_selected) for each in node]
            elif isinstance(node, dict) and not self._replace(node, is_number, is_selected):
                inherits = is_number and "class" not in node  # a named argument wraps its expression
                left += [
                    (child, inherits or _wants_number(node, key), key == "select_list") for key, child in node.items()
                ]
        return self._edits

    def _replace(self, node: dict[str, Any], is_number: bool, is_selected: bool) -> bool:
        """Replaces a chain of fields. Returns false if the node is none."""
        path: list[str] = []
        ends: list[int] = []
        top = node
        while node.get("class") == "OPERATOR" and node.get("type") in ("STRUCT_EXTRACT", "ARRAY_EXTRACT"):
            step = _path_step(node["children"][1])
            if step is None:
                return False
            path.insert(0, step)
            ends.append(_end(node))
            node = node["children"][0]
        if node.get("class") != "COLUMN_REF":
            return False
        column = self._split_column([str(each) for each in node["column_names"]])
        if column is None:
            return False
        names, fields = column
        path = [*fields, *path]
        if not path or (not fields and path[0].isdecimal()):
            return False
        pointer = "".join("/" + each.replace("~", "~0").replace("/", "~1") for each in path)
        call = f"try(json_extract_string({'.'.join(map(quote_name, names))}, {quote_text(pointer)}))"
        if is_number:
            call = f"try_cast({call} AS DOUBLE)"
        if is_selected and not top.get("alias"):
            call += f" AS {quote_name(next((each for each in reversed(path) if not each.isdecimal()), path[-1]))}"
        self._edits.append(Edit(int(node["query_location"]), max([_end(node), *ends]), call))
        return True

    def _split_column(self, names: Sequence[str]) -> tuple[list[str], list[str]] | None:
        """Returns the names of a column of text, and the fields behind it; None if it is another column."""
        alias = names[0].lower()
        if len(names) > 1 and alias in self._query.aliases:
            ref = self._query.aliases[alias]
            columns = self._columns.get(ref) if ref is not None else None
            is_text = self._is_text(names[1].lower()) if columns is None else columns.get(names[1].lower())
            return (list(names[:2]), list(names[2:])) if is_text else None
        return ([names[0]], list(names[1:])) if self._is_text(alias) else None

    def _is_text(self, column: str) -> bool:
        """True if all tables of the query that have this column show bytes in it."""
        held = [each[column] for each in self._columns.values() if column in each]
        return bool(held) and all(held)


def _path_step(node: Node) -> str | None:
    """Returns a step of a path into JSON: a name, or a place in a list, which counts from 0. None if it varies."""
    literal = node.get("literal") if node.get("class") == "CONSTANT" else None
    if not isinstance(literal, dict):
        return None
    text = str(literal.get("text", ""))
    if literal.get("kind") == "STRING":
        return text
    return str(int(text) - 1) if text.isdecimal() and int(text) > 0 else None


def _wants_number(node: dict[str, Any], key: str) -> bool:
    """True if the children under this key are beside numbers."""
    kind, group = node.get("type"), node.get("class")
    if group in ("FUNCTION", "WINDOW") and key == "arguments":
        return node["function_name"] in ARITHMETIC or node["function_name"].lower() in SUMS
    if group == "COMPARISON" and key in ("left", "right"):
        return _is_number(node["right" if key == "left" else "left"])
    if group == "BETWEEN" and key == "input":
        return _is_number(node["lower"]) and _is_number(node["upper"])
    if group == "OPERATOR" and kind in ("COMPARE_IN", "COMPARE_NOT_IN") and key == "children":
        return len(node["children"]) > 1 and all(map(_is_number, node["children"][1:]))
    return False


def _is_number(node: Node) -> bool:
    """True for numbers that are exact as doubles, and for sums and differences of anything."""
    if not isinstance(node, dict):
        return False
    if node.get("class") == "FUNCTION":
        return node["function_name"] in ARITHMETIC or node["function_name"].lower() in SUMS
    literal = node.get("literal") if node.get("class") == "CONSTANT" else None
    if not isinstance(literal, dict) or literal.get("kind") in ("STRING", "NULL", "BOOLEAN"):
        return False
    try:
        return abs(float(literal.get("text", ""))) < EXACT_INTEGER
    except ValueError:
        return False


def _end(node: Mapping[str, Any]) -> int:
    return int(node["query_location"]) + int(node["query_location_length"])


def _check_node(node: Mapping[str, Any], schemas: set[str]) -> None:
    kind = node.get("type")
    if kind == "BASE_TABLE":
        schema, name = str(node["schema_name"]), str(node["table_name"])
        if node.get("catalog_name") or schema.lower() not in schemas:
            whole = ".".join(each for each in (node.get("catalog_name"), schema, name) if each)
            raise _refuse(f'there is no schema {schema!r}: put a name with a dot into quotes, "{whole}"')
        if node.get("at_clause"):
            raise _refuse("write VERSION AS OF or TIMESTAMP AS OF behind the name of the table")
    elif kind == "TABLE_FUNCTION":
        name = str(node["function"]["function_name"])
        if name.lower() not in TABLE_FUNCTIONS:
            raise _refuse(f"the function {name} is not available: a query reads tables of the warehouse only")
    elif kind == "SHOW_REF" and node.get("show_type") not in ("DESCRIBE", "SUMMARY"):
        raise _refuse("of SHOW there is only SHOW TABLES; DESCRIBE shows the columns of a table")
    elif node.get("class") in ("FUNCTION", "WINDOW") and _is_refused(node):
        raise _refuse(f"the function {node['function_name']} is not available: a query reads tables only")


def _is_refused(node: Mapping[str, Any]) -> bool:
    name = str(node["function_name"]).lower()
    return name in REFUSED_FUNCTIONS or name.startswith("__") or bool(node.get("export_state"))


def _check_case(tables: Iterable[TableRef]) -> None:
    seen: dict[TableRef, str] = {}
    for ref in tables:
        other = seen.setdefault(ref._replace(name=ref.name.lower()), ref.name)
        if other != ref.name:
            raise _refuse(f"{other} and {ref.name} differ by case only: query one of them at a time")


def _describe_error(found: Mapping[str, Any]) -> str:
    if found.get("error_type") == "not implemented":
        return "a query can only read: SELECT, WITH, VALUES, FROM, DESCRIBE, SUMMARIZE or SHOW TABLES"
    return str(found.get("error_message", "the query cannot be parsed"))


def _refuse(why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, why)
