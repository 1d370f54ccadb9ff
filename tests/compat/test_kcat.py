"""Tests of kcat as packaged by Debian: librdkafka 2.0.2, older than most clients in use."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import ClientRecord, DriverClient
from tests.compat.clients import CODECS

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="needs kcat on the PATH")
SECONDS = 120
T0 = int(time.time()) * 1000 - 3_600_000
Kcat = Callable[..., str]


def reach(broker: CompatBroker) -> list[str]:
    """Returns the options that say how the broker is reached."""
    login = {} if broker.login is None else broker.login.to_librdkafka()
    return ["-b", broker.address, *(word for name, value in login.items() for word in ("-X", f"{name}={value}"))]


@pytest.fixture
def kcat(broker: CompatBroker) -> Kcat:
    """Runs it to its end; returns its output."""

    def run(*arguments: str, stdin: bytes = b"") -> str:
        command = ["kcat", *reach(broker), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    return run


def read(kcat: Kcat, topic: str, *more: str) -> list[dict[str, Any]]:
    """Returns every record from the start to the end, as kcat prints it in JSON."""
    return [json.loads(line) for line in kcat("-C", "-t", topic, "-o", "beginning", "-e", "-J", *more).splitlines()]


@pytest.mark.parametrize("codec", CODECS)
def test_records_that_kcat_writes_are_read(kcat: Kcat, admin: DriverClient, name: str, codec: str) -> None:
    """kcat compresses its batches, but not for a broker that offers Produce only from version 3 on."""
    admin.ask("create", topic=name)
    lines = b"".join(b"key-%d:%s\n" % (number, b"value " * 50) for number in range(200))
    kcat("-P", "-t", name, "-p", "0", "-K", ":", "-H", "head=er", "-z", codec, stdin=lines)
    found = read(kcat, name)
    assert [each["offset"] for each in found] == list(range(200))
    assert [each["key"] for each in found] == [f"key-{number}" for number in range(200)]
    assert {each["payload"] for each in found} == {"value " * 50}
    assert {tuple(each["headers"]) for each in found} == {("head", "er")}
    admin.records.clear()
    admin.ask("open", group=name)
    admin.ask("assign", partitions=[[name, 0, 0]])
    records = admin.wait_for(200)
    admin.ask("leave")
    assert [each.key for each in records] == [b"key-%d" % number for number in range(200)]


def test_empty_value_with_option_z_is_null(kcat: Kcat, admin: DriverClient, name: str) -> None:
    admin.ask("create", topic=name)
    kcat("-P", "-t", name, "-K", ":", "-Z", stdin=b"gone:\nkept:x\n")
    assert [(each["key"], each["payload"]) for each in read(kcat, name)] == [("gone", None), ("kept", "x")]


@pytest.mark.parametrize(("acks", "idempotent"), [("0", "false"), ("1", "false"), ("-1", "false"), ("-1", "true")])
def test_records_with_any_acks_and_idempotence_are_written(
    kcat: Kcat, admin: DriverClient, name: str, acks: str, idempotent: str
) -> None:
    admin.ask("create", topic=name)
    settings = ["-X", f"enable.idempotence={idempotent}", "-X", f"acks={acks}"]
    kcat("-P", "-t", name, *settings, stdin=b"".join(b"%d\n" % number for number in range(500)))
    assert [each["payload"] for each in read(kcat, name, "-c", "500")] == [str(number) for number in range(500)]


def test_file_of_a_mebibyte_is_one_record(kcat: Kcat, admin: DriverClient, name: str, tmp_path: Path) -> None:
    admin.ask("create", topic=name, configs={"max.message.bytes": "2097152"})
    (tmp_path / "large").write_bytes(b"x" * (1 << 20))
    large = ["-X", "message.max.bytes=2000000", "-X", "fetch.message.max.bytes=2000000"]
    kcat("-P", "-t", name, *large, str(tmp_path / "large"))
    (found,) = read(kcat, name, *large)
    assert len(found["payload"]) == 1 << 20


def test_metadata_offsets_and_times_are_queried(kcat: Kcat, admin: DriverClient, name: str) -> None:
    admin.ask("create", topic=name, partitions=3)
    admin.send(name, [ClientRecord(b"%d" % number, timestamp=T0 + number * 1000) for number in range(50)])
    listed = json.loads(kcat("-L", "-J", "-t", name))
    (topic,) = listed["topics"]
    assert [each["partition"] for each in topic["partitions"]] == [0, 1, 2]
    assert {each["leader"] for each in topic["partitions"]} <= {each["id"] for each in listed["brokers"]}
    assert re.search(r"offset 42\b", kcat("-Q", "-t", f"{name}:0:{T0 + 42_000}"))
    late = read(kcat, name, "-o", f"s@{T0 + 40_000}")
    assert [each["payload"] for each in late] == [str(number) for number in range(40, 50)]
    assert [each["payload"] for each in read(kcat, name, "-p", "0", "-o", "-3")] == ["47", "48", "49"]


@pytest.fixture
def members(broker: CompatBroker) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Returns kcat as a member of a group, with its messages about assignments on stderr."""
    with ExitStack() as stack:

        def join(group: str, topic: str) -> subprocess.Popen[str]:
            quick = [
                "-X",
                "session.timeout.ms=2000",
                "-X",
                "heartbeat.interval.ms=500",
                "-X",
                "auto.offset.reset=earliest",
            ]
            command = ["kcat", *reach(broker), "-G", group, *quick, "-f", "%p %o %s\n", "-u", topic]
            member = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.enter_context(member)
            stack.callback(member.kill)
            return member

        yield join


def wait_assigned(member: subprocess.Popen[str], count: int) -> None:
    """Reads its messages until it has so many partitions."""
    assert member.stderr is not None
    for line in member.stderr:
        if "assigned:" in line and line.count("[") == count:
            return
    raise AssertionError("kcat ended")


def test_group_of_two_shares_partitions(
    kcat: Kcat, admin: DriverClient, name: str, members: Callable[..., subprocess.Popen[str]]
) -> None:
    admin.ask("create", topic=name, partitions=4)
    first = members(name, name)
    wait_assigned(first, 4)
    second = members(name, name)
    wait_assigned(second, 2)
    second.kill()
    wait_assigned(first, 4)
    admin.send(name, [ClientRecord(b"%d" % number, partition=number % 4) for number in range(20)])
    assert first.stdout is not None
    got = [first.stdout.readline().split()[2] for _ in range(20)]
    assert sorted(map(int, got)) == list(range(20))
