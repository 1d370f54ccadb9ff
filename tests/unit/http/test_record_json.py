from typing import Any

import orjson
import pytest

from tests.spark.filling import TransactionalLog
from tiered.errors import Corrupt
from tiered.records.batch import Codec, encode_batch
from tiered.records.native import walk
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.partitions.reads import drop_aborted
from tiered_api.http.partitions.record_json import Rendered, encode_events, encode_json, encode_v2

FIRST = encode_batch([(5, b"k", b'{"n":1}', (("h", b"\0"), ("none", None))), (6, None, None, ())], base_offset=10)
CONTROL = encode_batch([(7, b"\0\0\0\0", b"\0\0\0\0\0\0", ())], base_offset=12, control=True)
SECOND = encode_batch([(8, b"\xff", b"text", ())], base_offset=13, leader_epoch=4, codec=Codec.ZSTD)
LOG = FIRST + CONTROL + SECOND


def parse(reply: Rendered) -> Any:
    return orjson.loads(b"".join(reply.pieces))


def test_reply_has_the_data_records_from_the_offset_on() -> None:
    reply = encode_json(LOG, 11, 1 << 20, "string", {"topic": "t"})
    assert (reply.shown, reply.next_offset, parse(reply)) == (
        2,
        14,
        {
            "topic": "t",
            "next_offset": 14,
            "records": [
                {"offset": 11, "timestamp": 6, "leader_epoch": -1, "key": None, "value": None, "headers": []},
                {
                    "offset": 13,
                    "timestamp": 8,
                    "leader_epoch": 4,
                    "key": None,
                    "key_base64": "/w==",
                    "value": "text",
                    "headers": [],
                },
            ],
        },
    )


def test_forms_show_the_same_bytes_as_text_json_or_base64() -> None:
    shown = {
        form: parse(encode_json(FIRST, 10, 1 << 20, form, {}))["records"][0] for form in ("string", "json", "binary")
    }
    assert shown["string"]["value"] == '{"n":1}'
    assert (shown["json"]["value"], shown["json"]["key"], shown["json"]["key_base64"]) == ({"n": 1}, None, "aw==")
    assert (shown["binary"]["key"], shown["binary"]["value"]) == ("aw==", "eyJuIjoxfQ==")
    assert shown["string"]["headers"] == [{"name": "h", "value": "AA=="}, {"name": "none", "value": None}]


def test_reply_ends_before_a_record_without_room_but_has_one() -> None:
    for offset in (10, 11):
        assert parse(encode_json(LOG, offset, 1, "string", {}))["next_offset"] == offset + 1


def test_reply_of_control_batches_alone_moves_the_offset() -> None:
    assert parse(encode_json(CONTROL, 12, 1 << 20, "string", {})) == {"next_offset": 13, "records": []}


def test_reply_with_control_records_says_how_transactions_ended() -> None:
    reply = encode_json(transactions(), 0, 1 << 20, "string", {}, ABORTED, with_control=True)
    rows = parse(reply)["records"]
    assert reply.shown == 4 and [(row["offset"], row.get("control")) for row in rows] == [
        (2, None),
        (3, "abort"),
        (4, "commit"),
        (6, "abort"),
    ]
    named = ("key", "value", "headers", "producer_id", "producer_epoch", "coordinator_epoch")
    assert [rows[2][name] for name in named] == [None, None, [], 2, 0, 0]
    text = b"".join(encode_events(transactions(), 3, 1 << 20, "binary", ABORTED, with_control=True).pieces)
    assert [line for line in text.splitlines() if line.startswith(b"id")] == [b"id: 3", b"id: 4", b"id: 6"]
    assert text.count(b'"control":"abort"') == 2


def test_control_record_that_ends_no_transaction_is_told() -> None:
    other = encode_batch([(7, b"\0\0\0\x02", b"\0\0\0\0\0\0", ())], base_offset=12, control=True)
    with pytest.raises(Corrupt, match="not an end-transaction marker"):
        encode_json(other, 12, 1 << 20, "string", {}, with_control=True)


def test_v2_lists_records_and_refuses_those_that_it_cannot_show() -> None:
    reply = encode_v2(LOG, 10, 1 << 20, "binary", "t", 3)
    assert (reply.shown, reply.next_offset) == (3, 14)
    assert parse(reply)[0] == {"topic": "t", "key": "aw==", "value": "eyJuIjoxfQ==", "partition": 3, "offset": 10}
    with pytest.raises(HttpError, match="of t partition 3 at offset 10 is not json: read it as binary") as refused:
        encode_v2(LOG, 10, 1 << 20, "json", "t", 3)
    assert refused.value.error_code == 42203


def test_v2_lists_the_records_before_one_that_it_cannot_show() -> None:
    values = (b"1", b"2", b"no json", b"4")
    batches = b"".join(encode_batch([(0, None, each, ())], base_offset=n) for n, each in enumerate(values))
    for data in (batches, encode_batch([(0, None, each, ()) for each in values])):
        reply = encode_v2(data, 0, 1 << 20, "json", "t", 3)
        assert ([row["value"] for row in parse(reply)], reply.shown, reply.next_offset) == ([1, 2], 2, 2)
        with pytest.raises(HttpError, match="position 3"):
            encode_v2(data, 2, 1 << 20, "json", "t", 3)


def transactions() -> bytes:
    """Returns a log: 0 and 1 aborted, 2 committed, 3 the abort, 4 the commit, 5 aborted, 6 its abort."""
    log = TransactionalLog()
    log.write(1, 2)
    log.write(2, 1)
    log.end(1, commit=False)
    log.end(2, commit=True)
    log.write(1, 1)
    log.end(1, commit=False)
    return log.roll().log


ABORTED = ((1, 0), (1, 5))
"""Producer ids and first offsets of the aborted transactions."""


def test_records_of_aborted_transactions_are_in_no_form_of_reply() -> None:
    log = transactions()
    reply = encode_json(log, 0, 1 << 20, "string", {}, ABORTED)
    assert (reply.shown, [row["offset"] for row in parse(reply)["records"]]) == (1, [2])
    assert parse(reply)["next_offset"] == 7
    reply = encode_v2(log, 0, 1 << 20, "binary", "t", 0, ABORTED)
    assert (reply.shown, reply.next_offset, [row["offset"] for row in parse(reply)]) == (1, 7, [2])
    pieces, count, following = encode_events(log, 0, 1 << 20, "string", ABORTED)
    text = b"".join(pieces)
    assert (count, following, text.count(b"id: 2\n"), text.count(b"id: ")) == (1, 7, 1, 1)


def test_reply_of_aborted_records_alone_moves_the_offset() -> None:
    reply = encode_json(transactions(), 0, 1 << 20, "string", {}, [(1, 0), (2, 2), (1, 5)])
    assert (reply.shown, parse(reply)) == (0, {"next_offset": 7, "records": []})


def test_whole_batches_are_left_out_of_a_raw_reply() -> None:
    log = transactions()
    kept, following = drop_aborted(log, ABORTED)
    assert following == 7
    assert [batch.base_offset for batch in walk(kept).batches] == [2, 3, 4, 6]
    assert drop_aborted(log, ()) == (log, 7)


def test_event_has_its_offset_as_id() -> None:
    pieces, count, following = encode_events(LOG, 11, 1 << 20, "string")
    assert (count, following) == (2, 14)
    first, second, rest = b"".join(pieces).split(b"\n\n")
    assert first.startswith(b"id: 11\ndata: {") and second.startswith(b"id: 13\ndata: {") and rest == b""
