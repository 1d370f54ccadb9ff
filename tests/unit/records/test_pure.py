"""Tests that the C extension and plain Python give equal results, and equal error texts, on any input."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Corrupt, TooLarge
from tiered.records import native, pure, varint
from tiered.records.batch import encode_batch
from tiered.records.model import ArrowColumns, Codec, ProducerRecord

pytestmark = pytest.mark.skipif(not native.NATIVE, reason="the C extension is not built here")

INT64 = st.integers(-(2**63), 2**63 - 1)
BYTES = st.none() | st.binary(max_size=80)
HEADERS = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=3)
PRODUCED = st.lists(st.tuples(st.integers(-(2**40), 2**50), BYTES, BYTES, HEADERS), max_size=8)
ALL_COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")
EDGES = [0, 1, -1, 63, 64, -64, -65, 8191, 8192, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**40]


def outcome(call: Callable[[], Any]) -> Any:
    """Returns the result, or the type and text of the error."""
    try:
        return call()
    except (Corrupt, ValueError, OverflowError) as error:
        return type(error), str(error)


def both(name: str, *args: Any, **kwargs: Any) -> Any:
    """Calls a function of both implementations, compares their outcomes and returns the outcome."""
    modules: list[ModuleType | Any] = [native, pure]
    fast, plain = (outcome(lambda module=module: getattr(module, name)(*args, **kwargs)) for module in modules)  # type: ignore[misc]
    assert fast == plain
    return fast


@st.composite
def mutated_bytes(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Draws bytes with a few of them changed, cut out, doubled, or the end cut off."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        how = draw(st.sampled_from(["set", "flip", "insert", "delete", "cut"]))
        if how == "set":
            data[at] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]))
        elif how == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=4))
        elif how == "delete":
            del data[at : at + draw(st.integers(1, 4))]
        else:
            del data[at:]
    return bytes(data)


@st.composite
def hostile_sections(draw: st.DrawFn) -> bytes:
    """Draws a record section of varints that state wrong lengths, counts and deltas."""
    out = bytearray()
    for number in range(draw(st.integers(1, 3))):
        body = bytearray(1)
        varint.append(body, draw(st.sampled_from([0, 5, 2**63 - 1, -(2**63)])))
        varint.append(body, draw(st.sampled_from([number, 0, -1, 2**31 - 1])))
        for _ in range(2):
            content = draw(st.binary(max_size=3))
            varint.append(
                body, draw(st.sampled_from([len(content), len(content), len(content) + 1, -1, -2, 100, 2**31 - 1]))
            )
            body += content
        varint.append(body, draw(st.sampled_from([0, 0, 1, -1, 2**31 - 1])))
        body += draw(st.binary(max_size=6))
        varint.append(
            out, draw(st.sampled_from([len(body), len(body), len(body) - 1, len(body) + 1, -1, 2**31 - 1, 2**33]))
        )
        out += body
    return bytes(out)


SECTIONS = PRODUCED.map(lambda produced: pure.encode_records(produced))
HOSTILE = mutated_bytes(SECTIONS) | hostile_sections() | st.binary(max_size=60)


@given(PRODUCED, st.integers(-(2**40), 2**40))
def test_encode_agrees_on_any_records(produced: list[ProducerRecord], base: int) -> None:
    assert isinstance(both("encode_records", produced, base), bytes)


@given(st.lists(st.tuples(st.sampled_from(EDGES[:-1]), BYTES, BYTES, HEADERS), max_size=3), st.sampled_from(EDGES))
def test_encode_agrees_at_the_edges_of_numbers(produced: list[ProducerRecord], base: int) -> None:
    both("encode_records", produced, base)


@given(SECTIONS, st.integers(0, 2**62), st.integers(-1, 2**50), st.sampled_from([-1, 0, 77]))
def test_valid_sections_decode_alike(payload: bytes, base_offset: int, base_timestamp: int, append_time: int) -> None:
    count = len(both("rows", payload, 0, 0, -1, _count(payload)))
    assert both("check_records", payload, count) is None
    rows = both("rows", payload, base_offset, base_timestamp, append_time, count)
    assert [row.offset for row in rows] == list(range(base_offset, base_offset + count))
    columns = both("arrow", [(payload, base_offset, base_timestamp, append_time, count)], ALL_COLUMNS)
    assert columns.rows == count


def _count(payload: bytes) -> int:
    at = count = 0
    while at < len(payload):
        length, at = varint.read(payload, at, len(payload))
        at += length
        count += 1
    return count


@given(
    HOSTILE,
    st.sampled_from([1, 1, 1, 2, 2, 3, 0, 9, -1]),
    st.sampled_from(EDGES),
    st.sampled_from(EDGES),
    st.sampled_from([-1, 0, 2**62]),
)
def test_hostile_sections_fail_alike(
    payload: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int
) -> None:
    both("check_records", payload, count)
    both("check_records", payload, count, 1)
    both("split_records", payload, count, 0, -1)
    both("split_records", payload, count, 1, 0)
    both("rows", payload, base_offset, base_timestamp, append_time, count)
    both("first_at_or_after", payload, base_offset, base_timestamp, 1000, count)
    after = min(base_offset, 2**62) + 1
    both("first_at_or_after", payload, base_offset, base_timestamp, 1000, count, after)
    both("some_rows", payload, base_offset, base_timestamp, append_time, count, after, 20, 3)
    both("outside", payload, base_timestamp, -10, 1000, count, 2)
    both("time_range", payload, base_timestamp, count)
    both("arrow", [(payload, base_offset, base_timestamp, append_time, count)], ALL_COLUMNS)


def small_section() -> bytes:
    """Returns two records with every kind of field: null and not, with and without headers, a varint of two bytes."""
    return native.encode_records([(70, b"k", None, [("h", b"x"), ("n", None)]), (1, None, b"v" * 70, [])])


def test_section_with_any_value_of_any_byte_decodes_alike() -> None:
    whole = small_section()
    for at in range(len(whole)):
        for value in range(256):
            payload = whole[:at] + bytes([value]) + whole[at + 1 :]
            both("check_records", payload, 2)
            both("rows", payload, 0, 0, -1, 2)


@pytest.mark.parametrize("field", range(8))
def test_varints_of_every_width_decode_alike(field: int) -> None:
    """The fields are record length, timestamp delta, offset delta, key, value, header count, header key and header
    value."""
    widths = ["8000", "8080808000", "808080800f", "8080808010", "ffffffff0f", "ffffffffff00", "80" * 9 + "01"]
    for width in [*widths, "ff" * 9 + "01", "ff" * 9 + "02", "80" * 10 + "00", "80", "ff" * 4]:
        fields = [b"", b"\0", b"\0", b"\1", b"\1", b"\2", b"\0", b"\1"]
        if field:
            fields[field] = bytes.fromhex(width)
        body = b"\0" + b"".join(fields)
        length = bytes([len(body) * 2]) if field else bytes.fromhex(width)
        both("check_records", length + body, 1)
        both("rows", length + body, 0, 0, -1, 1)


def test_cut_section_with_any_count_fails_alike() -> None:
    whole = small_section() * 2
    for cut in range(len(whole)):
        for count in (-1, 0, 1, 2, 3, cut // 7, cut // 7 + 1):
            both("check_records", whole[:cut], count)
            both("rows", whole[:cut], 0, 0, -1, count)
            both("arrow", [(whole[:cut], 0, 0, -1, count)], ALL_COLUMNS)


@given(SECTIONS, INT64, INT64, INT64)
def test_first_at_or_after_agrees(payload: bytes, base_offset: int, base_timestamp: int, timestamp: int) -> None:
    both("first_at_or_after", payload, base_offset, base_timestamp, timestamp, _count(payload))


@given(st.lists(st.sampled_from(EDGES), min_size=1, max_size=5), st.sampled_from(EDGES))
def test_time_range_is_that_of_the_records(deltas: list[int], base: int) -> None:
    payload = pure.encode_records([(delta, None, None, ()) for delta in deltas])
    times = [base + delta for delta in deltas]
    held = [time for time in times if -(2**63) <= time < 2**63]
    beyond = next((number for number, time in enumerate(times) if time not in held), -1)
    oldest = min((time for time in held if time != -1), default=-1)
    assert both("time_range", payload, base, len(times)) == (oldest, max([*held, -1]), beyond)
    wrapped = [(time + 2**63) % 2**64 - 2**63 for time in times]
    assert [row.timestamp for row in both("rows", payload, 0, base, -1, len(times))] == wrapped


@given(SECTIONS, st.integers(-1, 9), st.integers(0, 60), st.integers(0, 9), st.integers(-2, 9))
def test_rows_within_bounds_are_the_first_ones(
    payload: bytes, start: int, size: int, objects: int, copied: int
) -> None:
    count = _count(payload)
    rows = [row for row in pure.rows(payload, 0, 0, -1, count) if row.offset >= start]
    held = sum(1 + len(row.headers) for row in rows)
    some = both("some_rows", payload, 0, 0, -1, count, start, size, objects, copied)
    if some[0] is TooLarge:
        assert 1 + len(rows[0].headers) > objects
        return
    given, whole = some
    assert given == rows[: len(given)] and whole == (len(given) == len(rows))
    fields = [field for row in given for field in row[2:4] if field is not None]
    assert all(isinstance(field, memoryview) == (len(field) > copied) for field in fields)
    assert sum(1 + len(row.headers) for row in given) <= objects or not rows
    total = sum(1 + len(row.headers) for row in pure.rows(payload, 0, 0, -1, count))
    limited = both("rows", payload, 0, 0, -1, count, objects)
    assert (TooLarge in limited[:1]) == (total > objects)
    everything = both("rows", payload, 0, 0, -1, count, held)
    assert everything == pure.rows(payload, 0, 0, -1, count) or start > 0
    if rows and start <= 0:
        assert both("rows", payload, 0, 0, -1, count, held - 1)[0] is TooLarge


@given(SECTIONS, st.integers(-5, 5), st.integers(0, 2**50), st.integers(0, 4))
def test_positions_outside_of_the_bytes_fail_alike(payload: bytes, low: int, above: int, most: int) -> None:
    count = _count(payload)
    found = both("outside", payload, 7, low, low + above, count, most)
    stamps = [row.timestamp for row in pure.rows(payload, 0, 7, -1, count)]
    assert found == [(number, stamp) for number, stamp in enumerate(stamps) if not low <= stamp <= low + above][:most]


@given(
    st.lists(st.tuples(SECTIONS, st.integers(0, 1000), st.sampled_from(EDGES), st.sampled_from([-1, 5])), max_size=4),
    st.sets(st.sampled_from(ALL_COLUMNS)),
    st.integers(0, 1010),
    st.integers(0, 1010),
)
def test_arrow_columns_agree(found: list[tuple[bytes, int, int, int]], columns: set[str], start: int, end: int) -> None:
    sections = [(memoryview(s), base, ts, append, _count(s)) for s, base, ts, append in found]
    decoded = both("arrow", sections, columns, start, end)
    assert isinstance(decoded, ArrowColumns)
    assert set(decoded.columns) == columns
    rows = [row for section in sections for row in pure.rows(*section) if start <= row.offset < end]
    assert decoded.rows == len(rows)


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=4))
def test_header_keys_that_are_not_text_fail_alike(keys: list[bytes]) -> None:
    body = bytearray(b"\0\0\0\x01\x01")
    varint.append(body, len(keys))
    for key in keys:
        varint.append(body, len(key))
        body += key + b"\x01"
    payload = bytearray()
    varint.append(payload, len(body))
    payload += body
    rows = both("rows", payload, 0, 0, -1, 1)
    assert [name for name, _ in rows[0].headers] == [key.decode("utf-8", "replace") for key in keys]
    decoded = both("arrow", [(payload, 0, 0, -1, 1)], ["headers"])
    assert decoded.columns["headers"][3] == b"".join(key.decode("utf-8", "replace").encode() for key in keys)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Draws up to four batches in a row."""
    batches = []
    for _ in range(draw(st.integers(0, 4))):
        produced = draw(PRODUCED) or [(0, None, None, [])]
        base = draw(st.integers(0, 2**62))
        batches.append(encode_batch(produced, base_offset=base, codec=draw(st.sampled_from([Codec.NONE, Codec.LZ4]))))
    return b"".join(batches)


@given(mutated_bytes(logs()), st.booleans(), st.none() | st.integers(0, 3), st.data())
def test_walk_agrees_on_any_log(log: bytes, check_crc: bool, most: int | None, data: st.DataObject) -> None:
    start = data.draw(st.sampled_from([0, 0, 1, len(log), len(log) + 1, -1]))
    end = data.draw(st.sampled_from([None, len(log), len(log) // 2, len(log) + 1]))
    both("walk", memoryview(log), start, end, check_crc=check_crc, max_batches=most)


def test_walk_over_records_finds_every_wrong_byte() -> None:
    batch = encode_batch([(5, b"k", b"v", [("h", b"x")]), (6, None, b"w", ())])
    assert both("walk", batch, records=True).why == ""
    found = set()
    for at in range(57, len(batch)):
        for value in (0, 1, 2, 0x7F, 0x80, 0xFF):
            log = batch[:at] + bytes((value,)) + batch[at + 1 :]
            found.add(both("walk", log * 2, check_crc=False, records=True).why)
    assert {"records: record 1 is out of order", "records: record 0 has a bad length", ""} < found
    packed = encode_batch([(5, b"k", b"v" * 100, ())], codec=Codec.ZSTD)
    assert both("walk", packed[:70] + bytes(len(packed) - 70), check_crc=False, records=True).why == ""


def test_walk_agrees_on_any_header_byte_and_any_cut() -> None:
    batch = encode_batch([(0, b"k", b"v", ())])
    for at in range(61):
        for value in range(256):
            log = batch[:at] + bytes([value]) + batch[at + 1 :]
            both("walk", log, check_crc=False)
    for cut in range(len(batch) * 2):
        both("walk", (batch * 2)[:cut])
        both("walk", bytes(cut))


@given(st.integers(0, 60), st.binary(min_size=1, max_size=8))
def test_walk_agrees_on_any_header_field(at: int, content: bytes) -> None:
    log = bytearray(encode_batch([(0, b"k", b"v", ())]) * 2)
    log[at : at + len(content)] = content
    for check_crc in (True, False):
        both("walk", log, check_crc=check_crc)


@given(
    mutated_bytes(logs()),
    st.integers(-1, 3) | st.just(2**63 - 1),
    st.booleans(),
    st.integers(0, 400),
    st.sampled_from([-5, 0, 2**40, 2**63 - 1]),
    st.sampled_from([0, 10, 2**50, 2**63 - 1]),
    st.sampled_from([0, 10, 2**50, 2**63 - 1]),
)
def test_fit_agrees_on_any_log(
    log: bytes, base_offset: int, sound: bool, max_bytes: int, now: int, before: int, after: int
) -> None:
    if sound and len(log) > 21:
        log = log[:17] + native.crc32c(log[21:]).to_bytes(4, "big") + log[21:]
    mine, other = bytearray(log), bytearray(log)
    fast = native.fit(mine, base_offset, 5, max_bytes, now, before, after)
    assert fast == pure.fit(memoryview(other), base_offset, 5, max_bytes, now, before, after)
    assert mine == other
    assert (mine[:8] == base_offset.to_bytes(8, "big", signed=True) and mine[12:16] == b"\0\0\0\5") or fast is None
    assert fast is not None or mine == log


def test_fit_agrees_on_any_header_byte_and_any_cut() -> None:
    batch = encode_batch([(0, b"k", b"v", ())])
    cases = [batch[:cut] for cut in range(len(batch))] + [batch, batch * 2]
    rows = [(0, b"k", b"v", ())]
    cases += [
        encode_batch(rows, transactional=True),
        encode_batch(rows, transactional=True, producer_id=7, producer_epoch=0, base_sequence=0),
    ]
    for at in range(61):
        cases += [batch[:at] + bytes([value]) + batch[at + 1 :] for value in range(256)]
    fits = 0
    for case in cases:
        for log in (case, case[:17] + native.crc32c(case[21:]).to_bytes(4, "big") + case[21:]):
            mine, other = bytearray(log), bytearray(log)
            fits += (fast := native.fit(mine, 7, 5, 1000, 0, 2**63 - 1, 2**63 - 1)) is not None
            assert fast == pure.fit(other, 7, 5, 1000, 0, 2**63 - 1, 2**63 - 1) and mine == other
    assert fits > 512
    with pytest.raises((TypeError, BufferError)):
        native.fit(memoryview(batch), 7, 5, 1000, 0, 1, 1)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ([(1, b"k", b"v")], (TypeError, ValueError)),
        ([(1, "k", b"v", ())], TypeError),
        ([(1, b"k", b"v", (("h", 5),))], TypeError),
        ([(1, b"k", b"v", (("h",),))], (TypeError, ValueError)),
        ([(1, b"k", b"v", (("\ud800", b""),))], UnicodeEncodeError),
        ([(2**64, b"k", b"v", ())], OverflowError),
        ([("1", b"k", b"v", ())], TypeError),
        (5, TypeError),
    ],
)
@pytest.mark.parametrize("implementation", [native, pure], ids=["native", "pure"])
def test_encode_refuses_invalid_records_alike(implementation: ModuleType, bad: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        implementation.encode_records(bad)


@pytest.mark.parametrize("implementation", [native, pure], ids=["native", "pure"])
def test_arrow_refuses_unknown_columns_alike(implementation: ModuleType) -> None:
    with pytest.raises(ValueError, match="unknown column 'topic'"):
        implementation.arrow([], ["offset", "topic"])


def test_large_inputs_run_without_the_lock_and_agree() -> None:
    produced: list[ProducerRecord] = [(n, b"%d" % n, bytes(600), (("h", b"x"),)) for n in range(4000)]
    log = encode_batch(produced) * 2
    assert len(log) > 4 << 20
    both("crc32c", log)
    assert len(both("walk", log).batches) == 2
    payload = log[61 : len(log) // 2]
    assert both("check_records", payload, 4000) is None
    assert both("arrow", [(payload, 0, 0, -1, 4000)] * 2, ALL_COLUMNS).rows == 8000
