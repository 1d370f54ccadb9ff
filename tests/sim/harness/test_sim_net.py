"""Tests of the simulated network: cuts hold bytes back, resets break connections, seeds repeat."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.sim.harness.loop import SimLoop, process_context
from tests.sim.harness.network import SimNetwork
from tiered.errors import Unavailable
from tiered.ports import Stream


class TwoHosts:
    """Hosts a and b with one connection; arrivals at b are recorded with their time."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = SimLoop(seed)
        self.network = SimNetwork(self.loop, random.Random(seed))
        self.received: list[tuple[float, bytes]] = []
        self.errors: list[str] = []

    async def connect(self) -> Stream:
        await self.network.host("b").listen("0.0.0.0", 9092, self._on_accept)
        return await self.network.host("a").connect("b", 9092, 5)

    def _on_accept(self, stream: Stream) -> None:
        def on_readable() -> None:
            buffer = memoryview(bytearray(100))
            try:
                got = stream.recv_into(buffer)
            except Unavailable as error:
                self.errors.append(str(error))
                stream.on_readable(None)
                return
            if got == 0:
                stream.on_readable(None)
            self.received.append((self.loop.time(), bytes(buffer[: got or 0])))

        stream.on_readable(on_readable)

    def text(self) -> bytes:
        return b"".join(data for _, data in self.received)


def test_bytes_take_the_latency_of_the_link() -> None:
    talk = TwoHosts()
    talk.network.latency_seconds = (0.25, 0.25)

    async def main() -> None:
        stream = await talk.connect()
        assert talk.loop.time() == 0.5
        stream.sendmsg([b"x"])
        await asyncio.sleep(1)

    talk.loop.run(main())
    assert talk.received == [(0.75, b"x")]


def test_one_way_cut_holds_bytes_until_it_heals() -> None:
    talk = TwoHosts()
    talk.network.chunk_bytes_max = 1 << 20

    async def main() -> None:
        stream = await talk.connect()
        stream.on_readable(lambda: None)
        talk.network.cut("a", "b")
        stream.sendmsg([b"held "])
        stream.sendmsg([b"back"])
        await asyncio.sleep(60)
        assert talk.received == []
        talk.network.heal()
        await asyncio.sleep(1)

    talk.loop.run(main())
    assert talk.text() == b"held back"
    assert talk.received[0][0] > 60


def test_one_direction_heals_alone() -> None:
    talk = TwoHosts()

    async def main() -> None:
        stream = await talk.connect()
        talk.network.cut("a", "b")
        talk.network.cut("a", "c")
        stream.sendmsg([b"x"])
        await asyncio.sleep(1)
        talk.network.mend("a", "c")
        assert talk.received == []
        talk.network.mend("a", "b")
        await asyncio.sleep(1)

    talk.loop.run(main())
    assert talk.text() == b"x"


def test_frozen_process_is_silent_and_finds_full_buffers_when_it_resumes() -> None:
    talk = TwoHosts()
    talk.network.chunk_bytes_max = 1 << 20

    async def main() -> None:
        stream = await talk.loop.create_task(talk.connect(), context=process_context("b"))
        stream.sendmsg([b"before "])
        talk.loop.freeze("b")
        await asyncio.sleep(1)
        stream.sendmsg([b"while"])
        await asyncio.sleep(1)
        assert talk.received == []
        talk.loop.resume("b")
        await asyncio.sleep(1)

    talk.loop.run(main())
    assert len(talk.received) == 1 and talk.received[0][0] > 2 and talk.text() == b"before while"


def test_break_between_two_hosts_keeps_other_connections() -> None:
    talk = TwoHosts()

    async def main() -> None:
        stream = await talk.connect()
        other = await talk.network.host("c").connect("b", 9092, 5)
        talk.network.break_between("a", "b")
        with pytest.raises(Unavailable, match="reset"):
            stream.sendmsg([b"x"])
        assert other.sendmsg([b"y"]) == 1

    talk.loop.run(main())


def test_connect_across_a_cut_times_out() -> None:
    talk = TwoHosts()

    async def main() -> None:
        talk.network.cut("b", "a")
        with pytest.raises(Unavailable, match="timeout"):
            await talk.connect()
        assert talk.loop.time() == 5

    talk.loop.run(main())


def test_dead_process_resets_its_connections_and_frees_its_ports() -> None:
    talk = TwoHosts()

    async def main() -> None:
        stream = await talk.connect()
        talk.network.reset("b")
        with pytest.raises(Unavailable, match="reset"):
            stream.sendmsg([b"x"])
        with pytest.raises(Unavailable, match="refused"):
            await talk.network.host("a").connect("b", 9092, 5)
        await talk.connect()

    talk.loop.run(main())
    assert talk.errors == ["connection lost peer=a:20001 error=Connection reset by peer"]


def test_chunk_sizes_are_drawn_and_may_be_one_byte() -> None:
    talk = TwoHosts()
    talk.network.chunk_bytes_max = 3

    async def main() -> None:
        stream = await talk.connect()
        rest = b"0123456789" * 5
        while rest:
            rest = rest[stream.sendmsg([rest]) or 0 :]
        await asyncio.sleep(1)

    talk.loop.run(main())
    assert talk.text() == b"0123456789" * 5
    assert {len(data) for _, data in talk.received} == {1, 2, 3}


def test_some_connections_deliver_small_chunks() -> None:
    talk = TwoHosts()
    talk.network.small_chunk_share = 0.5
    taken: list[int] = []

    async def main() -> None:
        await talk.connect()
        for number in range(40):
            stream = await talk.network.host(f"c{number}").connect("b", 9092, 5)
            taken.append(stream.sendmsg([bytes(1000)]) or 0)

    talk.loop.run(main())
    assert 1 in taken and max(taken) == 1000
    assert 5 < sum(size < 100 for size in taken) < 30


def test_directions_of_a_link_may_have_different_latencies() -> None:
    """The seed gives each direction its own latency, which stays."""
    network = TwoHosts(5).network
    network.latency_seconds = (1.0, 1.0)
    assert network.latency("a", "b") == network.latency("b", "a") == 1.0
    network.is_asymmetric = True
    ways = [(source, target) for source in "abcd" for target in "abcd"]
    paces = {way: network.latency(*way) for way in ways}
    assert any(paces[way] != paces[way[::-1]] for way in ways)
    assert {way: network.latency(*way) for way in reversed(ways)} == dict(reversed(paces.items()))
    again = TwoHosts(5).network
    again.latency_seconds, again.is_asymmetric = (1.0, 1.0), True
    assert [again.latency(*way) for way in reversed(ways)] == [paces[way] for way in reversed(ways)]


def test_same_seed_gives_the_same_deliveries() -> None:
    def conversation(seed: int) -> list[tuple[float, bytes]]:
        talk = TwoHosts(seed)

        async def main() -> None:
            stream = await talk.connect()
            for number in range(20):
                stream.sendmsg([b"message %d" % number])
                await asyncio.sleep(0.001)
            stream.close()
            await asyncio.sleep(1)

        talk.loop.run(main())
        return talk.received

    assert conversation(3) == conversation(3) != conversation(4)
