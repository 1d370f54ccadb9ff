"""The query of DuckDB that reads the files of one version of a Delta table. Pure.

Keys, values and other bytes are shown as text: UTF-8, or `base64:` and the bytes in Base64. The raw form of a table
has the bytes. A table that needs more of its readers than this module knows is refused by the name of the feature.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_tiered.delta import delta_state, table_form
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.query.text import quote_name, quote_text
from tiered.errors import Code, Refused

Json = dict[str, Any]

READER_FEATURES = ("timestampNtz", "columnMapping", "deletionVectors", "vacuumProtocolCheck", "typeWidening")
"""Features of readers that are known, or refused where a table makes use of them."""
TYPES = {
    "string": "VARCHAR",
    "long": "BIGINT",
    "integer": "INTEGER",
    "short": "SMALLINT",
    "byte": "TINYINT",
    "boolean": "BOOLEAN",
    "float": "FLOAT",
    "double": "DOUBLE",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_PATTERN = re.compile(r"[*?\[]")


def check_readable(state: TableState, url: str) -> None:
    """Raises `Refused` if a reader of this table has to know more than this engine does."""
    protocol, properties = state.protocol, state.properties()
    reader = int(protocol.get("minReaderVersion", 0))
    unknown = sorted(set(protocol.get("readerFeatures") or ()) - set(READER_FEATURES))
    lacking = ""
    if reader > 3 or unknown:
        lacking = f"reader version {reader}" + (f" with {', '.join(unknown)}" if unknown else "")
    elif (mode := properties.get("delta.columnMapping.mode", "none")) != "none":
        lacking = f"column mapping by {mode}"
    elif partitions := state.metadata.get("partitionColumns"):
        lacking = f"partition columns {', '.join(partitions)}"
    if lacking:
        raise Refused(Code.INVALID_REQUEST, f"the table at {url} has {lacking}: use `--engine spark`")


def read_columns(state: TableState, url: str) -> dict[str, Any]:
    """Returns Delta's type of each column. Raises `Refused` for a type that DuckDB lacks."""
    fields = json.loads(str(state.metadata.get("schemaString", "{}"))).get("fields", ())
    columns = {str(field["name"]): field["type"] for field in fields}
    for name, kind in columns.items():
        try:
            duck_type(kind)
        except KeyError as fault:
            raise Refused(
                Code.INVALID_REQUEST,
                f"the column {name} of the table at {url} has the type {fault.args[0]}: use `--engine spark`",
            ) from None
    return columns


def duck_type(kind: Any) -> str:
    """Returns DuckDB's name of a type. Raises `KeyError` with the name of a type that it lacks."""
    if isinstance(kind, str):
        if found := _DECIMAL.fullmatch(kind):
            return f"DECIMAL({found[1]},{found[2]})"
        return TYPES[kind]
    match kind.get("type"):
        case "array":
            return f"{duck_type(kind['elementType'])}[]"
        case "map":
            return f"MAP({duck_type(kind['keyType'])}, {duck_type(kind['valueType'])})"
        case "struct":
            inner = ", ".join(f"{quote_name(str(each['name']))} {duck_type(each['type'])}" for each in kind["fields"])
            return f"STRUCT({inner})"
    raise KeyError(str(kind.get("type")))


def column_types(columns: Mapping[str, Any]) -> str:
    """Returns the columns of a table with DuckDB's types, as CREATE TABLE takes them."""
    return ", ".join(f"{quote_name(name)} {duck_type(kind)}" for name, kind in columns.items())


def is_text_of_bytes(kind: Any) -> bool:
    """True for a column of bytes, which is shown as text and may hold JSON."""
    return bool(kind == "binary")


def table_query(state: TableState, columns: Mapping[str, Any], root: str, deleted: str = "") -> str:
    """Returns the query for all rows of a table, with its columns as they are stored. `root` is the place of its files.

    `deleted` is a table of DuckDB with `path` and `number` of each row that a deletion vector names. A file may lack a
    column that came later. Files of raw tables never do, so their schemas need no comparison.
    """
    casts = ", ".join(
        f"CAST({quote_name(name)} AS {duck_type(kind)}) AS {quote_name(name)}" for name, kind in columns.items()
    )
    empty = ", ".join(f"CAST(NULL AS {duck_type(kind)}) AS {quote_name(name)}" for name, kind in columns.items())
    nothing = f"SELECT {empty} WHERE false"
    options = "hive_partitioning = false" + ("" if tuple(columns) == table_form.COLUMNS else ", union_by_name = true")
    reads = []
    for has_vector in (False, True):
        files = [add for add in state.files.values() if bool(add.get("deletionVector")) is has_vector]
        if not files:
            continue
        paths = ", ".join(quote_text(file_url(root, delta_state.file_path(add, root))) for add in files)
        if has_vector:
            reads.append(
                f"SELECT * EXCLUDE (filename, file_row_number) FROM read_parquet([{paths}], {options}, "
                f"filename = true, file_row_number = true) f ANTI JOIN {deleted} d "
                "ON f.filename = d.path AND f.file_row_number = d.number"
            )
        else:
            reads.append(f"SELECT * FROM read_parquet([{paths}], {options})")
    if not reads:
        return nothing
    if tuple(columns) == table_form.COLUMNS:
        return " UNION ALL ".join(f"SELECT {casts} FROM ({read})" for read in reads)
    return f"SELECT {casts} FROM ({' UNION ALL BY NAME '.join([nothing, *reads])})"


def text_query(columns: Mapping[str, Any], source: str) -> str:
    """Returns the query that shows the bytes of a table as text."""
    shown = [f"{_show_expression(quote_name(name), kind, 0)} AS {quote_name(name)}" for name, kind in columns.items()]
    return f"SELECT {', '.join(shown)} FROM {source}"


def file_url(root: str, path: str) -> str:
    """Returns the place of a file for DuckDB. Raises `Refused` if DuckDB takes it for a pattern."""
    whole = f"{root}/{path}"
    if _PATTERN.search(whole):
        raise Refused(
            Code.INVALID_REQUEST, f"the path {whole} has one of the characters * ? [ in it: use `--engine spark`"
        )
    return whole


def _show_expression(value: str, kind: Any, depth: int) -> str:
    if kind == "binary":
        return f"coalesce(try(decode({value})), 'base64:' || to_base64({value}))"
    if not _has_bytes(kind):
        return value
    each = f"e{depth}"
    if kind["type"] == "array":
        return f"list_transform({value}, lambda {each}: {_show_expression(each, kind['elementType'], depth + 1)})"
    if kind["type"] == "map":
        return value
    fields: Sequence[Json] = kind["fields"]
    parts = []
    for field in fields:
        name = quote_name(str(field["name"]))
        parts.append(f"{name} := {_show_expression(f'{value}.{name}', field['type'], depth)}")
    return f"CASE WHEN {value} IS NULL THEN NULL ELSE struct_pack({', '.join(parts)}) END"


def _has_bytes(kind: Any) -> bool:
    if not isinstance(kind, dict):
        return bool(kind == "binary")
    if kind["type"] == "array":
        return _has_bytes(kind["elementType"])
    return kind["type"] == "struct" and any(_has_bytes(each["type"]) for each in kind["fields"])
