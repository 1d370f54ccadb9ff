"""Tests of limits that the processes of one machine keep together, and of changes that reach all of them."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.certificates import sign
from tests.e2e.kafka_site import RawClient
from tests.e2e.serving import SECONDS, ServeProcess, run_tiered
from tests.e2e.test_machine import processes_of
from tests.e2e.test_serve_tls import AUTHORITY, options
from tiered.ids import PROCESS_STEP
from tiered.records.batch import encode_batch
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

TWO = ("-c", "tiered.processes=2")
CLIENT_ID = "test"
"""The client id of raw clients of the Kafka protocol."""
FILE_BYTES = 1 << 20
RATE = "log.cleaner.io.max.bytes.per.second"
"""A setting of the machine: each process has a share of it."""
PAUSE_SECONDS = 0.1
"""Pause between two requests of a client that waits for a refusal."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="as tests/e2e/test_machine.py")


def own_addresses(machine: ServeProcess) -> dict[int, tuple[str, str]]:
    """Returns the addresses of each process by node id: HOST:PORT of HTTP, and of the Kafka protocol."""
    found = machine.ask("GET", "/tiered/v1/cluster")[1]["brokers"]
    return {each["node_id"]: (urlsplit(each["http"]).netloc, each["address"]) for each in found}


def post(address: str, size: int, headers: Mapping[str, str]) -> tuple[int, float]:
    """Produces a record over HTTP. Returns the status, and the seconds of Retry-After."""
    host, body = HTTPConnection(address, timeout=SECONDS), {"records": [{"value": "x" * size}]}
    try:
        kind = {"Content-Type": "application/vnd.kafka.json.v2+json"}
        host.request("POST", "/topics/t/partitions/0", json.dumps(body).encode(), {**kind, **headers})
        response = host.getresponse()
        response.read()
        return response.status, float(response.headers.get("Retry-After", 0))
    finally:
        host.close()


async def produce(address: str, size: int) -> int:
    """Produces a record to the leader over the Kafka protocol. Returns the throttle time."""
    host, _, port = address.rpartition(":")
    client = RawClient(*await asyncio.open_connection(host, int(port)))
    try:
        part = PartitionProduceData(records=encode_batch([(time.time_ns() // 10**6, None, b"x" * size, ())]))
        request = ProduceRequest(
            acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=[part])]
        )
        reply = await client.ask(request, 9, ProduceResponse)
        assert reply.responses[0].partition_responses[0].error_code == 0
        return reply.throttle_time_ms
    finally:
        client.close()


def wait_until_refused(address: str, client_id: str) -> None:
    """Produces until a process refuses the client for longer than for what it produces here: 300 bytes a second."""
    end = time.monotonic() + SECONDS
    while (refused := post(address, 1, {"X-Client-Id": client_id}))[0] == 200:
        assert time.monotonic() < end, f"{client_id} is not refused"
        time.sleep(PAUSE_SECONDS)
    assert refused[0] == 429 and refused[1] > 10, refused


def name_at(address: str, ca: Path) -> str:
    """Returns the name in the certificate that is shown at an address."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    with (
        socket.create_connection((host, int(port)), SECONDS) as raw,
        context.wrap_socket(raw, server_hostname=host) as tls,
    ):
        certificate: Any = tls.getpeercert()
    return str(dict(part[0] for part in certificate["subject"])["commonName"])


def test_client_of_two_processes_has_the_quota_of_one_machine(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", *TWO) as machine:
        at = ("--brokers", machine.kafka)
        assert run_tiered("topic", "create", "t", *at).returncode == 0
        for client_id in (CLIENT_ID, "web"):
            assert run_tiered("quota", "set", "--client-id", client_id, "producer_byte_rate=1000", *at).returncode == 0
        addresses = own_addresses(machine)
        leader = machine.ask("GET", "/topics/t")[1]["partitions"][0]["leader"]
        own, kafka = addresses.pop(leader)
        [(other, _)] = addresses.values()
        used_ms = asyncio.run(produce(kafka, 100_000))
        assert used_ms > 80_000, "100 KB at 1 KB a second, less one window"
        assert post(own, 100_000, {"X-Client-Id": "web"})[0] == 200
        for client_id in (CLIENT_ID, "web"):
            wait_until_refused(other, client_id)
        assert post(other, 1, {"X-Client-Id": "another"})[0] == 200


def full_disks(address: str) -> list[int]:
    """Returns the brokers whose disk is full, by the metadata of one process."""
    host = HTTPConnection(address, timeout=SECONDS)
    try:
        host.request("GET", "/healthz")
        found: list[int] = json.loads(host.getresponse().read())["details"]["full_disks"]
        return found
    finally:
        host.close()


def test_disk_that_is_full_for_one_process_is_full_for_its_machine(tmp_path: Path) -> None:
    """A limit of the size of files stands for a full disk: only one process finds no room."""
    with ServeProcess(tmp_path / "data", *TWO) as machine:
        machine.create_topic("t")
        leader = machine.ask("GET", "/topics/t")[1]["partitions"][0]["leader"]
        address = own_addresses(machine)[leader][0]
        pid = processes_of(machine)[leader // PROCESS_STEP]
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES, before[1]))
        try:
            for _ in range(5):
                post(address, FILE_BYTES // 4, {})
            end = time.monotonic() + SECONDS
            while full_disks(address) != [1, 1001]:
                assert time.monotonic() < end, machine.log.read_text()
                time.sleep(PAUSE_SECONDS)
            problems = run_tiered("cluster", "health", "--brokers", machine.kafka).stdout
            assert f"broker {leader} of this machine found no room" in problems
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        while full_disks(address):
            assert time.monotonic() < end, machine.log.read_text()
            time.sleep(PAUSE_SECONDS)
        assert post(address, 1, {})[0] == 200


def test_certificate_setting_and_secret_change_for_all_processes(tmp_path: Path) -> None:
    key, ca = tmp_path / "machine.pem", tmp_path / "ca.pem"
    ca.write_text(AUTHORITY.certificate_pem)
    sign("CN=first", AUTHORITY).write(key)
    settings = ("listeners=SSL://127.0.0.1:0", f"ssl.keystore.location={key}", f"ssl.truststore.location={ca}")
    with ServeProcess(tmp_path / "data", *TWO, *(word for each in settings for word in ("-c", each))) as machine:
        reach = options(machine, str(ca))
        assert run_tiered("topic", "create", "t", *reach).returncode == 0
        leader = machine.ask("GET", "/topics/t")[1]["partitions"][0]["leader"]
        processes = own_addresses(machine)
        assert [name_at(kafka, ca) for _, kafka in processes.values()] == ["first", "first"]
        sign("CN=second", AUTHORITY).write(key)
        end = time.monotonic() + SECONDS
        while [name_at(kafka, ca) for _, kafka in processes.values()] != ["second", "second"]:
            assert time.monotonic() < end, machine.log.read_text()
            time.sleep(PAUSE_SECONDS)

        assert run_tiered("cluster", "config", "set", f"{RATE}=1000000", *reach).returncode == 0
        for node in processes:
            shown = run_tiered("cluster", "config", "get", RATE, "--node", f"{node}", *reach)
            assert float(shown.stdout) == 1_000_000, "the whole number of the machine"

        rotated = run_tiered("cluster", "rotate-secret", "--format", "json", *reach)
        assert rotated.returncode == 0, rotated.stderr
        for http, _ in processes.values():
            assert post(http, 1, {})[0] == 200, f"one of them is not the leader, {leader}"
