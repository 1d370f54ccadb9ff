"""Sorts the records of a batch into rows and dead letters, whose values or keys have schemas of a registry.

Records of one schema are decoded together. The columns grow by those of each schema that comes up. Parts in JSON are
for the parsers of JSON (`typed/batches.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.schemas.avro_decode import decode_avro
from pyspark_tiered.schemas.avro_plan import AvroPlan, Record, plan_avro
from pyspark_tiered.schemas.framing import KEY_HEADER, VALUE_HEADER, Reference, split_frames
from pyspark_tiered.schemas.registry import (
    AVRO,
    KnownSchema,
    SchemaRegistry,
    SchemaSource,
    UnknownSchema,
    open_registry,
)
from pyspark_tiered.schemas.unreadable import UnreadableSchema
from pyspark_tiered.typed.batches import SortedValues, sort_values
from pyspark_tiered.typed.changes import FieldRule
from pyspark_tiered.typed.evolve import Unfit, merge
from pyspark_tiered.typed.fast import column_type, shape
from pyspark_tiered.typed.kinds import StructOf, key_field, select_columns
from pyspark_tiered.typed.names import KEY

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

FORMATS = {"avro": AVRO}
"""Kinds of values and keys that have schemas, and their names in a registry."""


class RegisteredKinds(NamedTuple):
    """The kinds of values and keys of a table, one of which has schemas, and where these are."""

    values: str
    keys: str
    source: SchemaSource


class SortedRecords(NamedTuple):
    """Records that were sorted. `stop`: the place and the reason of the first one that waits for its schema; then only
    those before it were sorted."""

    found: SortedValues
    stop: tuple[int, str] | None = None


def sort_records(
    records: Sequence[pyarrow.Array], schema: StructOf, changes: Sequence[FieldRule], kinds: RegisteredKinds | None
) -> SortedRecords:
    """Sorts records: their keys, values and headers. Raises `Refused` and `Unavailable` as the registry does."""
    keys, values, headers = records
    if kinds is None:
        return SortedRecords(sort_values(values, schema, changes, keys))
    registry = open_registry(kinds.source.urls, kinds.source.login)
    sorter = _Sorter(registry, schema, kinds, changes)
    stop = sorter.find_stop(keys, values, headers) if kinds.source.waits else None
    if stop is not None:
        keys, values, headers = (each.slice(0, stop[0]) for each in (keys, values, headers))
    return SortedRecords(sorter.sort(keys, values, headers), stop)


class _Part(NamedTuple):
    """Cells of the rows `places`, in their order, as columns of the schema `kind`."""

    cells: pyarrow.StructArray
    places: Numbers
    kind: StructOf


class _Sorter:
    def __init__(
        self, registry: SchemaRegistry, schema: StructOf, kinds: RegisteredKinds, changes: Sequence[FieldRule]
    ) -> None:
        self._registry = registry
        self._schema = schema
        self._kinds = kinds
        self._changes = changes
        self._bad: dict[int, str] = {}
        self._mistyped = SortedValues(None, (), schema)

    def find_stop(self, keys: pyarrow.Array, values: pyarrow.Array, headers: pyarrow.Array) -> tuple[int, str] | None:
        """Returns the first record whose schema the registry lacks, and why it waits."""
        found = []
        for kind, cells, name in self._parts(keys, values):
            if kind not in FORMATS:
                continue
            for reference, rows in split_frames(cells, headers, name).rows.items():
                try:
                    self._registry.find(reference)
                except UnknownSchema as why:
                    found.append((int(rows[0]), f"{why}, and the load waits for it"))
                except UnreadableSchema:
                    pass
        return min(found, default=None)

    def _parts(self, keys: pyarrow.Array, values: pyarrow.Array) -> list[tuple[str, pyarrow.Array, str]]:
        both = [(self._kinds.values, values, VALUE_HEADER)]
        return [*both, (self._kinds.keys, keys, KEY_HEADER)] if KEY in self._schema.places else both

    def sort(self, keys: pyarrow.Array, values: pyarrow.Array, headers: pyarrow.Array) -> SortedValues:
        """Sorts records, each with its key."""
        import numpy as np
        import pyarrow as pa

        count = len(values)
        sides: list[tuple[bool, list[_Part]]] = []
        for kind, cells, name in self._parts(keys, values):
            is_key = name == KEY_HEADER
            parts = (
                self._decode(kind, cells, headers, is_key=is_key)
                if kind in FORMATS
                else self._parse(cells, is_key=is_key)
            )
            sides.append((is_key, parts))
        fits = np.ones(count, dtype=bool)
        fits[list(self._bad)] = False
        chosen = np.flatnonzero(fits)
        target = select_columns(self._schema)
        columns: dict[str, pyarrow.Array] = {}
        for is_key, parts in sides:
            mine = StructOf(tuple(each for each in target.fields if (each.json_name == KEY) == is_key))
            if not mine.fields:
                continue
            cells = _arrange(parts, mine, chosen, count)
            columns |= {each.json_name: cells.field(at) for at, each in enumerate(mine.fields)}
        rows = pa.StructArray.from_arrays(
            [columns[each.json_name] for each in target.fields], fields=list(column_type(target))
        )
        dead = tuple(sorted(self._bad.items()))
        return SortedValues(rows, dead, self._schema, self._mistyped.mistyped, self._mistyped.mistyped_at)

    def _parse(self, cells: pyarrow.Array, *, is_key: bool) -> list[_Part]:
        """Parses values or keys in JSON. The other ones are NULL for the parser."""
        import numpy as np
        import pyarrow as pa

        others = pa.nulls(len(cells), pa.binary())
        found = (
            sort_values(others, self._schema, self._changes, cells)
            if is_key
            else sort_values(cells, self._schema, self._changes, others if KEY in self._schema.places else None)
        )
        self._schema = found.schema
        self._fail(dict(found.dead), is_key=False)
        if found.mistyped:
            self._mistyped = found
        fits = np.ones(len(cells), dtype=bool)
        fits[[at for at, _ in found.dead]] = False
        return [_Part(found.rows, np.flatnonzero(fits), select_columns(found.schema))]

    def _decode(self, kind: str, cells: pyarrow.Array, headers: pyarrow.Array, *, is_key: bool) -> list[_Part]:
        import numpy as np
        import pyarrow as pa

        frames = split_frames(cells, headers, KEY_HEADER if is_key else VALUE_HEADER)
        self._fail(frames.unframed, is_key=is_key)
        parts = []
        for reference, rows in sorted(frames.rows.items(), key=lambda each: int(each[1][0])):
            try:
                plan = self._plan(kind, reference)
                columns = plan.columns
                if is_key:
                    columns = StructOf((key_field(plan.root.kind),))
                schema = merge(self._schema, columns)
            except (UnknownSchema, Unfit) as why:
                self._fail(dict.fromkeys(rows.tolist(), _describe(reference, why)), is_key=is_key)
                continue
            except UnreadableSchema as why:
                reason = f"schema {reference} makes no columns: {why}"
                self._fail(dict.fromkeys(rows.tolist(), reason), is_key=is_key)
                continue
            data, starts, ends = frames.payloads
            found = decode_avro(plan, data, starts[rows], ends[rows])
            self._fail({int(rows[at]): f"schema {reference}: {why}" for at, why in found.bad.items()}, is_key=is_key)
            if len(found.bad) < len(rows):
                self._schema = schema
            whole = found.rows
            if is_key and isinstance(plan.root, Record):
                whole = pa.StructArray.from_arrays([whole], names=["key"])
            parts.append(_Part(whole, rows, columns))
        absent = np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False))
        if len(absent):
            parts.append(_Part(pa.nulls(len(absent), pa.struct([])), absent, StructOf()))
        return parts

    def _plan(self, kind: str, reference: Reference) -> AvroPlan:
        def make(known: KnownSchema) -> AvroPlan:
            return plan_schema(kind, known)

        return self._registry.plan(reference, make)

    def _fail(self, found: Mapping[int, str], *, is_key: bool) -> None:
        for at, why in found.items():
            self._bad.setdefault(at, f"key: {why}" if is_key else why)


def plan_schema(kind: str, known: KnownSchema) -> AvroPlan:
    """Returns how values of a schema become columns. Raises `UnreadableSchema`, for one of another format too."""
    if known.kind != FORMATS[kind]:
        raise UnreadableSchema(f"it is {known.kind}, and not {FORMATS[kind]}")
    return plan_avro(known.text, [text for _, text in known.references])


def _describe(reference: Reference, why: Exception) -> str:
    return str(why) if isinstance(why, UnknownSchema) else f"schema {reference}: {why}"


def _arrange(parts: Sequence[_Part], target: StructOf, chosen: Numbers, count: int) -> pyarrow.StructArray:
    """Returns the cells of the chosen rows, in their order, as columns of `target`."""
    import numpy as np
    import pyarrow as pa

    if not parts:
        return pa.array([], column_type(target))
    cells = pa.concat_arrays([shape(part.cells, part.kind, target) for part in parts])
    if len(parts) == 1 and len(chosen) == len(cells):
        return cells
    places = np.zeros(count, dtype=np.int64)
    places[np.concatenate([part.places for part in parts])] = np.arange(len(cells))
    return cells.take(pa.array(places[chosen]))
