"""A topic as a running broker serves it, with the newest records: bounds, look-ups by time and whole batches over HTTP.

Plain, blocking code for the driver and for tasks. It checks the CRC of every batch.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from pyspark_tiered.login import NO_LOGIN, HttpLogin
from pyspark_tiered.offsets import Bound, BoundKind
from pyspark_tiered.plan import LiveSplit
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicId
from tiered.records.model import WalkedBatch
from tiered.records.native import walk

TIMEOUT_SECONDS = 60.0
READ_BYTES = 8 << 20
RAW = "application/octet-stream"
NEXT_OFFSET = "Tiered-Next-Offset"
_CODES = {401: Code.SASL_AUTHENTICATION_FAILED, 404: Code.UNKNOWN_TOPIC_OR_PARTITION}


class LiveTopic(NamedTuple):
    """A topic as a broker serves it. Reads name the id: another topic may have the name by then."""

    name: str
    topic_id: TopicId
    partitions: tuple[LivePartition, ...]


class LivePartition(NamedTuple):
    """Offsets `[start, end)` that can be read. `log_bytes` is about their size."""

    partition: int
    start: int
    end: int
    log_bytes: int


class BrokerClient:
    """Client of one broker's HTTP, at `HOST:PORT`, `http://HOST:PORT` or `https://HOST:PORT`. Raises `Refused` and
    `Unavailable`.

    `read_committed`: without records of open and aborted transactions.
    """

    def __init__(self, bootstrap: str, *, read_committed: bool = True, login: HttpLogin = NO_LOGIN) -> None:
        self._end = "last_stable_offset" if read_committed else "high_watermark"
        self._isolation = "read_committed" if read_committed else "read_uncommitted"
        parts = urlsplit(bootstrap if "://" in bootstrap else f"//{bootstrap}")
        try:
            self._host, self._port = parts.hostname or "", parts.port or 8082
        except ValueError:
            self._host = ""
        if parts.scheme not in ("", "http", "https") or not self._host or parts.username is not None:
            raise Refused(Code.INVALID_REQUEST, "bootstrap must be HOST:PORT of a broker's HTTP, or its URL")
        self._login = login
        self._context = None
        if login.uses_tls(parts.scheme):
            self._context = login.context or ssl.create_default_context()

    def topic(self, topic: str) -> LiveTopic:
        """Returns the readable offsets of each partition now."""
        found, topic_ids = list[LivePartition](), set[str]()
        for each in self._json(f"/topics/{quote(topic, safe='')}/partitions"):
            state = self._json(f"/tiered/v1/topics/{quote(topic, safe='')}/partitions/{each['partition']}")
            start, end = state["log_start_offset"], state[self._end]
            local = max(end - max(state["cold_end_offset"], state["local_start_offset"]), 0)
            share = local / max(end - state["local_start_offset"], 1)
            log_bytes = state["cold_bytes"] + round(state["local_bytes"] * share)
            found.append(LivePartition(each["partition"], start, end, log_bytes))
            topic_ids.add(state["topic_id"])
        if len(topic_ids) != 1:
            raise Unavailable(f"the topic {topic} was deleted or created again while its offsets were read")
        return LiveTopic(topic, TopicId(topic_ids.pop()), tuple(found))

    def offset(self, topic: LiveTopic, partition: LivePartition, bound: Bound) -> int:
        """Returns the offset that a bound means. A timestamp after the last record means the end."""
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
                records = self._json(_records_path(topic.name, partition.partition, query))["records"]
                return min(records[0]["offset"], partition.end) if records else partition.end

    def batches(self, split: LiveSplit) -> Iterator[tuple[memoryview, list[WalkedBatch]]]:
        """Yields whole batches from the one that holds the start to the one that holds the end, some MiB at a time.

        The broker leaves out batches of aborted transactions, and then says where the next read begins.
        """
        where, offset = f"{split.topic}-{split.partition} at {self._host}:{self._port}", split.start
        while offset < split.end:
            query: dict[str, int | str] = {"offset": offset, "max_bytes": READ_BYTES, "topic_id": split.topic_id}
            query["isolation_level"] = self._isolation
            data, following = self._get(_records_path(split.topic, split.partition, query), RAW)
            found = walk(data)
            if following is None and found.batches:
                following = found.batches[-1].last_offset + 1
            if found.why or following is None or following <= offset:
                raise Corrupt(found.why or f"no batch holds offset {offset}", where=where, position=found.end)
            if found.batches:
                yield memoryview(data), found.batches
            offset = following

    def _json(self, path: str) -> Any:
        return json.loads(self._get(path, "application/json")[0])

    def _get(self, path: str, accept: str) -> tuple[bytes, int | None]:
        """Returns the body, and the offset in the header for the next read if there is one."""
        headers = {"Accept": accept, **self._login.make_headers()}
        connection = self._connect()
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"no broker replies at {self._host}:{self._port}: {error!r}") from None
        finally:
            connection.close()
        if response.status != 200:
            raise _to_error(response.status, body)
        following = response.headers.get(NEXT_OFFSET)
        return body, None if following is None else int(following)

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_SECONDS, context=self._context)


def _records_path(topic: str, partition: int, query: Mapping[str, int | str]) -> str:
    return f"/topics/{quote(topic, safe='')}/partitions/{partition}/records?{urlencode(query)}"


def _to_error(status: int, body: bytes) -> Refused | Unavailable:
    """Returns the error in the broker's own words."""
    try:
        why = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        why = f"status {status}"
    if status >= 500:
        return Unavailable(why)
    return Refused(_CODES.get(status, Code.INVALID_REQUEST), why)
