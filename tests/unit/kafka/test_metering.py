"""Tests of the throttle time in encoded replies, and of the time that a task of a request takes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.hot.fixtures import FixedClock
from tests.unit.kafka.values import Drawn
from tiered.access.client_quotas import NO_LIMITS, ClientQuotas
from tiered.config.settings import Settings
from tiered.metadata.changes import ClientQuotaSet
from tiered.metadata.image import Image
from tiered.metrics import Metrics
from tiered.quotas.precedence import Limit
from tiered.quotas.timed_steps import TimedSteps
from tiered.security.principal import ANONYMOUS, Caller
from tiered.system.clock import SystemClock
from tiered_api.kafka.protocol.apis import APIS, Api
from tiered_api.kafka.protocol.codec import decode, encode
from tiered_api.kafka.protocol.headers import decode_response_header, encode_response_header
from tiered_api.kafka.server.metering import (
    CLIENT_ID_BYTES,
    Charge,
    Meter,
    Metering,
    read_throttle_ms,
    with_throttle_ms,
)
from tiered_api.kafka.server.produce import frames
from tiered_api.kafka.server.produce.frames import ProduceResult, ResponseTemplate

UNTOLD = {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
"""Replies without a throttle time at a fixed place. Their clients are muted all the same."""
CASES = [
    (api, version) for api in APIS.values() for version in api.served_versions if api.name not in UNTOLD | {"Produce"}
]


def frame(api: Api, version: int, message: Any) -> bytes:
    """Returns a whole reply."""
    body = encode_response_header(api.key, version, 7) + encode(message, version)
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(("api", "version"), CASES, ids=lambda each: getattr(each, "name", each))
def test_reply_gets_its_throttle_time_and_nothing_else_changes(api: Api, version: int) -> None:
    message = Drawn(version, gentle=True).message(api.response_type, version)
    if not hasattr(message, "throttle_time_ms"):
        return
    message.throttle_time_ms = 3
    encoded = frame(api, version, message)
    has_place = read_throttle_ms(api.key, version, [encoded]) == 3
    changed: Any
    (changed,) = with_throttle_ms(api.key, version, [encoded], 1234)
    _, position = decode_response_header(api, version, memoryview(changed)[4:])
    found: Any = decode(api.response_type, version, bytes(memoryview(changed)[4:]), position)
    message.throttle_time_ms = 1234 if has_place else found.throttle_time_ms
    assert found == message
    assert has_place or version < 3, "only old versions have no throttle time"


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_reply_gets_its_throttle_time(version: int) -> None:
    api, echo = APIS[0], b"\0\1t" if version < 9 else (b"\2t" if version < 13 else bytes(16))
    template = ResponseTemplate(version, echo, 5).fill(7, 11, -1, 0)
    failed = frames.encode_response(version, 7, [(echo, [ProduceResult(5, 3)])])
    changed: Any
    for encoded in (template, failed):
        (changed,) = with_throttle_ms(0, version, [encoded], 1234)
        _, position = decode_response_header(api, version, memoryview(changed)[4:])
        found: Any = decode(api.response_type, version, bytes(memoryview(changed)[4:]), position)
        assert (found.throttle_time_ms, found.responses[0].partition_responses[0].index) == (1234, 5)
        _, before = decode_response_header(api, version, memoryview(encoded)[4:])
        assert decode(api.response_type, version, encoded[4:], before) == _without_pause(found)


def test_produce_reply_with_tagged_fields_stays_as_it_is() -> None:
    encoded = frames.encode_response(12, 7, [(b"\2t", [ProduceResult(5, 6)])], b"\1\0\2\1\0")
    assert with_throttle_ms(0, 12, [encoded], 1234) == [encoded]


def _without_pause(message: Any) -> Any:
    message.throttle_time_ms = 0
    return message


class SpentTime:
    """A charge that only keeps the time."""

    spent_ns = 0

    def spend(self, spent_ns: int) -> None:
        self.spent_ns += spent_ns

    def settle(self, parts: Any) -> Any:
        """Charges nothing."""
        return parts


def test_time_of_a_task_is_that_of_its_steps() -> None:
    """A clock that moves only where the work says so: the wait between two steps does not count."""
    now = 0
    spent = SpentTime()

    def pass_time(ns: int) -> None:
        nonlocal now
        now += ns

    async def work() -> str:
        pass_time(5)
        await asyncio.sleep(0)
        pass_time(7)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0)
        except TimeoutError:
            pass_time(11)
        return "done"

    async def scenario() -> str:
        asyncio.get_running_loop().call_soon(pass_time, 1000)
        return await TimedSteps(work(), spent, lambda: now)  # type: ignore[no-any-return]

    assert asyncio.run(scenario()) == "done"
    assert spent.spent_ns == 5 + 7 + 11


def test_cancelled_task_ends_its_work() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def wait() -> None:
        await TimedSteps(work(), SpentTime(), lambda: 0)

    async def scenario() -> None:
        task = asyncio.get_running_loop().create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert ended == ["cancelled"]


class HandClock(SystemClock):
    """A clock that a test moves."""

    now_ns = 10**12

    def mono_ns(self) -> int:
        return self.now_ns


def test_time_of_sending_a_reply_counts_for_the_next_request() -> None:
    clock = HandClock()
    quotas = ClientQuotas(Settings(), clock, Metrics())
    limit = Limit(10.0, "alice", "", "request_percentage")
    connection: Any = SimpleNamespace(is_broker=False, is_acting=False)
    charge = Charge(quotas, connection, NO_LIMITS._replace(requests=limit), 44, 1, 100)

    def send() -> None:
        clock.now_ns += 3 * 10**9

    charge.charge_sending(send)
    assert quotas.find_pause(limit) > 0
    assert quotas.find_pause(limit._replace(user="bob")) == 0


ENOUGH = 100_000
"""Bytes after which a client would have been muted."""


class OneConnection:
    """A connection of one client without a login, whose requests are replied to at once."""

    def __init__(self) -> None:
        self.caller = Caller(ANONYMOUS, "127.0.0.1")
        self.meter: Meter | None = None
        self.closed = self.is_broker = self.is_acting = False
        self.pending = 0
        self.muted: list[float] = []

    def mute(self, seconds: float) -> None:
        self.muted.append(seconds)

    def hold_request(self, frame: memoryview, seconds: float) -> None:
        self.muted.append(seconds)


class OneClient:
    """A client that produces without a pause, at one moment."""

    def __init__(self, bytes_per_second: float) -> None:
        clock = FixedClock()
        self.quotas = ClientQuotas(Settings(), clock, Metrics())
        self.set_quota(bytes_per_second)
        self.connection: Any = OneConnection()
        context: Any = SimpleNamespace(broker=SimpleNamespace(client_quotas=self.quotas), clock=clock)
        self.metering = Metering(context, lambda *request: [ResponseTemplate(9, b"\2t", 0).fill(7, 11, -1, 0)])

    def set_quota(self, bytes_per_second: float) -> None:
        quota = ClientQuotaSet((("client-id", None),), "producer_byte_rate", bytes_per_second)
        self.quotas.apply_image(Image().apply([quota]))

    def produce(self, client_id: bytes) -> None:
        """Writes one request."""
        frame = memoryview(bytes(10) + client_id + bytes(100))
        self.metering.handle_request(self.connection, frame, 0, 9, 7, 10 + len(client_id))

    def produce_until_muted(self, size: int) -> int:
        """Returns the bytes of all requests until the broker reads no more."""
        self.connection.muted.clear()
        frame, sent = bytearray(size - 4), 0
        while not self.connection.muted and sent < ENOUGH:
            self.metering.handle_request(self.connection, memoryview(frame), 0, 9, 7, 14)
            sent += size
        return sent


def test_every_byte_of_small_produces_counts() -> None:
    """The first ones are counted ahead."""

    async def write() -> int:
        return OneClient(1_000).produce_until_muted(40)

    assert asyncio.run(write()) == 10_040, "ten seconds at once, and the request that is too much"


def test_bytes_counted_ahead_end_with_their_quota() -> None:
    async def write() -> int:
        client = OneClient(1e9)
        frame = memoryview(bytearray(1_000 - 4))
        for _ in range(10):
            client.metering.handle_request(client.connection, frame, 0, 9, 7, 14)
        client.set_quota(1_000)
        return client.produce_until_muted(100)

    assert asyncio.run(write()) <= 200, "ten thousand bytes are used already"


def test_bytes_counted_ahead_are_those_of_the_client_id_of_the_request() -> None:
    """A connection keeps nothing of a client id that is too long, and its own meter is that of an earlier one."""

    async def write() -> tuple[object, object]:
        client = OneClient(1e9)
        client.produce(b"short")
        before = client.connection.meter.produced
        client.produce(b"x" * (CLIENT_ID_BYTES + 1))
        return before, client.connection.meter.produced

    before, after = asyncio.run(write())
    assert before is after and before is not None
