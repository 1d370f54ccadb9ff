"""A file of a Delta table as Iceberg's manifests describe it: path, rows, bytes, and bounds of columns. Pure.

Only columns whose bounds Delta keeps whole get bounds: Delta cuts texts, and a cut text is no bound of Iceberg.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from pyspark_tiered.delta.delta_state import file_path
from pyspark_tiered.iceberg.schema import refuse

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS = date(1970, 1, 1).toordinal()


class DataFile(NamedTuple):
    """A data file. Counts and bounds are by the id of the column; a bound has Iceberg's form of a single value.

    A file of position deletes has the path of its data file in `of`; a data file has nothing there.
    """

    path: str
    rows: int
    size: int
    values: dict[int, int]
    nulls: dict[int, int]
    lower: dict[int, bytes]
    upper: dict[int, bytes]
    of: str = ""

    @property
    def data_path(self) -> str:
        """Returns the path of the data file that the file is, or whose rows it deletes."""
        return self.of or self.path


def describe_file(add: Mapping[str, Any], schema: Mapping[str, Any], location: str) -> DataFile:
    """Returns the file of an add action of the table at `location`. Raises `Refused` for what Iceberg cannot have."""
    path = file_path(add, location)
    stats = json.loads(str(add.get("stats") or "{}"))
    if stats.get("numRecords") is None:
        raise refuse(f"the log does not say how many rows {path} has: OPTIMIZE writes such files again")
    rows = int(stats["numRecords"])
    found = DataFile(f"{location}/{path}", rows, int(add["size"]), {}, {}, {}, {})
    least, most, nulls = (stats.get(name) or {} for name in ("minValues", "maxValues", "nullCount"))
    for field in schema["fields"]:
        name, number, kind = field["name"], field["id"], field["type"]
        if isinstance(nulls.get(name), int):
            found.values[number], found.nulls[number] = rows, nulls[name]
        encode = BOUNDS.get(kind) if isinstance(kind, str) else None
        low, high = least.get(name), most.get(name)
        if encode is None or low is None or high is None:
            continue
        try:
            found.lower[number], found.upper[number] = encode(low, False), encode(high, True)
        except (ValueError, TypeError, struct.error, OverflowError):
            # Statistics of another writer in another form: a file without bounds is read, and never left out.
            found.lower.pop(number, None)
    return found


def _int(value: Any, is_upper: bool) -> bytes:
    return struct.pack("<i", value)


def _long(value: Any, is_upper: bool) -> bytes:
    return struct.pack("<q", value)


def _date(value: Any, is_upper: bool) -> bytes:
    return struct.pack("<i", date.fromisoformat(value).toordinal() - _DAYS)


def _timestamp(value: Any, is_upper: bool) -> bytes:
    """Delta cuts the times of statistics to milliseconds, so that the upper one is up to 999 microseconds later."""
    at = datetime.fromisoformat(value)
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    micros = (at - _EPOCH) // timedelta(microseconds=1)
    return struct.pack("<q", micros + (999 if is_upper and micros % 1000 == 0 else 0))


BOUNDS: Mapping[str, Callable[[Any, bool], bytes]] = {
    "int": _int,
    "long": _long,
    "date": _date,
    "timestamptz": _timestamp,
    "timestamp": _timestamp,
}
"""By type of Iceberg: a bound of Delta's statistics as bytes, of the lower or the upper one."""
