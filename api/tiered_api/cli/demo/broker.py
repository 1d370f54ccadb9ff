"""The broker of the demo: `tiered serve` in a process of its own, as a user starts it, and requests to it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tiered.errors import Unavailable

START_SECONDS = 60.0
STOP_SECONDS = 30.0
REQUEST_SECONDS = 60.0


class DemoBroker:
    """A broker that serves at `url`, with a client session to it."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def send_request(self, method: str, path: str, body: Any = None) -> Any:
        """Returns the JSON reply to a request. Raises `Unavailable` with the broker's message if it refuses."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        async with self.session.request(method, self.url + path, json=body, timeout=timeout) as response:
            if response.status >= 400:
                raise Unavailable(f"{method} {path}: {response.status} {await response.text()}")
            return await response.json()

    async def metric(self, name: str) -> float:
        """Returns the sum of a metric over all its labels."""
        async with self.session.get(f"{self.url}/metrics") as response:
            text = await response.text()
        samples = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, samples))


@contextlib.asynccontextmanager
async def demo_broker(data: Path, store: str, output: Path, *settings: str) -> AsyncIterator[DemoBroker]:
    """Yields a broker on a directory and a store, on any free port; stops it cleanly at the end. Its log goes to
    `output`."""
    command = [sys.executable, "-m", "tiered_api.cli.main", "serve", "--http", "127.0.0.1:0", "--kafka", ""]
    command += ["--data-dir", str(data), "--store", store]
    for setting in settings:
        command += ["-c", setting]
    with output.open("ab") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=log)
    try:
        url = await _wait_ready(process, output)
        # No limit on the whole: a stream lasts as long as its records.
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_read=REQUEST_SECONDS)
        ) as session:
            yield DemoBroker(url, session)
    finally:
        await _stop(process)


async def _wait_ready(process: Process, output: Path) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            line = (await process.stdout.readline()).decode()
    except TimeoutError:
        line = ""
    found = re.search(r"http://\S+", line)
    if found is None:
        words = output.read_text().strip().splitlines()
        raise Unavailable(f"the broker did not start: {words[-1] if words else 'it said nothing'}")
    return found[0]


async def _stop(process: Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
