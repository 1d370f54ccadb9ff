"""The record of rows that were erased from a table: one small object for each erasure, in the table's own folder.

The object is written before the rows are removed. So an erasure that was cut off is known, and a repair completes it.
Names that begin with an underscore are left alone by Delta: VACUUM, RESTORE and OVERWRITE keep these objects.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from pyspark_tiered.delta.log_folder import BucketConnection, open_folder
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.proof.gaps import Gap
from pyspark_tiered.proof.sums import OffsetRange
from tiered.errors import Code, Corrupt, Refused, Unavailable

ERASED = "erased"
"""The reason for a gap whose rows were erased."""
FOLDER = "_erased"
VERSION = 1
"""Version of the objects."""
RANGES_MAX = 100_000
"""Ranges of offsets of one erasure. More would need another form of the object."""


class Erasure(NamedTuple):
    """Rows that were erased: their exact offsets by partition, the condition that chose them, and the reason."""

    topic_id: str
    at_ms: int
    where: str
    reason: str
    ranges: Mapping[int, tuple[Range, ...]]

    @property
    def rows(self) -> int:
        """Returns how many offsets were erased."""
        return sum(end - start for each in self.ranges.values() for start, end in each)

    def encode(self) -> bytes:
        """Returns the JSON of the object."""
        ranges = {str(partition): each for partition, each in self.ranges.items()}
        return json.dumps({"version": VERSION} | self._asdict() | {"ranges": ranges}).encode()


def decode_erasure(data: bytes, where: str) -> Erasure:
    """Parses the object of that name. Raises `Corrupt` if it is none, `Refused` if a later version wrote it."""
    try:
        found = json.loads(data)
        if found["version"] != VERSION:
            raise Refused(
                Code.UNSUPPORTED_VERSION, f"{where} has version {found['version']}, and this tiered knows {VERSION}"
            )
        ranges = {
            int(partition): tuple((int(low), int(high)) for low, high in each)
            for partition, each in found["ranges"].items()
        }
        return Erasure(str(found["topic_id"]), int(found["at_ms"]), str(found["where"]), str(found["reason"]), ranges)
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise Corrupt(f"the record of an erasure cannot be read: {fault!r}", where=where) from fault


def write_erasure(table_url: str, erasure: Erasure, name: str) -> None:
    """Writes the object. Raises `Unavailable`."""

    with closing(open_folder(table_url)) as folder:
        try:
            folder.replace(f"{FOLDER}/{name}", erasure.encode())
        except OSError as failure:
            raise Unavailable(f"{name} was not stored in {table_url}: {failure}") from failure


class ErasureReader:
    """Reads the erasures of a topic from its table. Each object is read once, because none ever changes."""

    def __init__(self, table_url: str, topic_id: str, shared: BucketConnection | None = None) -> None:
        self._folder = open_folder(table_url, shared)
        self._topic_id = topic_id
        self._known: dict[str, Erasure] = {}

    def read(self) -> list[Erasure]:
        """Returns the erasures in order of their names. Raises `Corrupt` and `Unavailable`."""
        names = [name for name in self._folder.list_names(FOLDER) if name.endswith(".json")]
        for name in names:
            if name not in self._known:
                self._known[name] = self._read_object(name)
        return [each for name in names if (each := self._known[name]).topic_id == self._topic_id]

    def _read_object(self, name: str) -> Erasure:
        where = f"{self._folder.url}/{FOLDER}/{name}"
        data = self._folder.read(f"{FOLDER}/{name}")
        if data is None:
            raise Corrupt("the record of an erasure is gone", where=where)
        return decode_erasure(data, where)

    def count_requests(self) -> dict[str, int]:
        """Returns the number of requests so far by verb."""
        return self._folder.count_requests()

    def close(self) -> None:
        """Ends the use of the folder."""
        self._folder.close()


def read_erasures(table_url: str, topic_id: str) -> list[Erasure]:
    """Returns the erasures of this topic from a table, in order of their names. Raises `Corrupt` and `Unavailable`."""
    if not table_url.startswith(("file:", "s3a:")):
        return []
    with closing(ErasureReader(table_url, topic_id)) as reader:
        return reader.read()


def join_ranges(erasures: Iterable[Erasure]) -> dict[int, tuple[Range, ...]]:
    """Returns all erased offsets by partition: in order, neighbours and overlaps joined."""
    found: dict[int, list[Range]] = {}
    spans = sorted((number, low, high) for each in erasures for number, own in each.ranges.items() for low, high in own)
    for number, low, high in spans:
        joined = found.setdefault(number, [])
        if joined and joined[-1][1] >= low:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return {number: tuple(each) for number, each in found.items()}


def overlaps(ranges: Sequence[Range], start: int, end: int) -> Sequence[Range]:
    """Returns those of some joined ranges that have an offset in `[start, end)`."""
    first = bisect_right(ranges, start, key=lambda each: each[1])
    return ranges[first : bisect_left(ranges, end, lo=first, key=lambda each: each[0])]


def explain_erased(
    holes: Sequence[OffsetRange], erased: Mapping[int, Sequence[Range]]
) -> tuple[list[Gap], list[OffsetRange]]:
    """Splits holes of a table into the erased parts, with their reason, and the parts that are left to explain."""
    gaps, left = list[Gap](), list[OffsetRange]()
    for number, start, end in holes:
        at = start
        for low, high in erased.get(number, ()):
            low, high = max(low, at), min(high, end)
            if low >= high:
                continue
            if at < low:
                left.append(OffsetRange(number, at, low))
            gaps.append(Gap(number, low, high, ERASED))
            at = high
        if at < end:
            left.append(OffsetRange(number, at, end))
    return gaps, left
