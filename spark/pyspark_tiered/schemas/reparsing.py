"""Records whose values or keys have schemas of a registry, read again by other decoders: for the proof of a table.

Schemas come from the same registry. Only the columns of today have cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark_tiered.schemas.avro_reparse import AvroReparser, NoCell
from pyspark_tiered.schemas.framing import KEY_HEADER, VALUE_HEADER, Reference, header_tail, skip_frame, split_frame
from pyspark_tiered.schemas.protobuf_plan import ProtobufPlan, plan_protobuf, split_indexes
from pyspark_tiered.schemas.protobuf_reparse import read_message
from pyspark_tiered.schemas.registry import KnownSchema, SchemaRegistry, UnknownSchema, open_registry
from pyspark_tiered.schemas.sorting import FORMATS, RegisteredKinds
from pyspark_tiered.schemas.unreadable import UnreadableSchema
from pyspark_tiered.typed.changes import FieldRule
from pyspark_tiered.typed.fast import column_type
from pyspark_tiered.typed.kinds import StructOf, key_part, value_part
from pyspark_tiered.typed.names import KEY, VALUE
from pyspark_tiered.typed.reparse import ReparsedValues, reparse

if TYPE_CHECKING:
    import pyarrow

REPARSERS_MAX = 1_000


def reparse_records(
    records: pyarrow.RecordBatch,
    schema: StructOf,
    changes: Sequence[FieldRule],
    kinds: RegisteredKinds,
    *,
    has_key: bool,
) -> ReparsedValues:
    """Returns the cells of records by the columns that a table has. No column is added."""
    registry = open_registry(kinds.source.urls, kinds.source.login)
    sides = [(kinds.values, "value", VALUE_HEADER, value_part(schema))]
    if has_key:
        sides.insert(0, (kinds.keys, "key", KEY_HEADER, key_part(schema)))
    columns: dict[str, pyarrow.Array] = {}
    unfit: dict[int, str] = {}
    for kind, column, header, part in sides:
        cells = records[column].to_pylist()
        if kind == "json-schema":
            frames = [_find_header(each, header) for each in records["headers"].to_pylist()]
            bodies, unknown = _cut_frames(registry, cells, frames)
            absent = [None] * len(cells)
            found = reparse(absent, part, changes, bodies) if column == "key" else reparse(bodies, part, changes)
            found = ReparsedValues(found.columns, {**found.unfit, **unknown})
        elif kind in FORMATS:
            frames = [_find_header(each, header) for each in records["headers"].to_pylist()]
            found = _Reparser(registry, kind).run(cells, frames, part)
        elif column == "key":
            found = reparse([None] * len(cells), part, changes, list(map(skip_frame, cells)))
        else:
            found = reparse(list(map(skip_frame, cells)), part, changes)
        columns |= {field.json_name: cell for field, cell in zip(part.fields, found.columns, strict=True)}
        unfit |= found.unfit
    return ReparsedValues([columns[field.json_name] for field in schema.fields], unfit)


def _find_header(headers: list[dict[str, Any]] | None, name: str) -> bytes | None:
    found = [each["value"] for each in headers or () if each["key"] == name]
    return (found[-1] or b"") if found else None


def _cut_frames(
    registry: SchemaRegistry, values: Sequence[bytes | None], frames: Sequence[bytes | None]
) -> tuple[list[bytes | None], dict[int, str]]:
    """Returns values in JSON without frames, and the reasons of those whose schema is not known."""
    bodies: list[bytes | None] = []
    unknown: dict[int, str] = {}
    known: dict[Reference, str] = {}
    for row, (value, frame) in enumerate(zip(values, frames, strict=True)):
        if value is None:
            bodies.append(None)
            continue
        reference, body = split_frame(value, frame)
        bodies.append(body)
        if reference is None:
            unknown[row] = "no frame of a schema registry"
        else:
            if reference not in known:
                known[reference] = _why_unknown(registry, reference)
            if known[reference]:
                unknown[row], bodies[-1] = known[reference], None
    return bodies, unknown


def _why_unknown(registry: SchemaRegistry, reference: Reference) -> str:
    try:
        kind = registry.find(reference).kind
    except (UnknownSchema, UnreadableSchema) as why:
        return str(why)
    return "" if kind == FORMATS["json-schema"] else f"it is {kind}"


class _Reparser:
    def __init__(self, registry: SchemaRegistry, kind: str) -> None:
        self._registry = registry
        self._kind = kind
        self._readers: dict[Reference, AvroReparser | ProtobufPlan | str] = {}

    def run(self, values: Sequence[bytes | None], frames: Sequence[bytes | None], schema: StructOf) -> ReparsedValues:
        """Returns the cells of values or keys."""
        import pyarrow as pa

        columns: list[list[Any]] = [[] for _ in schema.fields]
        unfit: dict[int, str] = {}
        for row, (value, frame) in enumerate(zip(values, frames, strict=True)):
            cells: Sequence[Any] = [None] * len(columns)
            if value is not None:
                try:
                    cells = self._read(value, frame, schema)
                except NoCell as why:
                    unfit[row] = str(why)
            for column, cell in zip(columns, cells, strict=True):
                column.append(cell)
        kinds = [column_type(field.kind, (field.json_name,)) for field in schema.fields]
        return ReparsedValues([pa.array(cells, kind) for cells, kind in zip(columns, kinds, strict=True)], unfit)

    def _read(self, value: bytes, frame: bytes | None, schema: StructOf) -> Sequence[Any]:
        reference, data = split_frame(value, frame)
        if reference is None:
            raise NoCell("no frame of a schema registry")
        reader = self._reader(reference)
        if isinstance(reader, ProtobufPlan):
            return self._read_message(reader, data, frame, schema)
        whole = schema.find(KEY) or (None if reader.is_record else schema.find(VALUE))
        if whole is not None:
            cell = reader.read(data, whole.kind)
            return [cell if field is whole else None for field in schema.fields]
        if not reader.is_record:
            return [None] * len(schema.fields) if reader.read(data, StructOf()) is None else _no_column()
        found = reader.read(data, schema)
        return [found[field.column] for field in schema.fields]

    def _read_message(self, plan: ProtobufPlan, data: bytes, frame: bytes | None, schema: StructOf) -> Sequence[Any]:
        try:
            indexes, at = split_indexes(data if frame is None else header_tail(frame))
            message = plan.message(indexes)
        except UnreadableSchema as why:
            raise NoCell(str(why)) from None
        body = data[at:] if frame is None else data
        key = schema.find(KEY)
        if key is not None:
            if not isinstance(key.kind, StructOf):
                raise NoCell("another type than that of the column")
            return [read_message(message, body, key.kind)]
        found = read_message(message, body, schema)
        return [found[field.column] for field in schema.fields]

    def _reader(self, reference: Reference) -> AvroReparser | ProtobufPlan:
        """Returns the reader of a schema. Raises `NoCell` if there is none."""
        if reference not in self._readers:
            if len(self._readers) >= REPARSERS_MAX:
                self._readers.clear()
            try:
                known = self._registry.find(reference)
                self._readers[reference] = _open(self._kind, known)
            except (UnknownSchema, UnreadableSchema) as why:
                self._readers[reference] = str(why)
        found = self._readers[reference]
        if isinstance(found, str):
            raise NoCell(found)
        return found


def _open(kind: str, known: KnownSchema) -> AvroReparser | ProtobufPlan:
    if known.kind != FORMATS[kind]:
        raise UnreadableSchema(f"it is {known.kind}")
    if kind == "protobuf":
        return plan_protobuf(known.text, known.references)
    return AvroReparser(known.text, [text for _, text in known.references])


def _no_column() -> Sequence[Any]:
    raise NoCell("the value has no column")
