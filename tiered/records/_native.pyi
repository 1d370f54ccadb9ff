# The functions of pure.py in C. pure.py describes each of them.
import sys
from collections.abc import Collection, Sequence

from tiered.ports import Buffer
from tiered.records.model import (
    ArrowColumn,
    ArrowColumns,
    FilterResult,
    ProducerRecord,
    PutResult,
    Record,
    RecordSection,
    WalkedBatch,
    WalkResult,
)

def crc32c(data: Buffer, value: int = 0, /) -> int: ...
def crc32c_ways(data: Buffer) -> list[int]: ...
def fit(
    buf: bytearray | memoryview,
    base_offset: int,
    leader_epoch: int,
    max_bytes: int,
    now_ms: int,
    before_max_ms: int,
    after_max_ms: int,
    /,
) -> WalkedBatch | None: ...
def walk(
    buf: Buffer,
    start: int = 0,
    end: int | None = None,
    *,
    check_crc: bool = True,
    max_batches: int | None = None,
    records: bool = False,
) -> WalkResult: ...
def check_records(payload: Buffer, count: int, first: int = 0) -> None: ...
def split_records(payload: Buffer, count: int, first: int, last_delta: int, /) -> tuple[int, int, int, int]: ...
def time_range(payload: Buffer, base_timestamp: int, count: int, /) -> tuple[int, int, int]: ...
def rows(
    payload: Buffer, base_offset: int, base_timestamp: int, append_time: int, count: int, objects: int = ...
) -> list[Record]: ...
def some_rows(
    payload: Buffer,
    base_offset: int,
    base_timestamp: int,
    append_time: int,
    count: int,
    start: int,
    size: int,
    objects: int,
    copied: int = ...,
) -> tuple[list[Record], bool]: ...
def first_at_or_after(
    payload: Buffer, base_offset: int, base_timestamp: int, timestamp: int, count: int, start: int = ...
) -> tuple[int, int] | None: ...
def outside(
    payload: Buffer, base_timestamp: int, low: int, high: int, count: int, most: int
) -> list[tuple[int, int]]: ...
def encode_records(records: Sequence[ProducerRecord], base_timestamp: int = 0) -> bytes: ...
def arrow(
    sections: Sequence[RecordSection], columns: Collection[str], start: int = ..., end: int = ...
) -> ArrowColumns: ...
def hash_rows(secret: Buffer, rows: int, columns: tuple[ArrowColumn, ...], /) -> bytes: ...
def murmur2(data: Buffer) -> int: ...
def json_elements(buf: Buffer, /) -> int: ...
def json_entries(
    buf: Buffer, name: bytes, elements_max: int, bytes_max: int, /
) -> tuple[int, int, list[tuple[int, int, int, int]]] | None: ...
def json_spans(buf: Buffer, most: int = sys.maxsize, /) -> tuple[list[tuple[int, int]], int]: ...
def json_repeated_name(buf: Buffer, free: tuple[bytes, ...], /) -> str | None: ...
def put_keys(
    table: bytearray | memoryview,
    seed: bytes,
    keys: int,
    keys_max: int,
    latest_offset: int,
    data: Buffer,
    start: int,
    end: int,
    from_offset: int,
    one: bool,
) -> PutResult: ...
def filter_batches(
    table: Buffer,
    seed: bytes,
    latest_offset: int,
    data: Buffer,
    start: int,
    end: int,
    kept_offsets: bytes,
    last_next_offset: int,
    now_ms: int,
    horizon_ms: int,
    one: int,
) -> FilterResult: ...
def find_keyless(payload: Buffer, count: int, most: int) -> list[int]: ...
def find_text(buf: Buffer, text: bytes, start: int, /) -> int: ...
