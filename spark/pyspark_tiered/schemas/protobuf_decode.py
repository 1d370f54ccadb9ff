"""Messages of Protobuf to Arrow columns: parsed by the library `protobuf`, and then field by field. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_tiered.schemas.protobuf_plan import FieldPlan, MessagePlan
from pyspark_tiered.typed.fast import FIRST_DAY, LAST_DAY, column_type
from pyspark_tiered.typed.kinds import ColumnType, ListOf, MapOf, Void

if TYPE_CHECKING:
    import pyarrow

Messages = Sequence[Any]
DAY_SECONDS = 86_400


class DecodedMessages(NamedTuple):
    """Messages as one struct column of the columns of their plan, and the reasons of those that do not fit, by row."""

    rows: pyarrow.StructArray
    bad: dict[int, str]


def decode_messages(plan: MessagePlan, payloads: Sequence[bytes]) -> DecodedMessages:
    """Decodes messages. Rows in `bad` hold nothing."""
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    parse: Callable[[bytes], Any] = GetMessageClass(plan.descriptor).FromString
    bad: dict[int, str] = {}
    messages: list[Any] = []
    for row, data in enumerate(payloads):
        try:
            messages.append(parse(data))
        except DecodeError as fault:
            bad[row] = f"no message: {fault}"[:200]
            messages.append(None)
    try:
        return DecodedMessages(_read_messages(plan, messages), bad)
    except (_BadCell, UnicodeDecodeError):
        pass
    for row, message in enumerate(messages):  # one of them has a cell that no column holds
        try:
            _read_messages(plan, [message])
        except _BadCell as why:
            bad[row], messages[row] = str(why), None
        except UnicodeDecodeError:
            bad[row], messages[row] = "a text is not UTF-8", None
    return DecodedMessages(_read_messages(plan, messages), bad)


class _BadCell(Exception):
    """A cell that no column holds, and why."""


def _read_messages(plan: MessagePlan, messages: Messages) -> pyarrow.StructArray:
    """Returns the cells of messages, NULL for None."""
    import pyarrow as pa

    parts = [_read_field(each, messages) for each in plan.fields]
    mask = pa.array([each is None for each in messages], pa.bool_())
    if not parts:
        return pa.array([None if each is None else {} for each in messages], pa.struct([]))
    return pa.StructArray.from_arrays(parts, names=[each.column for each in plan.kind.fields], mask=mask)


def _read_field(plan: FieldPlan, messages: Messages) -> pyarrow.Array:
    import pyarrow as pa

    name = plan.name
    if plan.form == "plain":
        if plan.has_presence:
            found = [getattr(each, name) if each is not None and each.HasField(name) else None for each in messages]
        else:
            found = [None if each is None else getattr(each, name) for each in messages]
        return _read_values(plan, found, plan.kind)
    held = [() if each is None else getattr(each, name) for each in messages]
    ends = pa.array(_ends(held), pa.int32())
    if plan.form == "repeated":
        assert isinstance(plan.kind, ListOf)
        items = _read_values(plan, list(chain.from_iterable(held)), plan.kind.element)
        return pa.ListArray.from_arrays(ends, items)
    assert isinstance(plan.kind, MapOf)
    entries = [sorted(each.items()) if each else [] for each in held]
    names = [_name(key) for each in entries for key, _ in each]
    items = _read_values(plan, [value for each in entries for _, value in each], plan.kind.value)
    return pa.MapArray.from_arrays(ends, pa.array(names, pa.string()), items)


def _name(key: Any) -> str:
    """Returns the name of an entry of a map, whose key may be a number or a boolean."""
    return str(key).lower() if isinstance(key, bool) else str(key)


def _ends(held: Sequence[Any]) -> list[int]:
    ends = [0]
    for each in held:
        ends.append(ends[-1] + len(each))
    return ends


def _read_values(plan: FieldPlan, values: Sequence[Any], kind: ColumnType) -> pyarrow.Array:
    import pyarrow as pa

    cells: list[Any]
    match plan.value:
        case "message":
            assert plan.item is not None
            return _read_messages(plan.item, values)
        case "text":
            cells = [None if each is None else json_text(each) for each in values]
        case "wrapper":
            cells = [None if each is None else each.value for each in values]
        case "timestamp":
            cells = [None if each is None else _microseconds(each.seconds, each.nanos) for each in values]
        case _ if plan.type_name == "enum":
            cells = _read_enums(plan, values)
        case _:
            cells = list(values)
    return pa.array(cells, pa.null() if isinstance(kind, Void) else column_type(kind))


def _read_enums(plan: FieldPlan, values: Sequence[Any]) -> list[str | None]:
    """Returns the names of numbers; one without a name is its digits."""
    of = plan.descriptor
    if plan.form == "map":
        of = of.message_type.fields_by_name["value"]
    names = {number: each.name for number, each in of.enum_type.values_by_number.items()}
    return [None if each is None else names.get(each) or str(each) for each in values]


def _microseconds(seconds: int, nanos: int) -> int:
    if not FIRST_DAY * DAY_SECONDS <= seconds < (LAST_DAY + 1) * DAY_SECONDS or not 0 <= nanos < 1_000_000_000:
        raise _BadCell("a time outside of the years 1 to 9999")
    return seconds * 1_000_000 + nanos // 1000


def json_text(message: Any) -> str:
    """Returns a message as JSON, with the names of its fields."""
    from google.protobuf.json_format import Error, MessageToDict

    try:
        found = MessageToDict(message, preserving_proto_field_name=True)
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except (Error, TypeError, ValueError) as fault:
        raise _BadCell(f"no JSON: {fault}"[:200]) from None
