"""A topic as a running broker serves it, with the newest records: bounds, look-ups by time and whole batches over HTTP.

Plain, blocking code for the driver and for tasks. It checks the CRC of every batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from pyspark_tiered.log.broker_http import JSON, BrokerHttp
from pyspark_tiered.log.login import NO_LOGIN, HttpLogin
from pyspark_tiered.log.offsets import Bound, BoundKind
from pyspark_tiered.log.plan import LiveSplit
from tiered.errors import Corrupt, Unavailable
from tiered.ids import TopicId
from tiered.records.model import WalkedBatch
from tiered.records.native import walk

LEADER_SECONDS = 30.0
"""Time in which a new leader learns how far its log is committed."""
LOOK_SECONDS = 0.25
"""Pause between two looks at a new leader."""
POLL_MS = 5_000
"""Wait of a read for records that were committed before."""
READ_BYTES = 8 << 20
RAW = "application/octet-stream"
NEXT_OFFSET = "Tiered-Next-Offset"
NOTHING: Mapping[int, int] = MappingProxyType({})


class LiveTopic(NamedTuple):
    """A topic as a broker serves it. Reads name the id: another topic may have the name by then."""

    name: str
    topic_id: TopicId
    partitions: tuple[LivePartition, ...]


class LivePartition(NamedTuple):
    """Offsets `[start, end)` that can be read. `log_bytes` is about their size.

    The high watermark is above `end` while a transaction is open.
    """

    partition: int
    start: int
    end: int
    log_bytes: int
    high_watermark: int


class BrokerClient:
    """Client of a cluster by one broker's HTTP, at `HOST:PORT`, `http://HOST:PORT` or `https://HOST:PORT`. Raises
    `Refused` and `Unavailable`.

    `read_committed`: without records of open and aborted transactions. `is_patient`: waits also if nothing replies at
    first.
    """

    def __init__(
        self, bootstrap: str, *, read_committed: bool = True, login: HttpLogin = NO_LOGIN, is_patient: bool = False
    ) -> None:
        self._end = "last_stable_offset" if read_committed else "high_watermark"
        self._isolation = "read_committed" if read_committed else "read_uncommitted"
        self._http = BrokerHttp(bootstrap, login, is_patient=is_patient)

    def topic(self, topic: str, topic_id: str = "", reached: Mapping[int, int] = NOTHING) -> LiveTopic:
        """Returns the readable offsets of each partition now.

        `reached` are ends of the topic with this id that were seen before. A new leader's high watermark may be below
        them for a moment, so this looks again for some time. An end that is still below them then is returned: records
        were lost.
        """
        give_up = time.monotonic() + LEADER_SECONDS
        while True:
            found = self._look(topic)
            ahead = [each for each in found.partitions if each.high_watermark < reached.get(each.partition, 0)]
            if not ahead or found.topic_id != topic_id or time.monotonic() > give_up:
                return found
            time.sleep(LOOK_SECONDS)

    def _look(self, topic: str) -> LiveTopic:
        found, topic_ids = list[LivePartition](), set[str]()
        for each in self._json(f"/topics/{quote(topic, safe='')}/partitions"):
            state = self._json(f"/tiered/v1/topics/{quote(topic, safe='')}/partitions/{each['partition']}")
            start, end = state["log_start_offset"], state[self._end]
            local = max(end - max(state["cold_end_offset"], state["local_start_offset"]), 0)
            share = local / max(end - state["local_start_offset"], 1)
            log_bytes = state["cold_bytes"] + round(state["local_bytes"] * share)
            found.append(LivePartition(each["partition"], start, end, log_bytes, state["high_watermark"]))
            topic_ids.add(state["topic_id"])
        if len(topic_ids) != 1:
            raise Unavailable(f"the topic {topic} was deleted or created again while its offsets were read")
        return LiveTopic(topic, TopicId(topic_ids.pop()), tuple(found))

    def offset(self, topic: LiveTopic, partition: LivePartition, bound: Bound) -> int:
        """Returns the offset that a bound means. A timestamp after the last record means the end, or is refused."""
        match bound.kind:
            case BoundKind.EARLIEST:
                return partition.start
            case BoundKind.LATEST:
                return partition.end
            case BoundKind.OFFSET:
                return bound.value
            case BoundKind.TIMESTAMP:
                # An aborted record bounds a read as well as any other.
                query: dict[str, int | str] = {"timestamp": bound.value, "max_bytes": 1, "format": "binary"}
                query["isolation_level"] = "read_uncommitted"
                query["topic_id"] = topic.topic_id
                found = self._json(_records_path(topic.name, partition.partition, query))
                # Without a record the batch is the end of a transaction, which has no row: the bound is after it.
                offset = found["records"][0]["offset"] if found["records"] else found["next_offset"]
                if offset < partition.end:
                    return int(offset)
                return bound.take_end(topic.name, partition.partition, partition.end)

    def batches(self, split: LiveSplit) -> Iterator[tuple[memoryview, list[WalkedBatch]]]:
        """Yields whole batches from the one that holds the start to the one that holds the end, some MiB at a time.

        The broker leaves out batches of aborted transactions, and then says where the next read begins.
        """
        where, offset = f"{split.topic}-{split.partition} at {self._http}", split.start
        empty_since: float | None = None
        while offset < split.end:
            query: dict[str, int | str] = {"offset": offset, "max_bytes": READ_BYTES, "topic_id": split.topic_id}
            query["isolation_level"] = self._isolation
            if empty_since is not None:
                query["timeout"] = POLL_MS
            data, following = self._read(_records_path(split.topic, split.partition, query))
            if not data and following is None:  # a new leader does not know yet that the offset is committed
                now = time.monotonic()
                empty_since = now if empty_since is None else empty_since
                if now >= empty_since + LEADER_SECONDS:
                    raise Unavailable(f"{where}: the log has no committed record at offset {offset}, where it had some")
                time.sleep(LOOK_SECONDS)
                continue
            empty_since = None
            found = walk(data)
            if following is None and found.batches:
                following = found.batches[-1].last_offset + 1
            if found.why or following is None or following <= offset:
                raise Corrupt(found.why or f"no batch holds offset {offset}", where=where, position=found.end)
            if found.batches:
                yield memoryview(data), found.batches
            offset = following

    def _json(self, path: str) -> Any:
        return json.loads(self._http.get(path, JSON).body)

    def _read(self, path: str) -> tuple[bytes, int | None]:
        """Returns whole batches, and the offset of the next read if the broker names it."""
        reply = self._http.get(path, RAW)
        following = reply.headers.get(NEXT_OFFSET)
        return reply.body, None if following is None else int(following)


def _records_path(topic: str, partition: int, query: Mapping[str, int | str]) -> str:
    return f"/topics/{quote(topic, safe='')}/partitions/{partition}/records?{urlencode(query)}"
