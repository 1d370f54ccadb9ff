"""The command line against a running cluster: ours in a process of its own, or Kafka for the same assertions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import COMMAND, SECONDS, ServeProcess
from tests.peer.kafka import Peer

KINDS = ("ours", pytest.param("peer", marks=[pytest.mark.java, pytest.mark.also]))
"""Parameters of a fixture: every assertion holds for both."""


class CliCluster:
    """A cluster by its address, and commands that ask it."""

    def __init__(self, kind: str, address: str) -> None:
        self.kind = kind
        self.address = address
        self._names = count()
        self._started: list[subprocess.Popen[bytes]] = []

    def new_name(self, prefix: str = "t") -> str:
        """A name that no other test has."""
        return f"{prefix}-{next(self._names)}"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command that runs beside the test, with pipes."""
        environment = {**os.environ, "TIERED_BROKERS": self.address, "PYTHONUNBUFFERED": "1"}
        pipe = subprocess.PIPE
        # Without a buffer: what a test has not read by itself is left to `end`. Ctrl-C works as in a terminal, also
        # where the tests run in the background of a shell, which has its children ignore it.
        process = subprocess.Popen(
            [*COMMAND, *arguments], bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )  # fmt: skip
        self._started.append(process)
        return process

    def run(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
        """What a command prints, when it ends with that exit code; its errors when that is not 0 and nothing is."""
        process = self.start(*arguments)
        out, err = self.end(process, stdin)
        assert process.returncode == code, (arguments, process.returncode, out, err)
        assert b"Traceback" not in err, err.decode()
        return out.decode() if out or not code else err.decode()

    def end(self, process: subprocess.Popen[bytes], stdin: bytes = b"") -> tuple[bytes, bytes]:
        """What a command prints until it ends, and its errors."""
        try:
            return process.communicate(stdin, SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError((process.args, *process.communicate())) from None

    def close(self) -> None:
        """Ends what a failed test left behind."""
        for process in self._started:
            process.kill()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.wait()

    def rows(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> list[dict[str, Any]]:
        """The same as rows of JSON."""
        lines = self.run(*arguments, "--format", "json", stdin=stdin, code=code).splitlines()
        return [json.loads(line) for line in lines]

    def create_topic(self, partitions: int = 1, **configs: str) -> str:
        """A new topic. It keeps old records: those of tests are of 2023."""
        name = self.new_name()
        configs.setdefault("retention_ms", "-1")
        given = [f"-c={key.replace('_', '.')}={value}" for key, value in configs.items()]
        self.run("topic", "create", name, "-p", str(partitions), *given)
        return name

    def produce(self, topic: str, data: str, *arguments: str) -> list[str]:
        """The lines that are printed for records that are written."""
        return self.run("topic", "produce", topic, *arguments, stdin=data.encode()).splitlines()

    def consume(self, topic: str, *arguments: str, form: str = "%v\\n") -> list[str]:
        """What is printed of a topic up to its end now, unless the arguments say where to stop."""
        where = () if any(each in ("-o", "-n") for each in arguments) else ("-o", ":end")
        return self.run("topic", "consume", topic, "-f", form, *where, *arguments).splitlines()


@contextmanager
def running(kind: str, directory: Path) -> Iterator[CliCluster]:
    """A fresh cluster of a kind."""
    if kind == "peer":
        with Peer() as peer, closing(CliCluster(kind, peer.address)) as cluster:
            yield cluster
    else:
        with ServeProcess(directory / "data") as broker, closing(CliCluster(kind, broker.kafka)) as cluster:
            yield cluster
