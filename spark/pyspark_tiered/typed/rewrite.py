"""Gives the files of a typed table the columns that it has from now on: wider, with other names or types, or fewer.

Delta's readers do not read a file whose columns are narrower than those of the table, and find columns by name. Files
that only lack columns need no change. Each file is read and written row group by row group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_tiered.delta.data_files import TableFile
from pyspark_tiered.delta.table_form import ReplacedFile
from pyspark_tiered.load.file_rewrite import rewrite_file
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.typed.convert import cast_rows, typed_arrow_schema, widen_batch
from pyspark_tiered.typed.evolve import is_stored_as
from pyspark_tiered.typed.kinds import Field, ListOf, MapOf, StructOf
from pyspark_tiered.typed.names import RECORD_COLUMNS

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet


def change_columns(table: NativeTable, file: TableFile, before: StructOf, after: StructOf) -> ReplacedFile | None:
    """Writes the rows of a file with other columns. Returns None if the file has none of the changed columns.

    Raises `Unfit` for a cell that its new type cannot hold.
    """

    def change(stored: pyarrow.RecordBatch, held: pyarrow.parquet.ParquetFile) -> pyarrow.RecordBatch | None:
        columns = held_columns(held.schema_arrow, before)
        target = StructOf(tuple(field for field in after.fields if columns.find(field.json_name)))
        if all(_is_same(field, target) for field in columns.fields):
            return None
        rows = stored.select([*RECORD_COLUMNS, *(field.column for field in columns.fields)])
        return widen_batch(cast_rows(rows, typed_arrow_schema(columns)), columns, target)

    return rewrite_file(table, file, change, changes_data=False)


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
