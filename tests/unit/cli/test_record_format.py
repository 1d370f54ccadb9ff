"""Tests of formats of records: the printed text, the parsed input, and that printed records can be parsed again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Refused
from tiered.records.model import Record
from tiered_api.cli.text.record_format import PrintableRecord, compile_format
from tiered_api.cli.text.record_input import InputRecord, RecordReader

RECORD = Record(5, 1_700_000_000_123, b"ke\xff", b"\x00\x00\x00\x07ab", (("h", b"v"), ("i", None)))
SHOWN = PrintableRecord("topic", 3, RECORD, 1, 0x0C, 7, 8, 0, 9, 10, 11)


@pytest.mark.parametrize(
    ("form", "printed"),
    [
        ("%t %p %o %e %d", b"topic 3 5 1 1700000000123"),
        ("%T %K %V %H", b"5 3 6 2"),
        ("%k", b"ke\xff"),
        ("%k{hex} %k{base64} %t{base64raw}", b"6b65ff a2X/ dG9waWM"),
        ("%t{json}", b'"topic"'),
        ("%x %y %[ %| %] %i", b"7 8 0 9 10 11"),
        (r"%% %{ %} \t\n\r\\ \x41\xff", b"% { } \t\n\r\\ A\xff"),
        ("%h{%k=%v{hex},}", b"h=76,i=,"),
        ("%h{%K%V }", b"11 10 "),
        ("%V{big16}%V{little32}%V{byte}", b"\0\x06\x06\0\0\0\x06"),
        ("%o{hex8} %o{hex64} %o{hex4}", b"05 0000000000000005 5"),
        ("%o{bool}", b"true"),
        ("%a{compression} %a{compression;number} %a{compression;hex8}", b"zstd 4 04"),
        ("%a{timestamp-type} %a{transactional-bit} %a{control-bit;bool}", b"1 0 false"),
        ("%v{unpack[>Is$]}", b"7ab"),
        ("%v{unpack#>H<HBB#}", b"017929798"),
        ("%v{unpack[q]}", b" (unpack: too short)"),
        ("%v{unpack[I$]}", b"7 (unpack: 2 bytes left)"),
        ("%d{strftime[%F %T]}", b"2023-11-14 22:13:20"),
        ("%d{strftime### [%F] ###}", b" [2023-11-14] "),
        ("%d{go[2006-01-02T15:04:05.000Z07:00]}", b"2023-11-14T22:13:20.123Z"),
        ("%d{go#Mon Jan 02#}", b"Tue Nov 14"),
    ],
)
def test_records_are_printed(form: str, printed: bytes) -> None:
    assert compile_format(form)(SHOWN) == printed


@pytest.mark.parametrize("form", ["%d{strftime[%F]}", "%d{go[2006-01-02]}"])
def test_timestamp_outside_of_the_calendar_is_printed_as_a_number(form: str) -> None:
    for time in (-(2**63), 2**63 - 1, 253_402_300_800_000, -62_135_596_800_001):
        record = PrintableRecord("t", 0, Record(0, time, None, None, ()), 0, 0, 0, 0, 0, 0, 0, 0)
        assert compile_format(form)(record) == b"%d" % time


@pytest.mark.parametrize(
    "form",
    ["%q", "%", "%v{rot13}", "%o{big7}", "%v{hex", r"\q", r"\xg1", "%a", "%a{size}", "%d{strftime%F}", "%v{unpack[z]}"],
)
def test_invalid_format_is_refused_with_its_text(form: str) -> None:
    with pytest.raises(Refused) as refused:
        compile_format(form)
    assert repr(form) in refused.value.why


READ = [
    (r"%v\n", b"a\n\nb", [InputRecord(value=b"a"), InputRecord(value=b""), InputRecord(value=b"b")]),
    (r"%k %v\n", b"a b c\n", [InputRecord(key=b"a", value=b"b c")]),
    ("%k\t%v\n", b"a\t\n", [InputRecord(key=b"a", value=b"")]),
    ("%T{4}%K{4}%V{4}%t%k%v", b"topckey1val1", [InputRecord(topic="topc", key=b"key1", value=b"val1")]),
    (r"%K{big16} foo %k", b"\0\3 foo abc\0\1 foo x", [InputRecord(key=b"abc"), InputRecord(key=b"x")]),
    (r"%K{hex8}%V{little16}%k%v", b"02\1\0abc", [InputRecord(key=b"ab", value=b"c")]),
    (r"%v{re#...?#}\n", b"abc\nde\n", [InputRecord(value=b"abc"), InputRecord(value=b"de")]),
    (r"%H{2}%h{ %k=%v } %v\n", b" a=b  c=  val\n", [InputRecord(headers=[("a", b"b"), ("c", b"")], value=b"val")]),
    (r"%H %h{%k=%v }%v\n", b"1 a=b x\n", [InputRecord(headers=[("a", b"b")], value=b"x")]),
    (r"%p %d %v{hex}\n", b"3 123 6162\n", [InputRecord(partition=3, timestamp=123, value=b"ab")]),
    (r"%v{base64},", b"YQ==,Yg==,", [InputRecord(value=b"a"), InputRecord(value=b"b")]),
    (r"%v{json}\n", b'{ "a" : 1 }\n', [InputRecord(value=b'{"a":1}')]),
    (r"%k%%%v\x00", b"a%b\0", [InputRecord(key=b"a", value=b"b")]),
]


@pytest.mark.parametrize(("form", "data", "records"), READ)
def test_records_are_parsed_from_any_pieces_of_input(form: str, data: bytes, records: list[InputRecord]) -> None:
    assert list(RecordReader(form).feed(data, end=True)) == records
    reader = RecordReader(form)
    out = [record for at in range(len(data)) for record in reader.feed(data[at : at + 1])]
    assert out + list(reader.feed(b"", end=True)) == records


@pytest.mark.parametrize(
    ("form", "data", "words"),
    [
        (r"%k %v\n", b"nothing\n", "middle of a record"),
        ("%K{4}%k", b"abc", "middle of a record"),
        (r"%v{hex}\n", b"xyz\n", "is not hex"),
        (r"%v{json}\n", b"{\n", "is not json"),
        (r"%p %v\n", b"one v\n", "no number"),
        (r"%K{hex8}%k", b"zzab", "no number"),
        (r"%K{4}%k-%V{1}%v", b"abcd+", "does not have b'-'"),
    ],
)
def test_input_that_does_not_fit_is_refused(form: str, data: bytes, words: str) -> None:
    with pytest.raises(Refused) as refused:
        list(RecordReader(form).feed(data, end=True))
    assert words in refused.value.why


@pytest.mark.parametrize("form", ["", "text", "%o", "%h{%k}", "%H%h", "%v{rot13}", "%K{big7}%k", "%"])
def test_invalid_input_format_is_refused(form: str) -> None:
    with pytest.raises(Refused):
        RecordReader(form)


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), max_size=8), st.integers(1, 20))
def test_records_printed_with_sizes_are_parsed_again(pairs: list[tuple[bytes, bytes]], cut: int) -> None:
    form = "%K{big32}%V{big32}%k%v"
    write = compile_format(form)
    data = b"".join(write(PrintableRecord("t", 0, Record(0, 0, key, value, ()))) for key, value in pairs)
    reader = RecordReader(form)
    out = [record for at in range(0, len(data), cut) for record in reader.feed(data[at : at + cut])]
    out += reader.feed(b"", end=True)
    assert [(record.key, record.value) for record in out] == pairs
