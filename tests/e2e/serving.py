"""A broker in a process of its own on a free port: a fork of one that has imported `tiered serve`, or a new Python."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.forked_commands import ForkedCommand, ForkedProcess
from tests.passwords import find_passwords
from tests.sim.settings import FEW_LOGS_GIVEN

COMMAND = [sys.executable, "-m", "tiered_api.cli.main"]
SECONDS = 120.0
INTERNAL_CONFIGS = ("-c", "tiered.internal.configs.enable=true")
"""Arguments of a broker whose topics may have segments of less than 1 MiB."""


def run_tiered(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    command = ForkedCommand(arguments, {**os.environ, **(env or {})})
    with closing(command):
        stdout, stderr = (output.decode() for output in command.communicate(b"", SECONDS))
        code = command.wait()
    assert not find_passwords(stdout + stderr), arguments
    return subprocess.CompletedProcess(arguments, code, stdout, stderr)


def _start(
    arguments: list[str], environment: dict[str, str], stdin: int, stdout: int, stderr: int
) -> subprocess.Popen[bytes]:
    """Starts a command as users do."""
    return subprocess.Popen([*COMMAND, *arguments], env=environment, stdin=stdin, stdout=stdout, stderr=stderr)


class ServeProcess:
    """A broker on a directory, ready after construction. A context manager that stops it."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        env: dict[str, str] | None = None,
        http: str = "127.0.0.1:0",
        is_forked: bool = True,
    ) -> None:
        self.log = directory.with_name(directory.name + ".log")
        anywhere = ("--http", http, "--kafka", "127.0.0.1:0")
        command = ["serve", "--data-dir", str(directory), *anywhere, *arguments]
        own, theirs = os.pipe()
        with self.log.open("ab") as log, open(os.devnull, "rb") as nothing, open(theirs, "wb") as output:
            streams, whole = (nothing.fileno(), output.fileno(), log.fileno()), {**os.environ, **(env or {})}
            self.process = ForkedProcess(command, whole, *streams) if is_forked else _start(command, whole, *streams)
        self._output = os.fdopen(own)
        self.line = self._output.readline()
        assert self.line, self.log.read_text()
        self.url = self.line.split()[3]
        self.kafka = self.line.partition(" kafka=")[2].split()[0]

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Any]:
        """Sends one request; returns status and JSON (or text)."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=SECONDS)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": kind} if data else {})
            response = connection.getresponse()
            answer = response.read()
            is_json = "json" in response.headers.get("Content-Type", "")
            return response.status, json.loads(answer) if is_json and answer else answer.decode()
        finally:
            connection.close()

    def create_topic(self, name: str, **configs: str) -> None:
        """Creates a topic with one partition."""
        cluster = self.ask("GET", "/tiered/v1/node")[1]["cluster_id"]
        settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        body = {"topic_name": name, "partitions_count": 1, "configs": settings}
        status, answer = self.ask("POST", f"/v3/clusters/{cluster}/topics", body)
        assert status == 201, answer

    def produce(self, topic: str, *values: Any) -> list[int]:
        """Produces values; returns their offsets."""
        body = {"records": [{"value": value} for value in values]}
        status, answer = self.ask("POST", f"/topics/{topic}", body, "application/vnd.kafka.json.v2+json")
        assert status == 200, answer
        return [each["offset"] for each in answer["offsets"]]

    def values(self, topic: str, offset: int = 0) -> list[Any]:
        """Returns the values from an offset on."""
        status, answer = self.ask("GET", f"/topics/{topic}/partitions/0/records?offset={offset}&format=json")
        assert status == 200, answer
        return [record["value"] for record in answer["records"]]

    def wait_for_offset(self, topic: str, name: str, least: int) -> None:
        """Returns once an offset of the topic's first partition, such as `cold_end_offset`, has come so far."""
        end = time.monotonic() + SECONDS
        while (state := self.ask("GET", f"/tiered/v1/topics/{topic}/partitions/0")[1])[name] < least:
            assert time.monotonic() < end, state
            time.sleep(0.01)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stops the process; returns its exit code."""
        self.process.send_signal(how)
        code = self.process.wait(SECONDS)
        self._output.close()
        return code

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGKILL if kind else signal.SIGTERM)
        self._output.close()
        log = self.log.read_text(errors="replace")
        assert not find_passwords(log), log


class ServedCluster:
    """Brokers that share a bucket, in the order of their ids."""

    def __init__(self, brokers: Sequence[ServeProcess], store: str) -> None:
        self.brokers = brokers
        self.store = store
        self.kafka = [each.kafka for each in brokers]
        self.urls = [each.url for each in brokers]

    def pids(self) -> list[int]:
        """Returns the brokers' processes, in order."""
        return [each.process.pid for each in self.brokers]


@contextmanager
def serve_cluster(directory: Path, brokers: int = 1, *settings: str) -> Iterator[ServedCluster]:
    """Yields a cluster whose brokers are forks. Nobody starts a broker again that ends."""
    directory.mkdir(parents=True, exist_ok=True)
    store, given = f"file://{directory}/bucket", (*FEW_LOGS_GIVEN, *settings)
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                ServeProcess(directory / f"broker-{node}", *given, "--store", store, "--node-id", str(node))
            )
            for node in range(1, brokers + 1)
        ]
        yield ServedCluster(started, store)
