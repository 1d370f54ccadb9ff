"""Tests of work in threads (bodies decompressed and parsed, replies rendered): it is bounded, and does not delay a
stop."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import signal
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.http_site import HttpBroker, http_broker, run
from tests.e2e.serving import SECONDS, ServeProcess
from tests.scenario import run_alone, run_by
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.context import CLOSING_SECONDS, INLINE_BYTES, WORKERS
from tiered_api.http.exchange.context import HttpContext as Surroundings
from tiered_api.http.exchange.limits import Exhausted, HttpLimits

MUCH = INLINE_BYTES + 1


def surroundings(of: HttpBroker) -> Surroundings:
    return of.http._listener.context


def test_work_above_the_limit_is_refused_503_and_accepted_later(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        await site.create("t")
        go = threading.Event()
        work = surroundings(site).run_job
        busy = [asyncio.create_task(work(MUCH, go.wait, SECONDS)) for _ in range(WORKERS + 1)]
        await asyncio.sleep(0)
        body = b'{"records":[{"value":"%b"}]}' % bytes([120] * MUCH)
        answer = await site.ask("POST", "/topics/t", body, kind=media_types.V2_JSON)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert (await site.get("/healthz")).status == 200
        go.set()
        assert await asyncio.gather(*busy) == [True] * len(busy)
        assert (await site.ask("POST", "/topics/t", body, kind=media_types.V2_JSON)).status == 200

    run(tmp_path, scenario, HttpLimits(jobs=WORKERS + 1))


def test_work_over_its_deadline_is_abandoned_and_queued_work_never_runs(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        go, begun = threading.Event(), threading.Event()
        work = surroundings(site).run_job
        busy = [asyncio.create_task(work(MUCH, go.wait, SECONDS)) for _ in range(WORKERS)]
        behind = asyncio.create_task(work(MUCH, begun.set))
        for each in (*busy, behind):
            with pytest.raises(Exhausted):
                await each
        go.set()
        assert await work(MUCH, lambda: "done") == "done"
        assert not begun.is_set()

    run(tmp_path, scenario, HttpLimits(job_seconds=0.2))


@run_by(run_alone)
async def test_closing_server_waits_a_bounded_time_for_work(*, tmp_path: Path) -> None:
    go = threading.Event()
    async with http_broker(tmp_path) as running:
        busy = asyncio.create_task(surroundings(running).run_job(MUCH, go.wait, SECONDS))
        short = asyncio.create_task(surroundings(running).run_job(MUCH, time.sleep, CLOSING_SECONDS / 5))
        await asyncio.sleep(0)
        begun = time.monotonic()
        await running.http.close()
        assert time.monotonic() - begun < SECONDS / 2
        await short
        with pytest.raises(Exhausted):
            await busy
        go.set()


def test_process_ends_after_sigterm_before_all_bodies_are_parsed(tmp_path: Path) -> None:
    """The bodies of one client are parsed one after the other, each for a part of a second."""
    record = b'{"value":[%b1]}' % (b"[]," * 200)
    body = b'{"records":[' + b",".join([record] * 40_000) + b"]}"
    with ServeProcess(tmp_path / "data") as broker:
        broker.create_topic("t")
        netloc = urlsplit(broker.url).netloc
        connections = [http.client.HTTPConnection(netloc, timeout=SECONDS) for _ in range(4)]
        for each in connections:
            each.request("POST", "/topics/t", body, {"Content-Type": media_types.V2_JSON})
        begun = cpu_seconds(broker.process.pid)
        while broker.ask("GET", "/healthz")[1]["ok"] and not cpu_seconds(broker.process.pid) > begun + 0.2:
            time.sleep(0.05)
        broker.process.send_signal(signal.SIGTERM)
        statuses = [status_or_none(each) for each in connections]
        assert broker.process.wait(SECONDS) == 0
        assert statuses.count(200) < len(statuses), statuses
        assert "clean=True" in broker.log.read_text()


def status_or_none(connection: http.client.HTTPConnection) -> int | None:
    """Returns the status of the response; None if the connection ends without one."""
    try:
        return connection.getresponse().status
    except (ConnectionError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def cpu_seconds(pid: int) -> float:
    """Returns the user time of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]) / 100


def test_process_refuses_a_body_of_many_empty_gzip_members_and_ends(tmp_path: Path) -> None:
    empty = gzip.compress(b"")
    with ServeProcess(tmp_path / "data") as broker:
        broker.create_topic("t")
        connection = http.client.HTTPConnection(urlsplit(broker.url).netloc, timeout=SECONDS)
        headers = {"Content-Type": media_types.V2_JSON, "Content-Encoding": "gzip"}
        connection.request("POST", "/topics/t", empty * (8_000_000 // len(empty)), headers)
        assert connection.getresponse().status == 400
        connection.close()
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(SECONDS) == 0
