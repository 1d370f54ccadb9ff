"""A cluster inside the process of a test: topics, facts to wait for, faults to order, and the time.

Its brokers run on one event loop in a thread of their own. They are the brokers of `tiered serve`, with sockets, logs
on disk and all rules. The bucket is in memory. A test may call from any thread; calls return when the thing is done.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import tempfile
import threading
import time
from asyncio import run_coroutine_threadsafe
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from tiered.config.settings import Settings
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import PartitionImage
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.object_store.faulty import Faults
from tiered.object_store.memory import MemoryStore
from tiered.testing.in_process import SESSION_MS, SETTINGS, InProcessBroker
from tiered.testing.late_network import Delay
from tiered.testing.movable_time import MovableClock, MovableLoop
from tiered.testing.rest import RequestFailed, ask

T = TypeVar("T")
CALL_SECONDS = 60.0
POLL_SECONDS = 0.003
NEW_LEADER_SECONDS = 10.0
STEP_SECONDS = SESSION_MS / 1000 / 4
"""The time moves by as much at once: less than the session timeout of brokers, which none of them may miss."""


class FactTimeout(AssertionError):
    """A fact that a test waits for did not become true in time."""


class Record(NamedTuple):
    """One record of a topic. `key` and `value` are bytes, or None; `timestamp_ms` counts from 1970."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class TieredCluster:
    """Brokers with numbers from 1 on, which are ready. `cluster` makes one and ends it."""

    def __init__(self, brokers: int = 1, settings: Mapping[str, Any] | None = None) -> None:
        chosen = _choose_settings(brokers, settings or {})
        self._process = os.getpid()
        self._loop = MovableLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tiered-testing", daemon=True)
        self._folder = tempfile.mkdtemp(prefix="tiered-testing-")
        self._faults, self._delay = Faults(reply_seconds=0.05), Delay()
        clock = MovableClock(self._loop)
        bucket = MemoryStore(clock)
        self._brokers = {
            number: InProcessBroker(
                replace(chosen, node_id=number, data_dir=os.path.join(self._folder, f"broker-{number}")),
                bucket, clock, self._faults, self._delay,
            )
            for number in range(1, brokers + 1)
        }  # fmt: skip
        self._thread.start()
        try:
            for broker in self._brokers.values():
                self._call(broker.start())
            self.wait_until(lambda: all(len(each.broker.image.brokers) == brokers for each in self._running()))
        except BaseException:
            self.close()
            raise

    # -- addresses ----------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of each running broker, with commas: what Kafka clients want."""
        return ",".join(broker.kafka_address for broker in self._running())

    @property
    def http_url(self) -> str:
        """The address of a running broker over HTTP."""
        return self._any_running().http_url

    @property
    def http_urls(self) -> list[str]:
        """The addresses of all running brokers over HTTP."""
        return [broker.http_url for broker in self._running()]

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Sends a request over HTTP, and returns the reply: JSON as values, and text as it is. docs/reference/http.md
        lists them."""
        return ask(self.http_url, method, path, body, kind)

    # -- topics -------------------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, *, replication_factor: int | None = None, **settings: object
    ) -> None:
        """Creates a topic. Settings have Kafka's names with underscores: `cleanup_policy="compact"`."""
        copies = min(3, len(self._brokers)) if replication_factor is None else replication_factor
        configs = [{"name": each.replace("_", "."), "value": _to_text(value)} for each, value in settings.items()]
        body = {"topic_name": name, "partitions_count": partitions, "replication_factor": copies, "configs": configs}
        self.ask("POST", f"{self._v3()}/topics", body)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic."""
        self.ask("DELETE", f"{self._v3()}/topics/{quote(name, safe='')}")

    def topics(self) -> list[str]:
        """Returns the names of all topics but the internal ones, sorted."""
        return sorted(name for name in self._image().topics if not name.startswith("__"))

    def produce(
        self, topic: str, value: bytes | str | None, key: bytes | str | None = None, *, partition: int | None = None,
        headers: Mapping[str, bytes | str | None] | None = None,
    ) -> int:  # fmt: skip
        """Writes one record with acks=all. Returns its offset. A text is written as UTF-8."""
        body: dict[str, Any] = {"value": _to_binary(value), "key": _to_binary(key)}
        if partition is not None:
            body["partition_id"] = partition
        if headers:
            body["headers"] = [{"name": name, "value": _to_base64(data)} for name, data in headers.items()]
        report = self.ask("POST", f"{self._v3()}/topics/{quote(topic, safe='')}/records", body)
        if report.get("error_code") != 200:
            raise AssertionError(f"a record of {topic} was refused: {report.get('message')}")
        return int(report["offset"])

    def records(self, topic: str, partition: int = 0, offset: int | None = None) -> list[Record]:
        """Returns the committed records of a partition from an offset on (None: from its start)."""
        found: list[Record] = []
        self.end_offset(topic, partition)  # a new leader may not know yet what is committed
        offset = self.start_offset(topic, partition) if offset is None else offset
        path = f"/topics/{quote(topic, safe='')}/partitions/{partition}/records"
        while True:
            page = self.ask("GET", f"{path}?offset={offset}&format=binary")
            found += [_to_record(partition, row) for row in page["records"]]
            if page["next_offset"] == offset or page["next_offset"] >= page["last_stable_offset"]:
                return found
            offset = page["next_offset"]

    # -- facts --------------------------------------------------------------------------------------------------------

    def start_offset(self, topic: str, partition: int = 0) -> int:
        """Returns the first offset that can be read."""
        return self._offset(topic, partition, "log_start_offset")

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """Returns the offset behind the last committed record."""
        return self._offset(topic, partition, "high_watermark")

    def cold_end_offset(self, topic: str, partition: int = 0) -> int:
        """Returns the offset behind the last record that is in the bucket."""
        return self._offset(topic, partition, "cold_end_offset")

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        """Returns the committed offset of a group; None if it has none, or if there is no such group."""
        rows = self._group(group)["partitions"]
        found = [row["current_offset"] for row in rows if (row["topic"], row["partition"]) == (topic, partition)]
        return int(found[0]) if found and found[0] is not None else None

    def members(self, group: str) -> int:
        """Returns how many members a group has: 0 if there is no such group."""
        return len(self._group(group)["members"])

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """Returns the number of the broker that leads a partition; None if none does."""
        leader = self._partition(topic, partition).leader
        return None if leader == NO_LEADER else leader

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        """Returns the numbers of the brokers that are in sync."""
        return set(self._partition(topic, partition).isr)

    def coordinator(self, group: str) -> int | None:
        """Returns the number of the broker that coordinates a group; None before the first group of the cluster."""
        if OFFSETS_TOPIC not in self._image().topics:
            return None
        return self.leader(OFFSETS_TOPIC, self._coordinator_partition(group))

    def wait_until(self, fact: Callable[[], T | None], seconds: float = 30.0) -> T:
        """Returns the first true value of `fact`. Raises `FactTimeout` if there is none for so long.

        The seconds are those of the machine, and not of the cluster. A refusal of a broker counts as false, and so does
        a topic or partition that is not there.
        """
        deadline, last = time.monotonic() + seconds, ""
        while True:
            try:
                value = fact()
                if value:
                    return value
                last = repr(value)
            except (RequestFailed, LookupError, OSError) as error:  # a fact may ask for what is not there yet
                last = f"{type(error).__name__}: {error}"
            if time.monotonic() > deadline:
                raise FactTimeout(f"not true after {seconds:.0f} s; the last value is {last}")
            time.sleep(POLL_SECONDS)

    # -- time ---------------------------------------------------------------------------------------------------------

    def advance(self, **span: float) -> None:
        """Moves the time of all brokers forward: `advance(days=7, hours=1)`, as `timedelta` takes it.

        Retention, sessions of groups, timeouts of transactions and of requests become due at once. Clients keep the
        time of the machine: a consumer that misses its session joins again. Returns when all brokers are back at work.
        """
        left = timedelta(**span).total_seconds()
        if left < 0:
            raise ValueError("the time of a cluster moves forward only")
        while left > 0:
            self._call(self._move(min(left, STEP_SECONDS)))
            left -= STEP_SECONDS
            self.wait_until(lambda: all(each.is_in_contact(STEP_SECONDS * 500) for each in self._running()))

    def now_ms(self) -> int:
        """Returns the time of the brokers, in milliseconds since 1970."""
        return (time.time_ns() + self._loop.ahead_ns) // 1_000_000

    async def _move(self, seconds: float) -> None:
        self._loop.move(seconds)

    # -- faults -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def bucket_away(self) -> Iterator[None]:
        """Lets every request to the bucket fail meanwhile. Changes of topics wait for it, and fail after 30 s."""
        before, self._faults.outage = self._faults.outage, True
        try:
            yield
        finally:
            self._faults.outage = before

    @contextlib.contextmanager
    def bucket_slow(self, seconds: float) -> Iterator[None]:
        """Lets every request to the bucket take so much longer meanwhile."""
        before, self._faults.first_byte_seconds = self._faults.first_byte_seconds, _check_delay(seconds)
        try:
            yield
        finally:
            self._faults.first_byte_seconds = before

    @contextlib.contextmanager
    def clients_delayed(self, seconds: float) -> Iterator[None]:
        """Delivers what Kafka clients send so much later meanwhile: records, fetches, heartbeats."""
        before, self._delay.seconds = self._delay.seconds, _check_delay(seconds)
        try:
            yield
        finally:
            self._delay.seconds = before

    def kill(self, number: int) -> None:
        """Kills a broker: nobody hears of it, and what was not flushed is still in its log."""
        self._call(self._broker(number, is_running=True).end(clean=False))

    def stop(self, number: int) -> None:
        """Stops a broker cleanly: others lead its partitions."""
        self._call(self._broker(number, is_running=True).end(clean=True))

    def start(self, number: int) -> None:
        """Starts a broker again that was killed or stopped, on its logs and at its addresses."""
        self._call(self._broker(number, is_running=False).start())

    def lose_leader(self, topic: str, partition: int = 0) -> int:
        """Kills the leader of a partition. Returns its number, once another broker leads if another one is in sync."""
        lost = self._wait_for_leader(topic, partition)
        others = self.in_sync(topic, partition) - {lost}
        self.kill(lost)
        if others:
            self.wait_until(lambda: self.leader(topic, partition) in others)
        return lost

    def move_leader(self, topic: str, partition: int = 0) -> int:
        """Gives a partition to another leader that is in sync, while all brokers run. Returns its number."""
        old = self._wait_for_leader(topic, partition)
        others = sorted(self.in_sync(topic, partition) - {old})
        if not others:
            raise ValueError(f"{topic}-{partition} has no other replica in sync: a cluster of more brokers is needed")
        replicas = [others[0], *(each for each in self._partition(topic, partition).replicas if each != others[0])]
        path = f"/tiered/v1/topics/{quote(topic, safe='')}"
        self.ask("POST", f"{path}/reassignments", {"partitions": [{"partition": partition, "replicas": replicas}]})
        self.wait_until(lambda: tuple(replicas) == self._partition(topic, partition).replicas)
        self.ask("POST", f"{path}/elections", {"election_type": "PREFERRED", "partitions": [partition]})
        self.wait_until(lambda: self.leader(topic, partition) == others[0])
        return others[0]

    def move_coordinator(self, group: str) -> int:
        """Gives a group to another coordinator, while all brokers run. Returns its number."""
        if self.coordinator(group) is None:
            raise ValueError(f"group {group} has no coordinator yet")
        return self.move_leader(OFFSETS_TOPIC, self._coordinator_partition(group))

    # -- end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends all brokers and removes their files."""
        if self._loop.is_closed() or self._process != os.getpid():
            return  # a process that a test forked has no brokers to end
        try:
            # Each pause of a stop is over at once: nothing has to survive.
            ends = [run_coroutine_threadsafe(each.end(clean=False), self._loop) for each in self._running()]
            deadline = time.monotonic() + CALL_SECONDS
            while not all(end.done() for end in ends) and time.monotonic() < deadline:
                self._call(self._move(1.0))
            for end in ends:
                end.result(0)
        finally:
            for broker in self._brokers.values():
                broker.release_addresses()
            self._call(_cancel_others())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_SECONDS)
            self._loop.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_use()
        except RuntimeError:
            work.close()
            raise
        future = run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(CALL_SECONDS)
        except TimeoutError:
            if future.cancel():
                raise TimeoutError(f"the brokers did not do this within {CALL_SECONDS:.0f} s, and gave it up") from None
            raise

    def _running(self) -> list[InProcessBroker]:
        return [broker for broker in self._brokers.values() if broker.is_running]

    def _check_use(self) -> None:
        if self._loop.is_closed():
            raise RuntimeError("the cluster has ended: its brokers are gone")
        if self._process != os.getpid():
            raise RuntimeError("the cluster belongs to the process that forked this one: use its addresses here")

    def _any_running(self) -> InProcessBroker:
        """Returns a broker that runs. Raises `LookupError` if all were killed or stopped: a test may start one again
        while another thread waits."""
        self._check_use()
        running = self._running()
        if not running:
            raise LookupError("no broker of the cluster runs: start(number) starts one again")
        return running[0]

    def _broker(self, number: int, *, is_running: bool) -> InProcessBroker:
        """Returns a broker. Raises `ValueError` if there is none with that number, or if it is in the other state."""
        found = self._brokers.get(number)
        if found is None:
            raise ValueError(f"there is no broker {number}: the cluster has the brokers 1 to {len(self._brokers)}")
        if found.is_running != is_running:
            raise ValueError(f"broker {number} {'does not run' if is_running else 'runs already'}")
        return found

    def _v3(self) -> str:
        return f"/v3/clusters/{self._any_running().broker.cluster_id}"

    def _image(self) -> Any:
        self._any_running()
        return max((each.broker.image for each in self._running()), key=lambda image: image.slot)

    def _partition(self, topic: str, partition: int) -> PartitionImage:
        found = self._image().topics.get(topic)
        if found is None:
            raise LookupError(f"there is no topic {topic}")
        if not 0 <= partition < len(found.partitions):
            raise LookupError(f"topic {topic} has no partition {partition}")
        image: PartitionImage = found.partitions[partition]
        return image

    def _wait_for_leader(self, topic: str, partition: int) -> int:
        """Returns the leader of a partition once it has one. Raises `LookupError` at once if there is no such one."""
        self._partition(topic, partition)
        return self.wait_until(lambda: self.leader(topic, partition))

    def _offset(self, topic: str, partition: int, name: str) -> int:
        """Returns an offset, once the leader knows it: a new one learns from its followers what is committed."""
        deadline = time.monotonic() + NEW_LEADER_SECONDS
        row = self._storage(topic, partition)
        while row["high_watermark"] is None:
            if time.monotonic() > deadline:
                raise LookupError(f"the leader of {topic}-{partition} does not know yet what is committed")
            time.sleep(POLL_SECONDS)
            row = self._storage(topic, partition)
        return int(row[name] or 0)

    def _storage(self, topic: str, partition: int) -> Any:
        rows = self.ask("GET", f"/tiered/v1/topics/{quote(topic, safe='')}/storage")["partitions"]
        found = [row for row in rows if row["partition"] == partition]
        if not found:
            raise LookupError(f"topic {topic} has no partition {partition}")
        if "error" in found[0]:
            raise LookupError(f"the offsets of {topic}-{partition} are not known: {found[0]['error']}")
        return found[0]

    def _group(self, group: str) -> Any:
        try:
            return self.ask("GET", f"/tiered/v1/groups/{quote(group, safe='')}")
        except RequestFailed as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return {"partitions": [], "members": []}

    def _coordinator_partition(self, group: str) -> int:
        hosts = self._any_running().broker.group_coordinators.host
        return self._call(hosts.partition_for(group))


async def _cancel_others() -> None:
    """Cancels the tasks that brokers leave to the end of their process."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _choose_settings(brokers: int, given: Mapping[str, Any]) -> Settings:
    """Returns the settings of the brokers. Raises `Refused` for a name or value that `tiered serve` refuses too."""
    if brokers < 1:
        raise ValueError(f"a cluster has at least one broker, not {brokers}")
    copies = min(3, brokers)
    usual = replace(
        SETTINGS, default_replication_factor=copies, offsets_topic_replication_factor=copies,
        transaction_state_log_replication_factor=copies, transaction_state_log_min_isr=min(2, copies),
        share_coordinator_state_topic_replication_factor=copies,
        share_coordinator_state_topic_min_isr=min(2, copies),
    )  # fmt: skip
    return Settings.from_strings({name.replace("_", "."): _to_text(each) for name, each in given.items()}, usual)


@contextlib.contextmanager
def cluster(brokers: int = 1, **settings: Any) -> Iterator[TieredCluster]:
    """Yields a cluster of so many brokers that are ready. Settings have Kafka's names with underscores, and values of
    Python: `cluster(3, min_insync_replicas=2)`. All that it holds is gone at the end."""
    made = TieredCluster(brokers, settings)
    try:
        yield made
    finally:
        made.close()


def _check_delay(seconds: float) -> float:
    if not seconds >= 0:
        raise ValueError(f"a delay is 0 s or longer, not {seconds}")
    return seconds


def _to_text(value: object) -> str:
    """Returns the value of a setting as Kafka's files write it: lists with commas."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _to_binary(data: bytes | str | None) -> dict[str, str | None] | None:
    return None if data is None else {"type": "BINARY", "data": _to_base64(data)}


def _to_base64(data: bytes | str | None) -> str | None:
    if data is None:
        return None
    if not isinstance(data, (bytes, str)):
        raise TypeError(f"a record has bytes or text, not {type(data).__name__}: {data!r:.40}")
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def _to_record(partition: int, row: Mapping[str, Any]) -> Record:
    headers = tuple((each["name"], _from_base64(each["value"])) for each in row["headers"])
    return Record(
        partition, row["offset"], _from_base64(row["key"]), _from_base64(row["value"]), headers, row["timestamp"]
    )


def _from_base64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
