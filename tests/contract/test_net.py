"""Contract of Net and Stream, on sockets and on the simulated network, each also with TLS."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.certificates import sign
from tests.scenario import run_by
from tests.sim.harness.disk import SimDisk
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.network import SimNetwork
from tiered.errors import Unavailable
from tiered.ports import Disk, FileSlice, Net, Stream
from tiered.system.local_disk import LocalDisk
from tiered.system.network import SocketNet
from tiered.system.tls import TlsNet

HOST = "127.0.0.1"


class Case(NamedTuple):
    net: Net
    disk: Disk
    run: Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["sockets", "simulated", "sockets with TLS", "simulated with TLS"])
def case(request: pytest.FixtureRequest, tmp_path: Path, authority: str) -> Case:
    has_tls = request.param.endswith("TLS")
    if request.param.startswith("sockets"):
        net: Net = SocketNet()
        return Case(encrypt(net, authority) if has_tls else net, LocalDisk(str(tmp_path)), asyncio.run)
    loop = SimLoop(1)
    net = SimNetwork(loop, random.Random(1)).host("a")
    return Case(encrypt(net, authority) if has_tls else net, SimDisk(random.Random(1)), loop.run)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the path of a file with a key, and a certificate that signs itself."""
    return sign("CN=127.0.0.1").write(tmp_path_factory.mktemp("certificates") / "both.pem")


def encrypt(net: Net, authority: str) -> TlsNet:
    """Returns a Net with TLS over another one."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority)
    client = ssl.create_default_context(cafile=authority)
    client.check_hostname = False
    return TlsNet(
        net,
        lambda received, unsent: server.wrap_bio(received, unsent, server_side=True),
        lambda host: lambda received, unsent: client.wrap_bio(received, unsent),
    )


async def ready(register: Callable[[Callable[[], None] | None], None]) -> None:
    """Waits for one readiness call."""
    event = asyncio.Event()
    register(event.set)
    async with asyncio.timeout(120):
        await event.wait()
    register(None)


async def receive(stream: Stream, size: int) -> bytes:
    """Returns exactly `size` bytes, or fewer at the end of the stream."""
    data = bytearray()
    buffer = memoryview(bytearray(64 * 1024))
    while len(data) < size:
        got = stream.recv_into(buffer[: size - len(data)])
        if got is None:
            await ready(stream.on_readable)
        elif got == 0:
            break
        else:
            data += buffer[:got]
    return bytes(data)


async def send(stream: Stream, data: bytes) -> None:
    view = memoryview(data)
    while view:
        sent = stream.sendmsg([view[:100], view[100:]])
        if sent is None:
            await ready(stream.on_writable)
        else:
            view = view[sent:]


Body = Callable[[Stream, Stream], Awaitable[None]]


def with_pair(case: Case, body: Body) -> None:
    """Runs `body` with both ends of a connection."""

    async def main() -> None:
        arrived: asyncio.Queue[Stream] = asyncio.Queue(10)
        listener = await case.net.listen(HOST, 0, arrived.put_nowait)
        near = await case.net.connect(HOST, listener.port, 5)
        async with asyncio.timeout(120):
            far = await arrived.get()
        try:
            await body(near, far)
        finally:
            near.close()
            far.close()
            listener.close()

    case.run(main())


@run_by(with_pair, "case")
async def test_bytes_arrive_in_order_both_ways(near: Stream, far: Stream) -> None:
    await send(near, b"question")
    assert await receive(far, 8) == b"question"
    await send(far, b"answer")
    assert await receive(near, 6) == b"answer"


@run_by(with_pair, "case")
async def test_bytes_sent_with_more_to_come_arrive_anyway(near: Stream, far: Stream) -> None:
    assert near.sendmsg([b"he", b"ad"], more=True) == 4
    assert near.sendmsg([b"body"]) == 4
    assert await receive(far, 8) == b"headbody"
    assert near.sendmsg([b"alone"], more=True) == 5
    assert await receive(far, 5) == b"alone"


@run_by(with_pair, "case")
async def test_read_without_bytes_is_none_and_at_the_end_zero(near: Stream, far: Stream) -> None:
    assert far.recv_into(memoryview(bytearray(10))) is None
    await send(near, b"x")
    near.close()
    assert await receive(far, 10) == b"x"
    assert far.recv_into(memoryview(bytearray(10))) == 0


@run_by(with_pair, "case")
async def test_end_is_noticed_before_the_bytes_are_read(near: Stream, far: Stream) -> None:
    await send(near, b"x")
    assert not far.has_ended()
    near.close()
    async with asyncio.timeout(60):
        while not far.has_ended():
            await asyncio.sleep(0.001)
    assert await receive(far, 10) == b"x"
    assert far.has_ended()


@run_by(with_pair, "case")
async def test_writer_that_outruns_its_reader_waits(near: Stream, far: Stream) -> None:
    data = bytes(range(256)) * 40_000
    sent, would_block = 0, False
    while not would_block:
        step = near.sendmsg([memoryview(data)[sent:]])
        would_block = step is None
        sent += step or 0
    assert 0 < sent < len(data)
    received, _ = await asyncio.gather(receive(far, len(data)), send(near, data[sent:]))
    assert received == data


@run_by(with_pair, "case")
async def test_file_is_sent_in_bounded_slices(near: Stream, far: Stream, *, case: Case) -> None:
    data = random.Random(3).randbytes(3_000_000)
    file = case.disk.open("f", create=True)
    file.append([data])

    async def send_all() -> None:
        at, end = 1000, 2_500_000
        while at < end:
            sent = near.send_file(FileSlice(file, at, end - at))
            if sent is None:
                await ready(near.on_writable)
            else:
                assert 0 < sent <= 1 << 20
                at += sent

    received, _ = await asyncio.gather(receive(far, 2_499_000), send_all())
    assert received == data[1000:2_500_000]


@run_by(with_pair, "case")
async def test_readiness_repeats_until_all_is_read(near: Stream, far: Stream) -> None:
    read = bytearray()
    done = asyncio.Event()

    def on_readable() -> None:
        buffer = memoryview(bytearray(3))
        got = far.recv_into(buffer)
        read.extend(buffer[: got or 0])
        if len(read) == 20:
            done.set()

    far.on_readable(on_readable)
    await send(near, b"x" * 20)
    async with asyncio.timeout(120):
        await done.wait()
    far.on_readable(None)


def test_connection_without_a_listener_is_refused(case: Case) -> None:
    async def main() -> None:
        listener = await case.net.listen(HOST, 0, lambda stream: None)
        listener.close()
        with pytest.raises(Unavailable, match="cannot connect") as caught:
            await case.net.connect(HOST, listener.port, 5)
        assert caught.value.refused

    case.run(main())


def test_connection_that_times_out_is_not_refused(case: Case) -> None:
    async def main() -> None:
        listener = await case.net.listen(HOST, 0, lambda stream: None)
        with pytest.raises(Unavailable, match="timeout") as caught:
            await case.net.connect(HOST, listener.port, 0)
        assert not caught.value.refused
        assert "handshake" not in str(caught.value), "it ends before any handshake begins"
        listener.close()

    case.run(main())


def test_one_port_has_one_listener(case: Case) -> None:
    async def main() -> None:
        listener = await case.net.listen(HOST, 0, lambda stream: None)
        assert listener.port > 0
        with pytest.raises(Unavailable, match="cannot listen") as caught:
            await case.net.listen(HOST, listener.port, lambda stream: None)
        assert not caught.value.final, "whoever has it may go"
        listener.close()

    case.run(main())


@run_by(with_pair, "case")
async def test_closed_stream_may_be_closed_again_and_unregistered(near: Stream, far: Stream) -> None:
    near.close()
    near.close()
    near.on_readable(None)
    near.on_writable(None)
    with pytest.raises(Unavailable):
        near.sendmsg([b"x"])


@run_by(with_pair, "case")
async def test_bytes_for_a_dead_peer_end_in_a_reset(near: Stream, far: Stream) -> None:
    far.close()
    with pytest.raises(Unavailable) as caught:
        async with asyncio.timeout(120):
            while True:
                if near.sendmsg([b"x" * 1000]) is None:
                    await ready(near.on_writable)
                await asyncio.sleep(0.001)
    assert caught.value.final
