"""Tests of conditions that only real sockets have: no free descriptor, files that shrink, names that do not resolve."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.test_net import receive
from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import FixedClock
from tiered.errors import Unavailable
from tiered.log_limiter import LogLimiter
from tiered.ports import FileSlice, Stream
from tiered.system.descriptors import describe_descriptors, limit_accept_failures
from tiered.system.local_disk import LocalDisk
from tiered.system.network import ACCEPT_TURN_SECONDS, SocketNet

HOST = "127.0.0.1"
LONG_OPEN = 5
"""A limit at which no thread gets a descriptor, even if others close theirs: the ones below are open since the start of
the process. They are enough for `poll` of another thread, which refuses to watch more than the limit."""


@run_by(run_alone)
async def test_listener_without_free_descriptors_waits_and_continues(*, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.system.network.ACCEPT_PAUSE_SECONDS", 0.05)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    arrived: asyncio.Queue[Stream] = asyncio.Queue(10)
    listener = await SocketNet().listen(HOST, 0, arrived.put_nowait)
    with socket.socket() as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LONG_OPEN, hard))
        try:
            client.connect((HOST, listener.port))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await arrived.get()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        async with asyncio.timeout(120):
            stream = await arrived.get()
        stream.close()
    listener.close()


@run_by(run_alone)
async def test_many_new_connections_are_accepted_in_many_turns_of_the_loop() -> None:
    """Each takes longer here than a turn has for them, so other work comes between any two."""
    loop, turns, accepted = asyncio.get_running_loop(), 0, list[int]()
    done = asyncio.Event()

    def accept(stream: Stream) -> None:
        ends = loop.time() + 2 * ACCEPT_TURN_SECONDS
        while loop.time() < ends:
            pass
        accepted.append(turns)
        stream.close()
        if len(accepted) == len(clients):
            done.set()

    def count_turns() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(count_turns)

    listener = await SocketNet().listen(HOST, 0, accept)
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((HOST, listener.port))) for _ in range(5)]
        count_turns()
        async with asyncio.timeout(120):
            await done.wait()
    listener.close()
    assert len(set(accepted)) == 5


@run_by(run_alone)
async def test_first_connection_needs_one_descriptor_only() -> None:
    """Once, the readiness watcher took the last descriptor, and the connection was lost."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    arrived: asyncio.Queue[Stream] = asyncio.Queue(10)
    listener = await SocketNet().listen(HOST, 0, arrived.put_nowait)
    with socket.socket() as client:
        client.connect((HOST, listener.port))
        spare = os.dup(0)  # the lowest free one, while there is one
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 1, hard))
            os.close(spare)
            async with asyncio.timeout(120):
                stream = await arrived.get()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        stream.close()
    listener.close()


@run_by(run_alone)
async def test_listener_may_close_while_it_waits_for_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    arrived: list[Stream] = []
    listener = await SocketNet().listen(HOST, 0, arrived.append)
    with socket.socket() as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LONG_OPEN, hard))
        try:
            client.connect((HOST, listener.port))
            await asyncio.sleep(0.05)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        listener.close()
    assert arrived == []


async def pair() -> tuple[Stream, Stream]:
    arrived: asyncio.Queue[Stream] = asyncio.Queue(1)
    listener = await SocketNet().listen(HOST, 0, arrived.put_nowait)
    near = await SocketNet().connect("localhost", listener.port, 5)
    far = await arrived.get()
    listener.close()
    return near, far


@run_by(run_alone)
async def test_file_without_a_descriptor_is_sent_too() -> None:
    file = SimDisk(random.Random(1)).open("f", create=True)
    file.append([b"0123456789"])
    near, far = await pair()
    assert near.send_file(FileSlice(file, 2, 5)) == 5
    assert await receive(far, 5) == b"23456"
    near.close()
    far.close()


@run_by(run_alone)
async def test_file_shorter_than_its_slice_is_an_error(*, tmp_path: Path) -> None:
    file = LocalDisk(str(tmp_path)).open("f", create=True)
    file.append([b"0123"])
    near, far = await pair()
    assert near.send_file(FileSlice(file, 2, 10)) == 2
    with pytest.raises(Unavailable, match="shorter than its slice file=f"):
        near.send_file(FileSlice(file, 4, 8))
    near.close()
    far.close()


def test_unknown_host_name_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"cannot resolve no-such-host\.invalid"):
        asyncio.run(SocketNet().connect("no-such-host.invalid", 1, 5))


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
def test_name_that_no_host_can_have_is_not_reached(host: str) -> None:
    with pytest.raises(Unavailable, match="it is no name of a host"):
        asyncio.run(SocketNet().connect(host, 9, 5.0))


def test_process_near_its_limit_of_descriptors_has_a_problem() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd")) - 1
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * opened, hard))
        assert list(describe_descriptors()) == []
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + opened // 8, hard))
        (near,) = describe_descriptors()
        resource.setrlimit(resource.RLIMIT_NOFILE, (LONG_OPEN, hard))
        (at,) = describe_descriptors()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert f" of {opened + opened // 8} file descriptors are open" in near
    assert f"prlimit --pid {os.getpid()} --nofile=N" in near
    assert at.startswith(f"{LONG_OPEN} of {LONG_OPEN} file descriptors are open")


def test_listener_of_asyncio_out_of_descriptors_logs_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.01)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def body() -> None:
        loop, limiter = asyncio.get_running_loop(), LogLimiter(FixedClock(0))
        limit_accept_failures(loop, limiter)
        accepted, failures = asyncio.Event(), list[object]()
        handle = loop.get_exception_handler()
        assert handle is not None

        def count(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
            failures.append(context)
            handle(loop, context)

        loop.set_exception_handler(count)

        class Accepted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transport.close()
                accepted.set()

        server = await loop.create_server(Accepted, HOST, 0)
        with socket.socket() as client:
            resource.setrlimit(resource.RLIMIT_NOFILE, (LONG_OPEN, hard))
            try:
                client.connect((HOST, server.sockets[0].getsockname()[1]))
                while len(failures) < 3:
                    await asyncio.sleep(0.01)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            async with asyncio.timeout(120):
                await accepted.wait()
                while any("_start_serving" in repr(each) for each in loop._scheduled):  # type: ignore[attr-defined]
                    await asyncio.sleep(0.01)  # asyncio begins once for each failure, and may not find a closed socket
        loop.call_exception_handler({"message": "another failure"})
        server.close()

    asyncio.run(body())
    assert [each.getMessage() for each in caplog.records] == [
        "cannot accept connections and tries again later error=Too many open files suppressed=0",
        "another failure",
    ]
    assert caplog.records[0].exc_info is None
