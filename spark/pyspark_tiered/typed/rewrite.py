"""Gives the files of a typed table the columns that it has from now on: wider, with other names or types, or fewer.

Delta's readers do not read a file whose columns are narrower than those of the table, and find columns by name. Files
that only lack columns need no change. Each file is read and written row group by row group.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark_tiered.delta import delta_state
from pyspark_tiered.delta.log_folder import TableFolder
from pyspark_tiered.load.file_writer import VALUE_FILES, OpenFile, upload
from pyspark_tiered.typed.convert import cast_rows, typed_arrow_schema, widen_batch
from pyspark_tiered.typed.evolve import is_stored_as
from pyspark_tiered.typed.kinds import Field, ListOf, MapOf, StructOf
from pyspark_tiered.typed.names import RECORD_COLUMNS
from tiered.errors import Code, Refused


class RewrittenFile(NamedTuple):
    """A file that takes the place of another one."""

    add: Mapping[str, Any]
    path: str
    size: int


def rewrite_file(
    folder: TableFolder, add: Mapping[str, Any], before: StructOf, after: StructOf
) -> RewrittenFile | None:
    """Writes the rows of a file with other columns. Returns None if the file has none of the changed columns.

    Raises `Refused` for a file with deletion vectors, `Unfit` for a cell that its new type cannot hold.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if add.get("deletionVector"):
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {folder.url} has deletion vectors: run REORG TABLE ... APPLY (PURGE) on it",
        )
    with (
        folder.local(delta_state.file_path(add, folder.url)) as path,
        pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as held,
    ):
        columns = held_columns(held.schema_arrow, before)
        target = StructOf(tuple(field for field in after.fields if columns.find(field.json_name)))
        if all(_is_same(field, target) for field in columns.fields):
            return None
        name, schema = f"part-changed-{uuid.uuid4()}.zstd.parquet", typed_arrow_schema(target)
        file = OpenFile(folder.url, name, schema, VALUE_FILES, upload)
        names, schema = [*RECORD_COLUMNS, *(field.column for field in columns.fields)], typed_arrow_schema(columns)
        try:
            for group in range(held.num_row_groups):
                table = held.read_row_group(group, columns=names).select(names)
                for batch in table.combine_chunks().to_batches():
                    file.write(pa.Table.from_batches([widen_batch(cast_rows(batch, schema), columns, target)]))
        except BaseException:
            file.abandon()
            raise
        name, size = file.close()
    return RewrittenFile(add, name, size)


def held_columns(schema: Any, before: StructOf) -> StructOf:
    """Returns the columns that a file has, of those of the table."""
    found = []
    for field in before.fields:
        if field.column in schema.names:
            found.append(Field(field.json_name, field.column, _held_kind(schema.field(field.column).type, field.kind)))
    return StructOf(tuple(found))


def _held_kind(arrow: Any, kind: Any) -> Any:
    match kind:
        case ListOf(element):
            return ListOf(_held_kind(arrow.value_type, element))
        case MapOf(value):
            return MapOf(_held_kind(arrow.item_type, value))
        case StructOf():
            return held_columns(_Names(arrow), kind)
        case _:
            return kind


class _Names:
    """A struct type of Arrow in the form of a schema."""

    def __init__(self, arrow: Any) -> None:
        self.names = [arrow.field(at).name for at in range(arrow.num_fields)]
        self._arrow = arrow

    def field(self, name: str) -> Any:
        return self._arrow.field(self.names.index(name))


def _is_same(field: Field, target: StructOf) -> bool:
    """True if a column of a file has the type that it is to have, except for fields that it lacks."""
    found = target.find(field.json_name)
    return found is not None and found.column == field.column and is_stored_as(field.kind, found.kind)
