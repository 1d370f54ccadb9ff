"""Fuzzing of HTTP input as handlers read it: targets, headers, compressed bodies, JSON records and requests in
bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import orjson

from tiered.config.settings import Settings
from tiered_api.http.consumers.topic_patterns import TopicPattern
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.decompress import WholeBody, new_inflater
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.json_entries import JsonEntries, load_with_entries
from tiered_api.http.exchange.request import parse_query
from tiered_api.http.partitions import records
from tiered_api.http.partitions.record_formats import parse_record_v3
from tiered_api.http.server.allowed_hosts import AllowedHosts
from tiered_api.http.server.routes import table
from tiered_api.http.v2 import consumers
from tiered_api.http.v2.produce import parse_records
from tiered_api.http.v3 import configs, produce, topics
from tiered_api.http.v3.streaming import JsonSplitter, parse_whole

NOW = 1_700_000_000_000
ROOM = 1 << 20
"""Bytes that a body may become."""
ROUTES = table()
HOSTS = AllowedHosts(Settings(), "here.example")


def check(kind: str, data: bytes) -> None:
    """Gives an input to its reader. Every refusal is an HttpError of the client with a text that can be sent."""
    READERS[kind](data)


def call_or_none(call: Callable[[], Any]) -> Any:
    """Returns the result of a call; None if it refuses."""
    try:
        return call()
    except HttpError as error:
        assert 400 <= error.status < 500, error
        orjson.dumps({"error_code": error.error_code, "message": error.message})
        return None


def check_target(data: bytes) -> None:
    """Checks the path and query of a request line, decoded as aiohttp does."""
    text = data.decode("utf-8", "surrogateescape")
    for method in ("GET", "POST", "DELETE"):
        found = call_or_none(lambda method=method: ROUTES.match(method, text))  # type: ignore[misc]
        assert found is None or all(isinstance(each, str) for each in found[1].values())
    call_or_none(lambda: parse_query(text.partition("?")[2]))


def check_header(data: bytes) -> None:
    """Checks values of headers that our code parses."""
    text = data.decode("utf-8", "surrogateescape")
    call_or_none(lambda: media_types.body_type(text, (media_types.JSON, media_types.V2)))
    call_or_none(lambda: media_types.negotiate_type(text, (media_types.JSON, media_types.EVENTS, media_types.BINARY)))
    for name in ("Host", "Origin", "Sec-Fetch-Site"):
        call_or_none(lambda name=name: HOSTS.check({"Host": "127.0.0.1", name: text}, (1, 1)))  # type: ignore[misc]


def parse_json(data: bytes) -> Any:
    """Returns the JSON value as handlers get it; None if the bytes are no JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def parse_object(data: bytes) -> Mapping[str, Any]:
    """Returns a JSON object; an empty one for any other value."""
    found = parse_json(data)
    return found if isinstance(found, dict) else {}


def check_record(data: bytes) -> None:
    """Checks one record of v3, alone and in a batch."""
    produce._is_stream(data)
    call_or_none(lambda: produce._parse_single(data, NOW))
    call_or_none(lambda: parse_whole(data, NOW))
    call_or_none(lambda: parse_record_v3(parse_json(data), NOW))
    body = call_or_none(lambda: load_body(data, "entries"))
    if isinstance(body, dict):
        call_or_none(lambda: produce.parse_entries(body, 100, NOW))


def load_body(data: bytes, listed: str) -> Any:
    """Returns a body with its list in pieces. Without it, and with it, the body is the JSON value that it is whole."""
    try:
        body = load_with_entries(data, listed)
        lists = body[listed] if isinstance(body, dict) and isinstance(body.get(listed), JsonEntries) else None
        entries = None if lists is None else list(lists)
    except orjson.JSONDecodeError:
        assert parse_json(data) is None
        raise HttpError(400, "malformed JSON") from None
    except HttpError as error:
        if "malformed JSON" in error.message:
            assert parse_json(data) is None
        raise
    assert parse_json(data) == (body if entries is None else body | {listed: entries})
    return body


def check_v2_records(data: bytes) -> None:
    """Checks a body of v2 in both forms."""
    for form in ("binary", "json"):
        for partition in (None, 1):
            call_or_none(lambda form=form, partition=partition: parse_records(data, form, NOW, partition))  # type: ignore[misc]


def is_sound(splitter: JsonSplitter) -> bool:
    """True if no fault was found so far."""

    def checked() -> bool:
        splitter.raise_fault()
        return True

    return call_or_none(checked) is True


def feed(splitter: JsonSplitter, piece: bytes) -> list[bytes]:
    """Returns the values that are complete after a piece of bytes."""
    return [text for some in splitter.feed(piece) for text in some]


def check_stream(data: bytes) -> None:
    """Checks that consecutive values are the same however the bytes are split."""
    rng = Random(data)
    whole, pieces = JsonSplitter(ROOM), JsonSplitter(ROOM)
    at, cut = 0, []
    while at < len(data):
        size = rng.choice((1, 2, 7, 100, 5000))
        cut += feed(pieces, data[at : at + size])
        at += size
        if not is_sound(pieces):
            break
    texts = feed(whole, data)
    if not is_sound(whole):
        assert cut == texts[: len(cut)]
        return
    assert cut + pieces.finish() == texts + whole.finish()
    for text in texts:
        call_or_none(lambda text=text: parse_record_v3(parse_json(text), NOW))  # type: ignore[misc]


def check_compressed(encoding: str, data: bytes) -> None:
    """Checks that a body never expands above its limit, also in pieces."""

    def inflate_whole() -> bytes | bytearray:
        body = WholeBody(encoding, data, ROOM)
        if body.is_plain:
            return data
        body.check()
        body.fill()
        return body.take()

    whole = call_or_none(inflate_whole)
    assert whole is None or len(whole) <= ROOM

    def inflate_in_pieces() -> bytes:
        body = new_inflater(encoding)
        assert body is not None
        made = b""
        for piece in (data[start : start + 7] for start in range(0, len(data), 7)):
            at = 0
            while at < len(piece) or body.has_more:
                part, at = body.step(piece, at, ROOM)
                made += part
        body.finish()
        return made

    if whole is not None:
        assert inflate_in_pieces() == whole


def check_requests(data: bytes) -> None:
    """Bodies that ask for something: topics, settings, consumers, positions."""
    body = parse_object(data)
    call_or_none(lambda: topics.parse_creation(dict(body)))
    call_or_none(lambda: consumers.parse_config(body))
    call_or_none(lambda: consumers._parse_subscription(body.get("topics"), body.get("topic_pattern")))
    for entry in body.get("data", ()) if isinstance(body.get("data"), list) else ():
        if isinstance(entry, dict):
            call_or_none(lambda entry=entry: configs._parse_change(entry))  # type: ignore[misc]
    for name in ("offsets", "partitions", "timestamps"):
        for _, row in call_or_none(lambda name=name: consumers._parse_rows(body, name)) or ():  # type: ignore[misc]
            call_or_none(lambda row=row: consumers._offset(row, "offset"))  # type: ignore[misc]
            call_or_none(lambda row=row: consumers._metadata(row))  # type: ignore[misc]
            call_or_none(lambda row=row: consumers._parse_timestamp(row))  # type: ignore[misc]


def check_pattern(data: bytes) -> None:
    """A pattern of topics: refused, or it says of any name what it is."""
    try:
        made = TopicPattern(data.decode("utf-8", "replace"))
    except ValueError:
        return
    for name in ("a", "orders", "orders.eu-1", "x" * 249):
        assert made.matches(name) in (True, False)


READERS: dict[str, Callable[[bytes], Any]] = {
    "target": check_target,
    "header": check_header,
    "record": check_record,
    "old": check_v2_records,
    "stream": check_stream,
    "gzip": lambda data: check_compressed("gzip", data),
    "zstd": lambda data: check_compressed("zstd", data),
    "asked": check_requests,
    "pattern": check_pattern,
    "batches": lambda data: call_or_none(lambda: records.validate_batches(bytearray(data))),
}
