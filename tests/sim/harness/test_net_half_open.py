"""Tests of the simulated network with a silent machine: half-open connections, and resets that do not get through."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.harness.streams import WINDOW_BYTES
from tests.sim.harness.test_sim_net import TwoHosts
from tiered.errors import Unavailable
from tiered.ports import Stream


def is_lost(stream: Stream) -> bool:
    try:
        stream.sendmsg([b"x"])
    except Unavailable:
        return True
    return False


def test_connections_to_a_machine_without_power_stay_half_open() -> None:
    talk = TwoHosts()

    async def main() -> None:
        stream = await talk.connect()
        stream.sendmsg([b"lost"])
        assert talk.network.open_streams()["a"] == 1
        talk.network.power_off("b")
        assert talk.network.open_streams()["a"] == 0, "no peer can know of a half-open one"
        await asyncio.sleep(600)
        assert stream.sendmsg([b"x"]) == 1
        assert stream.recv_into(memoryview(bytearray(9))) is None
        await asyncio.sleep(600)
        assert stream.recv_into(memoryview(bytearray(9))) is None

    talk.loop.run(main())
    assert talk.text() == b""


def test_connect_to_a_machine_without_power_fails_until_it_is_back() -> None:
    talk = TwoHosts()

    async def main() -> None:
        await talk.connect()
        talk.network.power_off("b")
        began = talk.loop.time()
        with pytest.raises(Unavailable, match="timeout"):
            await talk.network.host("a").connect("b", 9092, 5)
        assert talk.loop.time() - began == pytest.approx(5)
        talk.network.power_on("b")
        with pytest.raises(Unavailable, match="refused"):
            await talk.network.host("a").connect("b", 9092, 5)
        await talk.connect()

    talk.loop.run(main())


def test_connect_during_a_power_cut_times_out() -> None:
    talk = TwoHosts()
    talk.network.latency_seconds = (1.0, 1.0)

    async def main() -> None:
        await talk.connect()
        talk.loop.call_later(1.0, talk.network.power_off, "b")
        began = talk.loop.time()
        with pytest.raises(Unavailable, match="timeout"):
            await talk.network.host("a").connect("b", 9092, 5)
        assert talk.loop.time() - began == pytest.approx(5)

    talk.loop.run(main())


def test_old_connection_to_a_returned_machine_is_reset_once_used() -> None:
    talk = TwoHosts()

    async def main() -> None:
        idle, used = await talk.connect(), await talk.network.host("c").connect("b", 9092, 5)
        talk.network.power_off("b")
        talk.network.power_on("b")
        await asyncio.sleep(60)
        assert not is_lost(used), "nobody has told it yet"
        await asyncio.sleep(1)
        assert is_lost(used)
        assert idle.recv_into(memoryview(bytearray(9))) is None, "nothing was sent there"

    talk.loop.run(main())


def test_bytes_sent_to_a_dead_machine_get_a_reset_when_it_is_back() -> None:
    talk = TwoHosts()

    async def main() -> None:
        stream = await talk.connect()
        talk.network.power_off("b")
        while stream.sendmsg([bytes(WINDOW_BYTES)]) is not None:
            pass  # until the window is full
        await asyncio.sleep(60)
        talk.network.power_on("b")
        await asyncio.sleep(1)
        assert is_lost(stream)

    talk.loop.run(main())


def test_full_window_of_a_dead_machine_opens_for_the_probe() -> None:
    talk = TwoHosts()
    wrote: list[bool] = []

    async def main() -> None:
        await talk.network.host("b").listen("0.0.0.0", 9092, lambda stream: None)
        stream = await talk.network.host("a").connect("b", 9092, 5)
        while stream.sendmsg([bytes(WINDOW_BYTES)]) is not None:
            await asyncio.sleep(0.1)  # until its buffer is full

        def on_writable() -> None:
            stream.on_writable(None)
            wrote.append(not is_lost(stream))

        stream.on_writable(on_writable)
        talk.network.power_off("b")
        await asyncio.sleep(60)
        assert not wrote
        talk.network.power_on("b")
        await asyncio.sleep(1)
        assert wrote == [True] and is_lost(stream)

    talk.loop.run(main())


def test_reset_waits_behind_a_cut_until_it_heals() -> None:
    talk = TwoHosts()

    async def main() -> None:
        stream = await talk.connect()
        talk.network.cut("b", "a")
        talk.network.reset("b")
        assert not is_lost(stream)
        await asyncio.sleep(60)
        assert not is_lost(stream), "the answer is cut off too"
        talk.network.reset("b")  # of its next process, which knows nothing of it
        talk.network.mend("b", "a")
        await asyncio.sleep(1)
        assert is_lost(stream)

    talk.loop.run(main())


def test_connections_that_both_ends_lost_are_removed() -> None:
    talk = TwoHosts()

    async def main() -> None:
        await talk.connect()
        talk.network.power_off("a")
        talk.network.power_off("b")
        assert not talk.network._streams

    talk.loop.run(main())
