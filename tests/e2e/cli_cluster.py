"""The command line against a running cluster: ours in a process of its own, or Kafka for the same assertions."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.forked_commands import ForkedCommand
from tests.e2e.serving import SECONDS, ServeProcess
from tests.peer.kafka import Peer
from tests.sim.settings import FEW_LOGS_GIVEN

KINDS = ("ours", pytest.param("peer", marks=[pytest.mark.java, pytest.mark.also("kafka")]))
"""Parameters of a fixture: every assertion holds for both."""


class CliCluster:
    """A cluster at an address, and the commands that run against it."""

    def __init__(self, kind: str, address: str, url: str = "") -> None:
        self.kind = kind
        self.address = address
        self.url = url
        self._names = count()
        self._started: list[ForkedCommand] = []

    def new_name(self, prefix: str = "t") -> str:
        """Returns a name that no other test uses."""
        return f"{prefix}-{next(self._names)}"

    def start(self, *arguments: str) -> ForkedCommand:
        """Starts a command beside the test, with pipes."""
        process = ForkedCommand(arguments, {**os.environ, "TIERED_BROKERS": self.address})
        self._started.append(process)
        return process

    def run(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
        """Returns the output of a command that must end with this exit code; its errors if the code is not 0 and there
        is no output."""
        process = self.start(*arguments)
        out, err = self.end(process, stdin)
        assert process.returncode == code, (arguments, process.returncode, out, err)
        assert b"Traceback" not in err, err.decode()
        return out.decode() if out or not code else err.decode()

    def end(self, process: ForkedCommand, stdin: bytes = b"") -> tuple[bytes, bytes]:
        """Waits for a command; returns its output and its errors."""
        out, err = process.communicate(stdin, SECONDS)
        assert process.returncode != -signal.SIGKILL, (process.args, out, err)
        return out, err

    def close(self) -> None:
        """Ends the commands that a failed test left."""
        for process in self._started:
            process.close()

    def rows(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> list[dict[str, Any]]:
        """Returns the output as rows of JSON."""
        lines = self.run(*arguments, "--format", "json", stdin=stdin, code=code).splitlines()
        return [json.loads(line) for line in lines]

    def create_topic(self, partitions: int = 1, **configs: str) -> str:
        """Creates a topic that keeps old records: those of tests are of 2023."""
        name = self.new_name()
        configs.setdefault("retention_ms", "-1")
        given = [f"-c={key.replace('_', '.')}={value}" for key, value in configs.items()]
        self.run("topic", "create", name, "-p", str(partitions), *given)
        return name

    def produce(self, topic: str, data: str, *arguments: str) -> list[str]:
        """Returns the lines that the command prints for written records."""
        return self.run("topic", "produce", topic, *arguments, stdin=data.encode()).splitlines()

    def consume(self, topic: str, *arguments: str, form: str = "%v\\n") -> list[str]:
        """Returns the records of a topic up to its present end, unless the arguments say where to stop."""
        where = () if any(each in ("-o", "-n") for each in arguments) else ("-o", ":end")
        return self.run("topic", "consume", topic, "-f", form, *where, *arguments).splitlines()


def error_lines(printed: bytes) -> list[bytes]:
    """Returns the lines that a command prints because it fails. Leaves out that it goes on trying, which it prints if
    others are slow to start."""
    return [line for line in printed.splitlines() if b" now, and tries again: " not in line]


@contextmanager
def start_cluster(kind: str, directory: Path) -> Iterator[CliCluster]:
    """Starts a cluster of this kind."""
    if kind == "peer":
        with Peer() as peer, closing(CliCluster(kind, peer.address)) as cluster:
            yield cluster
    else:
        quick = (*FEW_LOGS_GIVEN, "-c", "group.initial.rebalance.delay.ms=0")  # as the peer of tests has it
        with (
            ServeProcess(directory / "data", *quick) as broker,
            closing(CliCluster(kind, broker.kafka, broker.url)) as cluster,
        ):
            yield cluster
