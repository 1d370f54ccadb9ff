"""Tests of JSON bodies that are costly to parse, on every route that takes JSON."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import suppress
from itertools import chain

import pytest

from tests.e2e.http_bodies import ARGUMENTS, JSON, V2, V2_JSON, Body
from tests.hostile.attacks import attack
from tests.hostile.json_shapes import SHAPES, Attack, attacks
from tests.hostile.target import FULL, AttackedBroker, scale
from tiered_api.http.exchange import media_types
from tiered_api.http.server.routes import table
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic

MIB = 1 << 20
BODY_BYTES = 64 * MIB
"""Default of `tiered.http.body.max.bytes`."""
SIZES = (60 * MIB, 15 * MIB, 3 * MIB, 190_000) if FULL else (320_000, 90_000)
"""Sizes of the bodies. The larger ones are refused by one limit or another, the smallest one is parsed. The short form
sends each attack in one size, by turns."""
REFUSAL_BYTES = 4_096
"""Most bytes of a refusal: it repeats no large part of the body."""


def test_every_route_with_a_json_body_is_attacked_in_every_shape() -> None:
    routes = {(each.method, each.path) for each in table().routes if set(each.request_types) - {media_types.BINARY}}
    found = {(each.target.method, each.target.route, each.shape) for each in attacks(100)}
    assert {(method, path, shape) for method, path in routes for shape in SHAPES} <= found
    assert all(len(each.text) > 400 for each in attacks(1_000))


def send(to: AttackedBroker, sent: Attack, cluster_id: str, *, is_compressed: bool) -> tuple[int, bytes]:
    """Returns the status and the body of the response."""
    connection = to.http()
    headers = {"Content-Type": sent.target.kind}
    text = sent.text
    if is_compressed:
        text, headers["Content-Encoding"] = gzip.compress(text, 1), "gzip"
    try:
        connection.request(sent.target.method, sent.target.path(cluster_id), text, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


async def prepare(to: AttackedBroker) -> str:
    """Makes the objects that the bodies name. Returns the id of the cluster."""
    with suppress(AssertionError):  # another attack has made them
        await to.create(CreatableTopic(ARGUMENTS["topic"], 1, 1))
    for name in (ARGUMENTS["instance"], "free"):
        made = to.ask("POST", f"/consumers/{ARGUMENTS['group']}", {"name": name, "format": "json"}, V2)
        assert made[0] in (200, 409), made
    consumer = f"/consumers/{ARGUMENTS['group']}/instances/{ARGUMENTS['instance']}"
    assigned = to.ask("POST", f"{consumer}/assignments", {"partitions": [{"topic": "t", "partition": 0}]}, V2)
    assert assigned[0] == 204, assigned
    return str(to.ask("GET", "/v3/clusters")[1]["data"][0]["cluster_id"])


@pytest.mark.also("tests/unit/http/test_fields.py::test_objects_of_one_piece_exist_at_a_time")
@attack()
async def test_costly_json_delays_nobody_and_takes_three_bodies_of_memory(to: AttackedBroker) -> None:
    """Each request takes up to three bodies. The settings and pieces of the heap that all leave are bounded too."""
    most = scale(80, 3 * BODY_BYTES // MIB)
    cluster_id = await prepare(to)
    async with to.attack("costly JSON bodies", memory=most + scale(40, 64)):
        by_turns = (each[number % 2] for number, each in enumerate(zip(*map(attacks, SIZES), strict=True)))
        for number, each in enumerate(chain.from_iterable(map(attacks, SIZES)) if FULL else by_turns):
            before = to.forget_peak()
            is_compressed = number % (2 if FULL else 4) < (1 if FULL else 2)
            status, told = await asyncio.to_thread(send, to, each, cluster_id, is_compressed=is_compressed)
            assert 200 <= status < 500, (each.target, each.shape, each.place, status, told[:500])
            assert status < 400 or len(told) < REFUSAL_BYTES, (each.target, each.shape, each.place)
            assert to.memory("VmHWM") - before <= most, (each.target, each.shape, each.place)


def valid_bodies(size: int) -> dict[str, tuple[str, str, bytes]]:
    """Returns bodies that are just below each limit, by name: path, media type and text. The first is so large."""
    lists = b'{"value":[%b1]},' % (b"[]," * 49_000)
    headers = b'"headers":[%b]' % b",".join([b'{"name":"h"}'] * 1_000)
    entries = [b'{"id":"%d",%b}' % (n, headers) for n in range(200)]
    rows = [b'{"topic_name":"t",%b}' % headers] * 200
    wide = b'{"value":"%b\xf0\x9f\x98\x80"}' % (b"x" * 4_000_000)
    return {
        "lists": ("/topics/t", V2_JSON, b'{"records":[%b{}]}' % (lists * (size // len(lists)))),
        "short records": (
            "/topics/t",
            V2_JSON,
            b'{"records":[%b{}]}' % (b'{"key":1,"value":1},' * 99_999),
        ),
        "headers of a batch": ("{topic}/records:batch", JSON, b'{"entries":[%b]}' % b",".join(entries)),
        "headers of a transaction": ("/tiered/v1/transactions", JSON, b'{"records":[%b]}' % b",".join(rows)),
        "stream": ("{topic}/records", JSON, b"{}" * scale(20_000, 2_000_000)),
        "wide texts": ("/topics/t", V2_JSON, b'{"records":[%b]}' % b",".join([wide] * 3)),
    }


@attack()
async def test_bodies_just_below_the_limits_delay_nobody(to: AttackedBroker) -> None:
    cluster_id = await prepare(to)
    topic = f"/v3/clusters/{cluster_id}/topics/t"
    async with to.attack("JSON bodies at the limits", memory=scale(250, 600)):
        for name, (path, kind, text) in valid_bodies(scale(3, 60) * MIB).items():
            sent = Attack(Body("POST", path.format(topic=topic), {}, 0, kind), name, (), text)
            calls = [
                asyncio.to_thread(send, to, sent, cluster_id, is_compressed=n % 2 == 0) for n in range(scale(3, 12))
            ]
            for status, told in await asyncio.gather(*calls):
                assert status in (200, 207, 429, 503), (name, status, told[:500])
