"""Tests of reads of one partition from any offset, as JSON, REST v2, raw batches and events: the same records in every
form."""

import asyncio
import gc
import json
import types
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.http_site import RAW, HttpBroker, http_broker, run, wait_until
from tests.scenario import run_alone, run_by
from tiered.records.batch import Codec, decode_header, decode_records, encode_batch
from tiered_api.http.exchange.limits import HttpLimits
from tiered_api.http.partitions.reads import OBJECTS_MAX

PATH = "/topics/t/partitions/0/records"
EVENTS = "text/event-stream"
V2_BINARY = "application/vnd.kafka.binary.v2+json"
V2_JSON = "application/vnd.kafka.json.v2+json"
NOW = 4_000_000_000_000
KEEP = {"retention_ms": "-1", "message_timestamp_after_max_ms": str(NOW)}


def batch(first: int, count: int, codec: Codec = Codec.NONE) -> bytes:
    """Returns records n = first, first + 1, ...: key "kn", value {"n":n}, a second apart."""
    return encode_batch(
        [(NOW + n * 1000, b"k%d" % n, b'{"n":%d}' % n, (("h", b"x"),)) for n in range(first, first + count)],
        codec=codec,
    )


async def fill(site: HttpBroker) -> None:
    """Appends offsets 0 to 99 in ten batches, two of them compressed."""
    await site.create("t", 1, **KEEP)
    for first in range(0, 100, 10):
        codec = {20: Codec.ZSTD, 30: Codec.GZIP}.get(first, Codec.NONE)
        answer = await site.ask("POST", PATH, batch(first, 10, codec), kind=RAW)
        assert (answer.status, answer.json["base_offset"], answer.json["last_offset"]) == (200, first, first + 9)


@run_by(run, "tmp_path")
async def test_read_begins_at_its_offset_and_returns_the_next_one(site: HttpBroker) -> None:
    await fill(site)
    for offset in (0, 9, 10, 25, 99):
        answer = (await site.get(f"{PATH}?offset={offset}&max_bytes=1")).json
        end = offset // 10 * 10 + 10
        assert [record["offset"] for record in answer["records"]] == list(range(offset, end))
        assert (answer["next_offset"], answer["high_watermark"], answer["log_start_offset"]) == (end, 100, 0)
    whole = (await site.get(PATH)).json["records"]
    assert [record["value"] for record in whole] == [f'{{"n":{n}}}' for n in range(100)]
    assert whole[7] | {"leader_epoch": 0} == {
        "offset": 7,
        "timestamp": NOW + 7000,
        "leader_epoch": 0,
        "key": "k7",
        "value": '{"n":7}',
        "headers": [{"name": "h", "value": "eA=="}],
    }
    assert (await site.get(f"{PATH}?offset=latest")).json["records"] == []
    parsed = (await site.get(f"{PATH}?format=json&offset=99")).json["records"]
    assert (parsed[0]["value"], parsed[0]["key"], parsed[0]["key_base64"]) == ({"n": 99}, None, "azk5")


@run_by(run, "tmp_path")
async def test_read_may_begin_at_a_timestamp(site: HttpBroker) -> None:
    await fill(site)
    for moment, first in ((NOW, 0), (NOW - 1, 0), (NOW + 24_001, 25), (NOW + 35_000, 35), (NOW + 99_000, 99)):
        answer = (await site.get(f"{PATH}?timestamp={moment}&max_bytes=1")).json
        assert answer["records"][0]["offset"] == first, moment
    assert (await site.get(f"{PATH}?timestamp={NOW + 99_001}")).json["records"] == []


@run_by(run, "tmp_path")
async def test_search_returns_the_records_with_a_text_and_how_many_it_looked_at(site: HttpBroker) -> None:
    await fill(site)
    found = (await site.get(f"{PATH}?contains=%22N%22%3A2")).json
    assert [each["offset"] for each in found["records"]] == [2, *range(20, 30)]
    assert (found["next_offset"], found["scanned"]) == (100, 100)
    assert found["records"][1] == (await site.get(f"{PATH}?offset=20")).json["records"][0]
    first = (await site.get(f"{PATH}?contains=k2&limit=3&offset=5")).json
    assert [each["offset"] for each in first["records"]] == [20, 21, 22] and first["next_offset"] == 23
    none = (await site.get(f"{PATH}?contains=absent&max_bytes=1")).json
    assert (none["records"], none["next_offset"], none["scanned"]) == ([], 100, 100), "it reads on by itself"
    assert (await site.get(f"{PATH}?contains=k2&offset=latest")).json["next_offset"] == 100
    assert "scanned" not in (await site.get(PATH)).json


@run_by(run, "tmp_path")
async def test_search_takes_the_parts_of_a_filter_together(site: HttpBroker) -> None:
    await fill(site)
    for query, expected in (
        ("key=k7", [7]),
        ("header=h:X&key=k8", [8]),
        ("header=g", []),
        ("json=%24.n+%3E%3D+97", [97, 98, 99]),
        ("json=%24.n+%3E%3D+97&contains=98", [98]),
    ):
        found = (await site.get(f"{PATH}?{query}")).json
        assert ([each["offset"] for each in found["records"]], found["scanned"]) == (expected, 100), query


@run_by(run, "tmp_path")
async def test_search_ends_after_its_time_and_goes_on_where_it_was(
    site: HttpBroker, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(site)
    monkeypatch.setattr("tiered_api.http.partitions.records.SEARCH_MS", -1)
    offset, steps, found = 0, 0, list[int]()
    while offset < 100:
        page = (await site.get(f"{PATH}?contains=k77&max_bytes=1&offset={offset}")).json
        found += [each["offset"] for each in page["records"]]
        assert page["next_offset"] > offset
        offset, steps = page["next_offset"], steps + 1
    assert (found, steps) == ([77], 10)


@run_by(run, "tmp_path")
async def test_read_from_the_end_has_the_last_records_first(site: HttpBroker) -> None:
    await fill(site)
    found = (await site.get(f"{PATH}?before=latest&limit=3")).json
    assert ([each["offset"] for each in found["records"]], found["next_before"]) == ([99, 98, 97], 97)
    assert found["records"][0] == (await site.get(f"{PATH}?offset=99")).json["records"][0]
    assert "next_offset" not in found and found["log_start_offset"] == 0
    before, offsets, scanned = "1000", list[int](), 0
    while before != "0":
        found = (await site.get(f"{PATH}?contains=k2&limit=2&max_bytes=1&before={before}")).json
        assert int(before) > found["next_before"]
        before, scanned = str(found["next_before"]), scanned + found["scanned"]
        offsets += [each["offset"] for each in found["records"]]
    assert (offsets, scanned) == ([*range(29, 19, -1), 2], 100)
    none = (await site.get(f"{PATH}?contains=absent&before=latest&max_bytes=1")).json
    assert (none["records"], none["next_before"], none["scanned"]) == ([], 0, 100), "it reads on by itself"
    assert (await site.get(f"{PATH}?before=0")).json["records"] == []


@run_by(run, "tmp_path", limits=HttpLimits(body_seconds=5))
async def test_search_from_the_end_holds_the_memory_of_one_read(
    site: HttpBroker, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(site)
    monkeypatch.setattr("tiered_api.http.partitions.records.decode_memory", lambda _: 100 << 20)
    monkeypatch.setattr("tiered_api.http.partitions.records.SEARCH_MS", 60_000)
    found = await site.get(f"{PATH}?contains=absent&before=latest&max_bytes=1")
    assert (found.status, found.json["scanned"]) == (200, 100), "ten reads of 100 MiB do not fit together"


@run_by(run, "tmp_path")
async def test_search_from_the_end_goes_on_where_its_time_was_over(
    site: HttpBroker, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(site)
    monkeypatch.setattr("tiered_api.http.partitions.records.SEARCH_MS", -1)
    before, steps, found = 100, 0, list[int]()
    while before > 0:
        page = (await site.get(f"{PATH}?contains=k7&limit=1&max_bytes=1&before={before}")).json
        found += [each["offset"] for each in page["records"]]
        assert page["next_before"] < before
        before, steps = page["next_before"], steps + 1
    assert found == [*range(79, 69, -1), 7] and steps > 11


@run_by(run, "tmp_path")
async def test_bad_searches_are_refused(site: HttpBroker) -> None:
    await fill(site)
    for query in ("contains=", f"contains={257 * 'x'}", "contains=k&limit=0", "contains=k&limit=x", "key=", "json=x"):
        assert (await site.get(f"{PATH}?{query}")).status == 400, query
    for query in ("before=x", "before=-1", "before=", "before=5&offset=1", "before=5&timestamp=1", "before=5&limit=0"):
        assert (await site.get(f"{PATH}?{query}")).status == 400, query
    for kind in (RAW, V2_JSON, EVENTS):
        refused = await site.get(f"{PATH}?before=latest", kind)
        assert refused.status == 400 and "before is for reads of application/json" in refused.json["message"], kind
    for kind in (RAW, V2_JSON):
        for query in ("contains=k", "key=k", "header=h", "json=.a"):
            refused = await site.get(f"{PATH}?{query}", kind)
            assert refused.status == 400 and "application/json and text/event-stream" in refused.json["message"], kind


@run_by(run, "tmp_path")
async def test_v2_shows_the_same_records_as_base64_and_as_json(site: HttpBroker) -> None:
    await fill(site)
    listed = await site.get(f"{PATH}?offset=98", V2_JSON)
    assert listed.status == 422 and listed.json["error_code"] == 42203
    binary = await site.get(f"{PATH}?offset=99", V2_BINARY)
    assert binary.headers["Content-Type"] == V2_BINARY
    assert binary.json == [{"topic": "t", "key": "azk5", "value": "eyJuIjo5OX0=", "partition": 0, "offset": 99}]
    await site.produce("t", '{"a":1}', "[2]")
    as_json = (await site.get(f"{PATH}?offset=100", V2_JSON)).json
    assert [(record["key"], record["value"]) for record in as_json] == [(None, {"a": 1}), (None, [2])]


@run_by(run, "tmp_path")
async def test_raw_reads_give_the_stored_batches_byte_for_byte(site: HttpBroker) -> None:
    await fill(site)
    whole = await site.get(f"{PATH}?offset=0&max_bytes=10000000", RAW)
    assert (whole.status, whole.headers["Content-Type"]) == (200, RAW)
    assert whole.headers["Tiered-High-Watermark"] == "100"
    at, offsets = 0, []
    while at < len(whole.body):
        offsets += [record.offset for record in decode_records(whole.body, at)]
        at += decode_header(whole.body, at).size
    assert offsets == list(range(100))
    middle = await site.get(f"{PATH}?offset=55&max_bytes=10000000", RAW)
    assert decode_header(middle.body).base_offset == 50 and whole.body.endswith(middle.body)
    one = await site.get(f"{PATH}?offset=55&max_bytes=1", RAW)
    assert one.body == middle.body[: decode_header(middle.body).size]
    end = await site.get(f"{PATH}?offset=100", RAW)
    assert (end.status, end.body) == (200, b"")
    only_head = await site.ask("HEAD", f"{PATH}?offset=0&max_bytes=10000000", accept=RAW)
    assert (only_head.body, only_head.headers["Content-Length"]) == (b"", str(len(whole.body)))


@run_by(run, "tmp_path")
async def test_large_raw_read_arrives_whole_at_a_slow_client(site: HttpBroker) -> None:
    await site.create("t", 1, **KEEP)
    big = encode_batch([(NOW, None, bytes([n % 251]) * 900_000, ()) for n in range(1)])
    for _ in range(12):
        await site.ask("POST", PATH, big, kind=RAW)
    host, port = site.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
    writer.write(f"GET {PATH}?max_bytes=50000000 HTTP/1.1\r\nHost: localhost\r\nAccept: {RAW}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    assert length == 12 * len(big)
    body = b""
    while len(body) < length:
        body += await reader.read(200_000)
        await asyncio.sleep(0)
    assert body.count(big[61:]) == 12
    writer.close()


@run_by(run, "tmp_path")
async def test_long_poll_ends_with_the_next_record_or_at_its_deadline(site: HttpBroker) -> None:
    await fill(site)
    clock = asyncio.get_running_loop().time
    for accept, produced in (("", "one"), (RAW, "two"), (V2_BINARY, "three")):
        end = site.broker.leader_replica("t", 0).high_watermark
        waiting = asyncio.create_task(site.get(f"{PATH}?offset={end}&timeout=20000", accept))
        await wait_until(lambda: len(site.broker.leader_replica("t", 0).reads._parked) == 1)
        await site.produce("t", produced)
        assert len((await waiting).body) > 60
    begun = clock()
    late = await site.get(f"{PATH}?offset=103&timeout=50")
    assert late.json["records"] == [] and clock() - begun >= 0.05


@run_by(run_alone)
async def test_stopping_broker_replies_to_waiting_reads(*, tmp_path: Path) -> None:
    async with asyncio.timeout(120), aiohttp.ClientSession() as session:
        async with http_broker(tmp_path) as running:
            await running.create("t")
            request = session.get(f"{running.url}{PATH}?offset=0&timeout=30000")
            waiting = asyncio.create_task(request.__aenter__())
            await wait_until(lambda: len(running.broker.leader_replica("t", 0).reads._parked) == 1)
        assert (await (await waiting).json())["records"] == []


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("offset=101", 416, 41601),
        ("offset=9223372036854775807", 416, 41601),
        ("offset=-1", 400, 400),
        ("offset=one", 400, 400),
        ("offset=1&offset=2", 400, 400),
        ("offset=1&timestamp=2", 400, 400),
        ("timestamp=2024-01-01T00:00:00Z", 400, 400),
        ("max_bytes=0", 400, 400),
        ("timeout=x", 400, 400),
        ("format=xml", 400, 400),
        ("offset=%00", 400, 400),
    ],
)
@run_by(run, "tmp_path")
async def test_invalid_read_is_refused(site: HttpBroker, *, query: str, status: int, code: int) -> None:
    await fill(site)
    answer = await site.get(f"{PATH}?{query}")
    assert (answer.status, answer.json["error_code"]) == (status, code), answer
    assert "-9223372036854775808" not in answer.json["message"]


@run_by(run, "tmp_path")
async def test_missing_partition_or_media_type_is_an_error(site: HttpBroker) -> None:
    await site.create("t")
    for path, code in (
        ("/topics/no/partitions/0/records", 40401),
        ("/topics/t/partitions/1/records", 40402),
        ("/topics/t/partitions/x/records", 404),
        ("/topics/..%2f..%2fetc/partitions/0/records", 40401),
    ):
        answer = await site.get(path)
        assert (answer.status, answer.json["error_code"]) == (404, code)
    assert (await site.get(PATH, "image/png")).status == 406


async def events(response: Any, count: int) -> list[dict[str, Any]]:
    """Returns the next `count` events, each with its id."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        lines = (await response.content.readuntil(b"\n\n")).decode().splitlines()
        if lines[0].startswith("id: "):
            found.append({"id": int(lines[0][4:]), **json.loads(lines[1].removeprefix("data: "))})
    return found


@run_by(run, "tmp_path")
async def test_events_follow_the_log_and_resume_after_the_last_one_seen(site: HttpBroker) -> None:
    await fill(site)
    headers = {"Accept": EVENTS}
    async with site.session.get(f"{site.url}{PATH}?offset=95", headers=headers) as response:
        assert response.headers["Content-Type"] == EVENTS
        seen = await events(response, 5)
        assert [(event["id"], event["offset"]) for event in seen] == [(n, n) for n in range(95, 100)]
        await site.produce("t", "new")
        assert (await events(response, 1))[0]["value"] == "new"
    async with site.session.get(f"{site.url}{PATH}", headers={**headers, "Last-Event-ID": "98"}) as response:
        assert [event["id"] for event in await events(response, 2)] == [99, 100]
    for last in ("x", "-1", "1" * 30):
        assert (await site.ask("GET", PATH, accept=EVENTS, Last_Event_ID=last)).status == 400
    assert (await site.get(f"{PATH}?offset=500", EVENTS)).status == 416
    assert (await site.ask("HEAD", PATH, accept=EVENTS)).headers["Content-Type"] == EVENTS


@pytest.mark.parametrize("accept", ["application/json", V2_BINARY, EVENTS])
@run_by(run, "tmp_path")
async def test_record_beyond_the_bounds_of_json_is_told_with_the_ways_on(site: HttpBroker, *, accept: str) -> None:
    """A record of an intact log with more headers than JSON reads show: no form calls it corrupt."""
    await site.create("t", 1, **KEEP)
    rows = [(NOW, None, b"a", ()), (NOW, None, b"b", (("h", b"x"),) * OBJECTS_MAX), (NOW, None, b"c", ())]
    assert (await site.ask("POST", PATH, encode_batch(rows, codec=Codec.ZSTD), kind=RAW)).status == 200
    told = await site.get(f"{PATH}?offset=1", accept)
    assert (told.status, told.json["error_code"]) == (422, 42203)
    assert told.json["message"] == (
        "the record of t partition 0 at offset 1 cannot be shown as JSON (record 1 with 100000 headers exceeds the "
        "bound of 100000 records and headers): read it with Accept: application/octet-stream or a Kafka client, or "
        "go on at position 2"
    )
    raw = await site.get(f"{PATH}?offset=1", RAW)
    assert [record.value for record in decode_records(raw.body)] == [b"a", b"b", b"c"]
    assert (await site.get(f"{PATH}?offset=2")).json["records"][0]["value"] == "c"


@run_by(run, "tmp_path")
async def test_event_stream_ends_with_the_record_that_it_cannot_show(site: HttpBroker) -> None:
    await site.create("t", 1, **KEEP)
    rows = [(NOW, None, b"a", ()), (NOW, None, b"b", (("h", b"x"),) * OBJECTS_MAX)]
    assert (await site.ask("POST", PATH, encode_batch(rows, codec=Codec.ZSTD), kind=RAW)).status == 200
    async with site.session.get(f"{site.url}{PATH}", headers={"Accept": EVENTS}) as response:
        text = (await response.read()).decode()
    assert text.startswith("id: 0\n") and text.count("data: ") == 2
    told = json.loads(text.rpartition("event: error\ndata: ")[2])
    assert told["error_code"] == 42203 and "at offset 1 cannot be shown" in told["message"]


@run_by(run, "tmp_path")
async def test_raw_batches_are_validated_before_the_append(site: HttpBroker) -> None:
    await fill(site)
    good = batch(0, 3)

    def corrupt(at: int, byte: int) -> bytes:
        data = bytearray(good)
        data[at] = byte
        return bytes(data)

    wrong = {
        "crc": corrupt(-1, 0x77),
        "magic": corrupt(16, 1),
        "length": corrupt(11, 0),
        "truncated": good[:-5],
        "trailing": good + b"x",
        "empty": b"",
        "garbage": b"\xff" * 300,
        "control": encode_batch([(NOW, b"\0\0\0\0", b"", ())], control=True),
        "transactional": encode_batch([(NOW, b"k", b"v", ())], transactional=True, producer_id=1),
        "large": encode_batch([(NOW, None, b"x" * 2_000_000, ())]),
        "bomb": encode_batch([(NOW, None, b"\0" * (80 << 20), ())], codec=Codec.ZSTD),
    }
    for name, data in wrong.items():
        answer = await site.ask("POST", PATH, data, kind=RAW)
        expected = (413, 413) if name in ("large", "bomb") else (400, 40002)
        assert (answer.status, answer.json["error_code"]) == expected, (name, answer)
    assert (await site.ask("POST", PATH, good, kind="application/json")).status == 415
    assert site.broker.leader_replica("t", 0).high_watermark == 100


@run_by(run, "tmp_path")
async def test_idempotent_retry_gets_the_first_offset(site: HttpBroker) -> None:
    await site.create("t", 1, **KEEP)
    await site.produce("t", "before")
    data = encode_batch([(NOW, None, b"v", ())], producer_id=5, producer_epoch=0, base_sequence=0)
    first = (await site.ask("POST", PATH, data, kind=RAW)).json
    again = (await site.ask("POST", PATH, data, kind=RAW)).json
    assert (first["base_offset"], first["duplicate"]) == (1, False)
    assert (again["base_offset"], again["duplicate"]) == (1, True)
    assert site.broker.leader_replica("t", 0).high_watermark == 2


@run_by(run, "tmp_path")
async def test_hot_and_cold_reads_return_the_same_bytes(site: HttpBroker) -> None:
    await site.create("t", 1, internal_segment_bytes="1024", local_retention_bytes="1", **KEEP)
    expected = b""
    for first in range(0, 60, 10):
        await site.ask("POST", PATH, batch(first, 10), kind=RAW)
    replica = site.broker.leader_replica("t", 0)
    expected = (await site.get(f"{PATH}?max_bytes=10000000", RAW)).body
    hot = [(await site.get(f"{PATH}?offset={n}&max_bytes=1", RAW)).body for n in range(60)]
    await wait_until(lambda: replica.local_start_offset > 0)
    cold = [(await site.get(f"{PATH}?offset={n}&max_bytes=1", RAW)).body for n in range(60)]
    assert expected and cold == hot
    state = (await site.get("/tiered/v1/topics/t/partitions/0")).json
    assert state["local_start_offset"] > 0 and state["cold_end_offset"] >= state["local_start_offset"]
    assert state["high_watermark"] == 60 and state["cold_segments"] > 0 and state["leader"] == 1


@run_by(run, "tmp_path")
async def test_refused_read_keeps_no_data_until_the_next_collection(site: HttpBroker) -> None:
    """Errors and the frames of their traceback refer to each other: 50 MB a request, until objects are collected."""
    await site.create("t", max_message_bytes="2000000")
    value = b"[" + b"[]," * 400_000 + b"[]]"
    replica = site.broker.leader_replica("t", 0)
    await replica.append(bytearray(encode_batch([(0, None, value, ())])))
    gc.collect()
    gc.disable()
    try:
        reply = await site.get("/topics/t/partitions/0/records?offset=0", "application/vnd.kafka.json.v2+json")
        assert reply.json["error_code"] == 42203
        frames = [each.f_code.co_name for each in gc.get_objects() if isinstance(each, types.FrameType)]
        assert "rows_v2" not in frames and "_read_json" not in frames
    finally:
        gc.enable()
