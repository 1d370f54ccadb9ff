"""How many rows of a typed table have a value in a field: what a drop of its column would take out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_tiered.delta.data_files import read_stored_rows
from pyspark_tiered.typed.changes import ITEMS, find_field
from pyspark_tiered.typed.evolve import Path
from pyspark_tiered.typed.kinds import ListOf, StructOf
from pyspark_tiered.typed.tables import OnFile, TypedTable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class FieldCount(NamedTuple):
    """Rows of a table, those that have a value in the field, and the files with its column."""

    rows: int = 0
    values: int = 0
    files: int = 0


def count_field(table: TypedTable, path: Path, on_file: OnFile = lambda *_: None) -> FieldCount:
    """Returns the count over the version that was read last. `on_file` takes how many files are done, of how many."""
    columns = _name_columns(table.schema(), find_field(table.schema(), path)[0])
    found, files = FieldCount(), table.files()
    for number, add in enumerate(files):
        on_file(number, len(files))
        has_column = False
        with closing(read_stored_rows(table.folder, add)) as stored:
            for batch, _ in stored:
                values = 0
                if columns[0] in batch.schema.names:
                    has_column = True
                    values = int(find_values(batch[columns[0]], columns[1:]).sum())
                found = found._replace(rows=found.rows + batch.num_rows, values=found.values + values)
        found = found._replace(files=found.files + has_column)
    return found


def find_values(cells: Any, columns: Sequence[str]) -> NDArray[np.bool_]:
    """Returns for each cell True if it has a value at the path of columns below it, an array in one of its items."""
    import numpy as np
    import pyarrow.compute as pc

    if not columns:
        return np.asarray(cells.is_valid())
    has_value = np.zeros(len(cells), dtype=bool)
    if columns[0] == ITEMS:
        parents = np.asarray(pc.list_parent_indices(cells))
        has_value[parents[find_values(pc.list_flatten(cells), columns[1:])]] = True
        return has_value
    if columns[0] not in [each.name for each in cells.type]:
        return has_value
    return find_values(pc.struct_field(cells, columns[0]), columns[1:])


def _name_columns(schema: StructOf, path: Path) -> tuple[str, ...]:
    """Returns the names of the columns for the names in JSON."""
    kind: Any = schema
    names = []
    for part in path:
        if part == ITEMS:
            assert isinstance(kind, ListOf)
            names.append(ITEMS)
            kind = kind.element
            continue
        field = kind.find(part)
        names.append(field.column)
        kind = field.kind
    return tuple(names)
