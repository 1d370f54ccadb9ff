"""Sorts the records of a batch into rows and dead letters, whose values or keys have schemas of a registry.

Records of one schema are decoded together. The columns grow by those of each schema that comes up. Parts in JSON are
for the parsers of JSON (`typed/batches.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.schemas.avro_decode import decode_avro
from pyspark_tiered.schemas.avro_plan import AvroPlan, Record, plan_avro
from pyspark_tiered.schemas.framing import (
    KEY_HEADER,
    VALUE_HEADER,
    Frames,
    Reference,
    cut_values,
    header_tail,
    skip_frames,
    split_frames,
)
from pyspark_tiered.schemas.json_plan import JsonPlan, columns_of, plan_json_schema
from pyspark_tiered.schemas.protobuf_decode import decode_messages
from pyspark_tiered.schemas.protobuf_plan import ProtobufPlan, plan_protobuf, split_indexes
from pyspark_tiered.schemas.registry import (
    AVRO,
    JSON_SCHEMA,
    PROTOBUF,
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
from pyspark_tiered.typed.kinds import ColumnType, StructOf, key_field, select_columns
from pyspark_tiered.typed.names import KEY

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

FORMATS = {"avro": AVRO, "protobuf": PROTOBUF, "json-schema": JSON_SCHEMA}
"""Kinds of values and keys that have schemas, and their names in a registry."""
Plan = AvroPlan | ProtobufPlan | JsonPlan


class RegisteredKinds(NamedTuple):
    """The kinds of values and keys of a table, one of which has schemas, and where these are."""

    values: str
    keys: str
    source: SchemaSource


class SortedRecords(NamedTuple):
    """Records that were sorted. `stop`: the place and the reason of the first one that waits for its schema; then only
    those before it were sorted. `has_frames`: values in plain JSON had frames, which were skipped."""

    found: SortedValues
    stop: tuple[int, str] | None = None
    has_frames: bool = False


def sort_records(
    records: Sequence[pyarrow.Array], schema: StructOf, changes: Sequence[FieldRule], kinds: RegisteredKinds | None
) -> SortedRecords:
    """Sorts records: their keys, values and headers. Raises `Refused` and `Unavailable` as the registry does."""
    keys, values, headers = records
    if kinds is None:
        (values, has_frames), (keys, has_keys) = skip_frames(values), skip_frames(keys)
        return SortedRecords(sort_values(values, schema, changes, keys), has_frames=has_frames or has_keys)
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


class _Group(NamedTuple):
    """Records of one form: the type of a key, the columns of a value, and what decodes them; None if that is JSON."""

    rows: Numbers
    kind: ColumnType
    columns: StructOf
    is_record: bool
    decode: Callable[[], tuple[pyarrow.StructArray, Mapping[int, str]]] | None


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

        cells, _ = skip_frames(cells)
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
        parts: list[_Part] = []
        for reference, rows in sorted(frames.rows.items(), key=lambda each: int(each[1][0])):
            try:
                plan = self._plan(kind, reference)
                for group in self._groups(plan, frames, rows, reference, is_key=is_key):
                    parts += self._decode_group(group, reference, is_key=is_key)
            except (UnknownSchema, Unfit) as why:
                self._fail(dict.fromkeys(rows.tolist(), _describe(reference, why)), is_key=is_key)
            except UnreadableSchema as why:
                reason = f"schema {reference} makes no columns: {why}"
                self._fail(dict.fromkeys(rows.tolist(), reason), is_key=is_key)
        if kind == "json-schema":
            data, starts, ends = frames.payloads
            absent = pa.array(np.isin(np.arange(len(cells)), list(self._bad)))
            payloads = cut_values(cells, data, starts, ends)
            return self._parse(_without(payloads, absent), is_key=is_key)
        absent = np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False))
        if len(absent):
            parts.append(_Part(pa.nulls(len(absent), pa.struct([])), absent, StructOf()))
        return parts

    def _groups(
        self, plan: Plan, frames: Frames, rows: Numbers, reference: Reference, *, is_key: bool
    ) -> Iterator[_Group]:
        """Yields the records of a schema, those of each message by themselves. Raises `UnreadableSchema`."""
        import numpy as np

        data, starts, ends = frames.payloads
        match plan:
            case AvroPlan():
                is_record = isinstance(plan.root, Record)

                def decode() -> tuple[pyarrow.StructArray, Mapping[int, str]]:
                    return decode_avro(plan, data, starts[rows], ends[rows])

                yield _Group(rows, plan.root.kind, plan.columns, is_record, decode)
            case JsonPlan(kind):
                yield _Group(rows, kind, columns_of(kind), False, None)
            case ProtobufPlan():
                messages: dict[tuple[int, ...], list[tuple[int, bytes]]] = {}
                bad: dict[int, str] = {}
                for row in rows.tolist():
                    payload, frame = data[starts[row] : ends[row]], frames.headers.get(row)
                    try:
                        indexes, at = split_indexes(payload if frame is None else header_tail(frame))
                    except UnreadableSchema as why:
                        bad[row] = f"schema {reference}: {why}"
                        continue
                    messages.setdefault(indexes, []).append((row, payload[at:] if frame is None else payload))
                self._fail(bad, is_key=is_key)
                for indexes, found in messages.items():
                    mine = np.array([row for row, _ in found])
                    try:
                        message = plan.message(indexes)
                    except UnreadableSchema as why:
                        reason = f"schema {reference} makes no columns: {why}"
                        self._fail(dict.fromkeys(mine.tolist(), reason), is_key=is_key)
                        continue
                    payloads = [each for _, each in found]
                    yield _Group(mine, message.kind, message.kind, True, partial(decode_messages, message, payloads))

    def _decode_group(self, group: _Group, reference: Reference, *, is_key: bool) -> list[_Part]:
        """Decodes records of one form, and grows the columns by theirs."""
        import pyarrow as pa

        columns = StructOf((key_field(group.kind),)) if is_key else group.columns
        try:
            schema = merge(self._schema, columns)
        except Unfit as why:
            self._fail(dict.fromkeys(group.rows.tolist(), _describe(reference, why)), is_key=is_key)
            return []
        if group.decode is None:
            self._schema = schema
            return []
        cells, bad = group.decode()
        self._fail({int(group.rows[at]): f"schema {reference}: {why}" for at, why in bad.items()}, is_key=is_key)
        if len(bad) < len(group.rows):
            self._schema = schema
        if is_key and group.is_record:
            cells = pa.StructArray.from_arrays([cells], names=["key"])
        return [_Part(cells, group.rows, columns)]

    def _plan(self, kind: str, reference: Reference) -> Plan:
        return self._registry.plan(kind, reference, plan_schema)

    def _fail(self, found: Mapping[int, str], *, is_key: bool) -> None:
        for at, why in found.items():
            self._bad.setdefault(at, f"key: {why}" if is_key else why)


def plan_schema(kind: str, known: KnownSchema) -> Plan:
    """Returns how values of a schema become columns. Raises `UnreadableSchema`, for one of another format too."""
    if known.kind != FORMATS[kind]:
        raise UnreadableSchema(f"it is {known.kind}, and not {FORMATS[kind]}")
    match known.kind:
        case "PROTOBUF":
            return plan_protobuf(known.text, known.references)
        case "JSON":
            return JsonPlan(plan_json_schema(known.text, known.references))
        case _:
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


def _without(cells: pyarrow.Array, absent: pyarrow.Array) -> pyarrow.Array:
    """Returns cells with NULL in the place of some."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(absent, pa.scalar(None, cells.type), cells)
