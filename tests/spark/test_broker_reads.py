"""Tests of reads from the brokers of a cluster without Spark: redirects, waits, new leaders, bounds by time."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import confluent_kafka
import pytest

from pyspark_tiered.delta.table_form import Advance
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.log import broker as broker_module
from pyspark_tiered.log import broker_http
from pyspark_tiered.log.broker import BrokerClient
from pyspark_tiered.log.login import HttpLogin
from pyspark_tiered.log.offsets import CUT, Cut
from pyspark_tiered.log.plan import LiveSplit
from pyspark_tiered.reader import TieredReader
from pyspark_tiered.source import check_options
from tests.e2e.http_cluster import HttpCluster, run
from tests.e2e.serving import ServeProcess
from tests.refusal import refuses
from tests.scenario import run_by
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicId
from tiered.security.secret import Secret
from tiered_api.cli.main import main

TOPIC = "t"
STATE = f"/tiered/v1/topics/{TOPIC}/partitions/0"
BOUNDS = {
    "topic_id": "id",
    "log_start_offset": 0,
    "last_stable_offset": 7,
    "high_watermark": 7,
    "cold_end_offset": 0,
    "local_start_offset": 0,
    "cold_bytes": 0,
    "local_bytes": 70,
}
BUSY = {"error_code": 50003, "message": "the log takes nothing now"}


class Reply(NamedTuple):
    """A reply of a stub."""

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = MappingProxyType({})
    is_endless: bool = False


class Stub:
    """A broker that gives the replies of each path in turn, and the last one again."""

    def __init__(self, cluster_id: str) -> None:
        self.replies: dict[str, list[Reply]] = {}
        self.requests: list[tuple[str, str | None]] = []
        """Path and login of each request."""
        self.on(broker_http.NODE, Reply(body={"cluster_id": cluster_id}))
        self.has_ended = threading.Event()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub.requests.append((self.path, self.headers.get("Authorization")))
                ready = stub.replies[self.path.partition("?")[0]]
                reply = ready.pop(0) if len(ready) > 1 else ready[0]
                data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(data)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
                while reply.is_endless and not stub.has_ended.wait(0.01):
                    self.wfile.write(b" ")

            def log_message(self, *_: object) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"

    def on(self, path: str, *replies: Reply) -> None:
        self.replies[path] = list(replies)

    def logins(self, path: str) -> list[str | None]:
        return [login for each, login in self.requests if each == path]


@contextmanager
def stubs(*cluster_ids: str) -> Iterator[list[Stub]]:
    """Yields a stub for each cluster id. All have a topic of one partition."""
    running = [Stub(each) for each in cluster_ids]
    threads = [threading.Thread(target=each.server.serve_forever, args=(0.01,)) for each in running]
    for stub, thread in zip(running, threads, strict=True):
        stub.on(f"/topics/{TOPIC}/partitions", Reply(body=[{"partition": 0}]))
        stub.on(STATE, Reply(body=BOUNDS))
        thread.start()
    try:
        yield running
    finally:
        for stub, thread in zip(running, threads, strict=True):
            stub.has_ended.set()
            stub.server.shutdown()
            stub.server.server_close()
            thread.join()


def moved(location: str) -> Reply:
    return Reply(307, {"error_code": 307, "message": "broker 2 leads t-0"}, {"Location": location})


def alice(stub: Stub) -> BrokerClient:
    return BrokerClient(stub.address, login=HttpLogin(user="alice", password=Secret("pencil")))


@run_by(run, "tmp_path", numbers=(1, 2))
async def test_any_broker_of_a_cluster_serves_bounds_and_records(two: HttpCluster) -> None:
    await two.create(TOPIC, [1], [2])
    for number in (0, 1):
        for n in range(2):
            await two[number + 1].produce(TOPIC, f"{number}/{n}", partition=number)

    def read(url: str) -> list[tuple[int, int]]:
        reader = TieredReader(check_options({"bootstrap": url, "topic": TOPIC}), ("partition", "offset"))
        batches = [rows for each in reader.partitions() for rows in reader.read(each)]
        return [(row["partition"], row["offset"]) for rows in batches for row in rows.to_pylist()]

    for broker in two.brokers.values():
        found = await asyncio.to_thread(read, broker.url)
        assert sorted(found) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_cut_of_a_topic_reads_its_ranges_from_a_broker() -> None:
    with stubs("one") as (first,):
        first.on(f"/topics/{TOPIC}/partitions", Reply(body=[{"partition": 0}, {"partition": 1}]))
        first.on(STATE.replace("/0", "/1"), Reply(body=BOUNDS))
        options = {"bootstrap": first.address, "topic": TOPIC}
        cut = Cut("id", {0: (2, 7)})
        [planned] = TieredReader(check_options({**options, CUT: cut.to_option()}), ("offset",)).partitions()
        assert planned.value == LiveSplit(TOPIC, TopicId("id"), 0, 2, 7)
        older = cut._replace(topic_id="older")
        with pytest.raises(Refused, match="id older is gone, or was created again: the id is id"):
            TieredReader(check_options({**options, CUT: older.to_option()}), ("offset",)).partitions()


def test_login_follows_a_redirect_inside_the_cluster_only() -> None:
    with stubs("one", "one", "two") as (first, member, stranger):
        first.on(STATE, moved(f"http://{member.address}{STATE}"))
        assert [(each.start, each.end) for each in alice(first).topic(TOPIC).partitions] == [(0, 7)]
        assert [login is None for login in member.logins(STATE)] == [False]
        assert member.logins(broker_http.NODE) == [None]
        first.on(STATE, moved(f"http://{stranger.address}{STATE}"))
        with pytest.raises(Refused, match="of another cluster"):
            alice(first).topic(TOPIC)
        assert stranger.requests == [(broker_http.NODE, None)]


@pytest.mark.parametrize(
    "location",
    ["", "https://{0}{1}", "http://{0}/other", "http://u@{0}{1}", "{1}", "http://{0}{1}?a=1", "http://h:x{1}"],
)
def test_redirect_to_another_scheme_or_path_is_refused(location: str) -> None:
    with stubs("one", "one") as (first, member):
        first.on(STATE, moved(location.format(member.address, STATE)))
        with pytest.raises(Refused, match="http and the same path are needed"):
            alice(first).topic(TOPIC)
        assert not member.requests


def test_redirects_in_a_circle_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_http, "RETRY_SECONDS", 0)
    with stubs("one") as (first,):
        first.on(STATE, moved(f"http://{first.address}{STATE}"))
        with pytest.raises(Unavailable, match="more than 3 redirects"):
            alice(first).topic(TOPIC)


def test_busy_broker_is_asked_again_when_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_http, "PAUSE_SECONDS", 0)
    told = {"Retry-After": "0"}
    limit = {"error_code": 429, "message": "over its quota"}
    no_leader = {"error_code": 40404, "message": "no broker leads t-0 now"}
    with stubs("one") as (first,):
        first.on(STATE, Reply(429, limit, told), Reply(503, b"full", told), Reply(404, no_leader), Reply(body=BOUNDS))
        assert alice(first).topic(TOPIC).partitions[0].end == 7
        assert len(first.logins(STATE)) == 4
        first.on(STATE, Reply(429, limit, {"Retry-After": "601"}))
        begin = time.monotonic()
        with pytest.raises(Unavailable, match="over its quota; another try is allowed in 601 s"):
            alice(first).topic(TOPIC)
        monkeypatch.setattr(broker_http, "RETRY_SECONDS", 0.01)
        monkeypatch.setattr(broker_http, "PAUSE_SECONDS", 0.1)
        first.on(STATE, Reply(500, BUSY))
        with pytest.raises(Unavailable, match="takes nothing now"):
            alice(first).topic(TOPIC)
        assert time.monotonic() < begin + 30, "the limit is not waited for"


def test_broker_that_replied_before_may_be_away_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_http, "RETRY_SECONDS", 0.01)
    with stubs("one") as (first,):
        first.on(STATE, Reply(200, b"{", {"Content-Length": "99"}), Reply(body=BOUNDS))
        with pytest.raises(Unavailable, match=r"no broker replies.*IncompleteRead"):
            alice(first).topic(TOPIC)
        monkeypatch.setattr(broker_http, "RETRY_SECONDS", 60)
        monkeypatch.setattr(broker_http, "PAUSE_SECONDS", 0)
        first.on(STATE, Reply(200, b"{", {"Content-Length": "99"}), Reply(body=BOUNDS))
        assert alice(first).topic(TOPIC).partitions[0].end == 7
    begin = time.monotonic()
    with pytest.raises(Unavailable, match="no broker replies"):
        alice(first).topic(TOPIC)
    assert time.monotonic() < begin + 30, "an address that never replied may be wrong"


def test_reply_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_http, "TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(broker_http, "RETRY_SECONDS", 0)
    with stubs("one") as (first,):
        first.on(STATE, Reply(200, b"{", {"Content-Length": "1000000"}, is_endless=True))
        with pytest.raises(Unavailable, match="TimeoutError"):
            alice(first).topic(TOPIC)
        first.has_ended.set()


@pytest.mark.parametrize(
    ("status", "code", "found"),
    [
        (404, 40401, Code.UNKNOWN_TOPIC_OR_PARTITION),
        (403, 40301, Code.TOPIC_AUTHORIZATION_FAILED),
        (403, 403, Code.INVALID_REQUEST),
        (416, 41601, Code.OFFSET_OUT_OF_RANGE),
    ],
)
def test_refusal_of_a_broker_keeps_its_kind(status: int, code: int, found: Code) -> None:
    with stubs("one") as (first,):
        first.on(STATE, Reply(status, {"error_code": code, "message": "no"}))
        with refuses(found):
            alice(first).topic(TOPIC)


def test_list_of_tables_leaves_the_lag_of_a_forbidden_topic_open(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert NativeTable(f"file:{tmp_path}/{TOPIC}", TOPIC, "id").commit([], [Advance(0, -1, 2)])
    with stubs("one") as (first,):
        where = ["--warehouse", str(tmp_path), "--format", "json", "--bootstrap", first.address]
        assert main(["table", "ls", *where]) == 0
        assert json.loads(capfd.readouterr().out)["lag"] == 5
        first.on(STATE, Reply(403, {"error_code": 40301, "message": "alice may not DESCRIBE the topic t"}))
        assert main(["table", "ls", *where]) == 0
        assert json.loads(capfd.readouterr().out)["lag"] is None
        assert main(["table", "describe", TOPIC, *where]) != 0
        assert "alice may not DESCRIBE" in capfd.readouterr().err


def test_new_leader_is_asked_again_until_it_knows_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "LOOK_SECONDS", 0)
    with stubs("one") as (first,):
        first.on(STATE, Reply(body=BOUNDS | {"high_watermark": 3, "last_stable_offset": 3}), Reply(body=BOUNDS))
        assert alice(first).topic(TOPIC, "id", {0: 7}).partitions[0].end == 7
        first.on(STATE, Reply(body=BOUNDS | {"last_stable_offset": 3}))
        assert alice(first).topic(TOPIC, "id", {0: 7}).partitions[0].end == 3, "a transaction is open"
        assert alice(first).topic(TOPIC, "older", {0: 9}).partitions[0].end == 3
        monkeypatch.setattr(broker_module, "LEADER_SECONDS", 0)
        assert alice(first).topic(TOPIC, "id", {0: 9}).partitions[0].high_watermark == 7


def test_empty_reply_of_a_new_leader_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "LOOK_SECONDS", 0)
    split = LiveSplit(TOPIC, TopicId("id"), 0, 90, 100)
    records = f"/topics/{TOPIC}/partitions/0/records"
    with stubs("one") as (first,):
        first.on(records, Reply(), Reply(headers={broker_module.NEXT_OFFSET: "100"}))
        assert list(alice(first).batches(split)) == []
        assert ["timeout=5000" in path for path, _ in first.requests] == [False, True]
        first.on(records, Reply(headers={broker_module.NEXT_OFFSET: "90"}))
        with pytest.raises(Corrupt, match="no batch holds offset 90"):
            list(alice(first).batches(split))
        monkeypatch.setattr(broker_module, "LEADER_SECONDS", 0)
        first.on(records, Reply())
        with pytest.raises(Unavailable, match="no committed record at offset 90"):
            list(alice(first).batches(split))


def test_bound_before_the_end_of_a_transaction_loses_nothing(tmp_path: Path) -> None:
    now = int(time.time() * 1000)
    with ServeProcess(tmp_path / "data") as broker:
        broker.create_topic(TOPIC)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "transactional.id": "test"})
        producer.init_transactions(60)
        for value, at in (("a", now - 10_000), ("b", now + 10_000)):
            producer.begin_transaction()
            producer.produce(TOPIC, value, timestamp=at)
            producer.commit_transaction(60)
        broker.wait_for_offset(TOPIC, "last_stable_offset", 4)

        def read(**options: str) -> list[int]:
            reader = TieredReader(check_options({"bootstrap": broker.url, "topic": TOPIC, **options}), ("offset",))
            return [n for each in reader.partitions() for rows in reader.read(each) for n in rows["offset"].to_pylist()]

        assert read() == [0, 2]
        assert read(endingTimestamp=str(now - 5_000)) == [0]
        assert read(startingTimestamp=str(now - 5_000)) == [2]
        late = {"startingTimestamp": str(now + 20_000)}
        with pytest.raises(Refused, match=f"no record of {TOPIC}-0 has timestamp {now + 20_000} or a later one"):
            read(**late)
        assert read(**late, startingOffsetsByTimestampStrategy="latest") == []
