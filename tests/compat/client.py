"""A client in a process of its own: it gets orders, and returns replies and consumed records."""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

SECONDS = 120.0
CHANGED = threading.Condition()
"""Event of any client: a condition may concern several clients."""
PartitionKey = tuple[str, int]
T = TypeVar("T")


class ClientError(Exception):
    """An error of the client: its type and its text."""


def pack(data: bytes | None) -> str | None:
    """Returns bytes as JSON carries them."""
    return None if data is None else base64.b64encode(data).decode()


def unpack(text: str | None) -> bytes | None:
    """Returns the bytes of a value that `pack` made."""
    return None if text is None else base64.b64decode(text)


@dataclass(frozen=True)
class ClientRecord:
    """A record to send, or one that was read (then `offset` is not -1)."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    partition: int = 0
    offset: int = field(default=-1, compare=False)
    topic: str = field(default="", compare=False)

    def line(self) -> dict[str, Any]:
        """Returns the order for a driver to send it."""
        headers = [[name, pack(data)] for name, data in self.headers]
        packed = {"k": pack(self.key), "v": pack(self.value), "h": headers, "p": self.partition}
        return packed if self.timestamp is None else packed | {"ts": self.timestamp}

    @classmethod
    def read(cls, line: dict[str, Any]) -> ClientRecord:
        """Returns a record that a driver reports as received."""
        headers = tuple((name, unpack(data)) for name, data in line["h"])
        return cls(unpack(line["v"]), unpack(line["k"]), headers, line["ts"], line["p"], line["o"], line["t"])


class DriverClient:
    """A driver process. `assigned` and `records` follow its events; `ask` waits for a reply."""

    def __init__(self, command: Sequence[str]) -> None:
        self.assigned: set[PartitionKey] = set()
        self.records: list[ClientRecord] = []
        self.rebalances = 0
        self.revoked = 0
        self.failures: list[str] = []
        self.created: Callable[[str, int], None] = lambda topic, partitions: None
        """Callback for every created topic, before the order returns."""
        self._answers: dict[int, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self._is_ended = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with CHANGED:
                self._on_line(json.loads(line))
                CHANGED.notify_all()
        with CHANGED:
            self._is_ended = True
            CHANGED.notify_all()

    def _on_line(self, said: dict[str, Any]) -> None:
        if "id" in said:
            self._answers[said["id"]] = said
        elif "records" in said:
            self.records += [ClientRecord.read(line) for line in said["records"]]
        elif "assigned" in said:
            self.assigned = {(topic, partition) for topic, partition in said["assigned"]}
            self.rebalances += 1
        elif "revoked" in said:
            self.assigned -= {(topic, partition) for topic, partition in said["revoked"]}
            self.revoked += 1
        elif "trouble" in said:
            self.failures.append(said["trouble"])

    def check_alive(self) -> None:
        """Raises AssertionError with its last output if it has ended."""
        assert not self._is_ended, f"the client ended: {self._stderr_tail()}"

    def wait_until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Waits for events of the driver, and not for time to pass."""
        wait_until([self], condition, seconds)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Sends an order and returns its reply; raises ClientError if the client raised."""
        number = self.begin(do, **arguments)
        value = self.finish(number)
        if do == "create":
            self.created(arguments["topic"], arguments.get("partitions", 1))
        return value

    def begin(self, do: str, **arguments: Any) -> int:
        """Sends an order whose reply `finish` awaits."""
        assert self._process.stdin is not None
        number = next(self._numbers)
        line = json.dumps({"id": number, "do": do, **arguments}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(f"the client ended: {self._stderr_tail()}") from None
        return number

    def has_reply(self, number: int) -> bool:
        """True if the reply to an order is there."""
        return number in self._answers

    def finish(self, number: int) -> Any:
        """Returns the reply to an order."""
        self.wait_until(lambda: number in self._answers)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise ClientError(answer["error"])
        return answer.get("value")

    def send(self, topic: str, records: Iterable[ClientRecord], **how: Any) -> list[tuple[int, int] | None]:
        """Returns partition and offset of the records; None for unacknowledged ones (acks 0)."""
        placed = self.ask("send", topic=topic, records=[each.line() for each in records], **how)
        return [None if each is None or each[1] is None or each[1] < 0 else (each[0], each[1]) for each in placed]

    def wait_for(self, count: int, seconds: float = SECONDS) -> list[ClientRecord]:
        """Returns the consumed records, once there are so many."""
        self.wait_until(lambda: len(self.records) >= count, seconds)
        return list(self.records)

    def kill(self) -> None:
        """Kills the process at once, without a message to the broker."""
        self._process.kill()
        self._end()

    def close(self) -> None:
        """Ends the process; an open consumer is left to the broker's timeouts."""
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        if not self._errors.closed:
            self._errors.close()

    def _stderr_tail(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace")

    def __repr__(self) -> str:
        state = f"{len(self.records)} records, assigned {sorted(self.assigned)}, {self.rebalances} rebalances"
        return f"<{self._process.args!r}: {state}, {self.failures[-3:]}>"

    def __enter__(self) -> DriverClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def look_until(broker: str, look: Callable[[], T], condition: Callable[[T], bool]) -> T:
    """Returns the state after a change: ours shows it at once, Kafka once its own brokers know of it."""
    found = look()
    for _ in range(0 if broker == "ours" else 500):
        if condition(found):
            break
        found = look()
    assert condition(found), found
    return found


def wait_until(clients: Sequence[DriverClient], condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Waits until the condition holds; checks it whenever a client reports an event."""
    deadline = time.monotonic() + seconds
    with CHANGED:
        while not condition():
            left = deadline - time.monotonic()
            assert left > 0, f"not so within {seconds} s: {clients}"
            for each in clients:
                each.check_alive()
            CHANGED.wait(left)
