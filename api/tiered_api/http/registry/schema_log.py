"""The log of the schema registry: the topic `_schemas` with one partition, which every broker reads and may append to.

Keeps I37. A request reads the log to its end first, so it sees every write that was acknowledged before, at any broker.
A write is decided by the records below an offset, and appended only if the log still ends there: two brokers never give
one id twice. A write is acknowledged after it is committed and read back. Nothing runs between requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from tiered.coordination.internal_topic import InternalTopic, InternalTopicSize
from tiered.errors import Code, Refused, Unavailable
from tiered.hosting.conditional_append import append_at
from tiered.ids import TopicPartition
from tiered.log_limiter import LogLimiter
from tiered.metadata.effective_config import topic_config
from tiered.metadata.parts.topics import TopicImage
from tiered.ports import FileSlice
from tiered.records.batch import decode_records, encode_batch
from tiered.records.model import CONTROL, Record
from tiered.records.native import walk
from tiered.registry.records import RegistryRecord, read_record
from tiered.registry.refusals import SCHEMA_TOO_LARGE, RegistryRefused
from tiered.registry.state import RegistryState
from tiered.system.turns import each_of
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import EXPECTED_ERRORS, HttpError, to_http_error
from tiered_api.http.partitions.remote_partition import PAUSE_SECONDS, RemotePartition

log = logging.getLogger(__name__)

SCHEMAS_TOPIC = "_schemas"
TP = TopicPartition(SCHEMAS_TOPIC, 0)
REPLICATION_FACTOR = 3
CONFIGS = {"cleanup.policy": "compact"}
READ_BYTES = 256 << 10
CATCH_UP_SECONDS = 20.0
WRITE_SECONDS = 20.0
APPEND_MS = 10_000
NONCE = "tiered.nonce"
"""Header by which a broker knows its own record again."""
STORE_ERROR, TIMED_OUT = 50001, 50002

T = TypeVar("T")


class _Fold:
    """The state of the log below `next_offset`, as read from one topic and leader epoch."""

    def __init__(self, source: tuple[str, int] = ("", -1), next_offset: int = -1) -> None:
        self.state = RegistryState()
        self.source = source
        self.next_offset = next_offset


class SchemaLog:
    """The state of the registry at this broker, and the way of records into the log."""

    def __init__(self, context: HttpContext) -> None:
        broker = context.broker
        self._context = context
        self._rng = broker.world.rng.stream("schema registry")
        size = InternalTopicSize(1, REPLICATION_FACTOR)
        self._topic = InternalTopic(SCHEMAS_TOPIC, lambda: size, broker.view, broker.cluster.channel, CONFIGS)
        self._fold = _Fold()
        self._reading = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._nonce, self._has_nonce = b"", False
        self._last_refusal = ""
        self._limiter = LogLimiter(context.clock)
        self._skipped = broker.metrics.counter(
            "tiered_registry_skipped_records_total", "Records of _schemas that the schema registry does not understand."
        )
        broker.metrics.gauge(
            "tiered_registry_versions", "Versions of subjects that this broker has read from _schemas."
        ).set_function(lambda: float(self.state.versions))

    @property
    def state(self) -> RegistryState:
        """The state as this broker knows it: later writes may be missing."""
        return self._fold.state

    # -- reads --------------------------------------------------------------------------------------------------------

    async def read(self) -> RegistryState:
        """Returns the state with all writes that were acknowledged before the call. Raises `HttpError` if the log
        cannot be read in time."""
        async with self._deadline(CATCH_UP_SECONDS, "the log of the registry was not read"):
            await self._catch_up()
        return self.state

    async def read_for_records(self) -> RegistryState:
        """Does what `read` does for the validation of records. Raises `Refused` instead, with a code that clients
        repeat."""
        try:
            return await self.read()
        except EXPECTED_ERRORS as error:
            raise Refused(Code.REQUEST_TIMED_OUT, to_http_error(error).message) from None

    @asynccontextmanager
    async def _deadline(self, seconds: float, what: str) -> AsyncIterator[None]:
        try:
            async with self._context.timeout(seconds, 1.0):
                yield
        except TimeoutError:
            why = f": {self._last_refusal}" if self._last_refusal else ""
            raise HttpError(TIMED_OUT, f"{what} within {seconds:g} s{why}") from None

    async def _catch_up(self) -> None:
        """Applies the log up to its end. Reads it anew after each change of the leader: an unclean one may have
        replaced records. Requests see the old state until the new one is whole."""
        async with self._reading:
            topic = self._context.broker.image.topics.get(SCHEMAS_TOPIC)
            if topic is None:
                self._fold = _Fold()
                return
            partition, fold = self._open(topic), self._fold
            source = (topic.topic_id, topic.partitions[0].leader_epoch)
            start, end = await partition.fetch_bounds()
            if source != fold.source or not start <= fold.next_offset <= end:
                fold = _Fold(source, start)
            await self._read_to(fold, partition, end)
            self._fold = fold

    async def _read_to(self, fold: _Fold, partition: RemotePartition, end: int) -> None:
        while fold.next_offset < end:
            data = (await partition.read(fold.next_offset, READ_BYTES)).data
            if isinstance(data, FileSlice):
                data = data.file.pread(data.start, data.length)
            walked = walk(data)
            if walked.why or not walked.batches:
                raise Unavailable(f"{TP} has no batch at {fold.next_offset}: {walked.why or 'no data'}")
            for batch in walked.batches:
                if not batch.attributes & CONTROL:
                    async for row in each_of(decode_records(data, batch.position)):
                        self._apply(fold, row)
                fold.next_offset = max(fold.next_offset, batch.last_offset + 1)

    def _apply(self, fold: _Fold, row: Record) -> None:
        if row.offset < fold.next_offset:
            return
        fold.next_offset = row.offset + 1
        if any(name == NONCE and value == self._nonce for name, value in row.headers):
            self._has_nonce = True
        fact = read_record(row.key, row.value)
        if fact is not None:
            fold.state.apply(fact)
        elif row.value is not None:
            self._skipped.inc()
            if (suppressed := self._limiter.admit("skip")) is not None:
                log.warning(
                    "record of the schema registry skipped offset=%d key=%.200r suppressed=%d",
                    row.offset, row.key, suppressed,
                )  # fmt: skip

    def _open(self, topic: TopicImage) -> RemotePartition:
        """Returns the partition. Raises `HttpError` if the topic is not one for a registry."""
        config = topic_config(topic, self._context.broker.settings.topic_defaults())
        if len(topic.partitions) != 1 or tuple(config.cleanup_policy) != ("compact",):
            why = "needs exactly one partition and cleanup.policy=compact: it would lose schemas otherwise"
            raise HttpError(STORE_ERROR, f"the topic {SCHEMAS_TOPIC} {why}")
        return RemotePartition(self._context, TP, topic.topic_id, CATCH_UP_SECONDS)

    # -- writes -------------------------------------------------------------------------------------------------------

    async def write(self, decide: Callable[[RegistryState], tuple[Sequence[RegistryRecord], T]]) -> T:
        """Decides on the newest state, and returns the reply of the decision once its records are committed and read
        back; a decision without records changes nothing. Decides again if another broker was first.

        Raises `HttpError` with `TIMED_OUT` if the records are not confirmed in time: they may be there.
        """
        self._last_refusal = ""
        async with self._deadline(WRITE_SECONDS, "the write was not confirmed"), self._writing:
            while True:
                await self._catch_up()
                records, reply = decide(self.state)
                if not records:
                    return reply
                if SCHEMAS_TOPIC not in self._context.broker.image.topics:
                    await self._topic.ensure()
                elif await self._append(records):
                    return reply

    async def _append(self, records: Sequence[RegistryRecord]) -> bool:
        """Appends records where the state ends. Returns False if others were first. Tries the same batch at the same
        offset again while its outcome is unknown: at most one of them can be there."""
        end, now_ms = self._fold.next_offset, self._context.clock.wall_ms()
        self._nonce, self._has_nonce = self._rng.randbytes(16), False
        headers = ((NONCE, self._nonce),)
        batch = encode_batch([(now_ms, each.key, each.value, headers) for each in records])
        while True:
            try:
                await self._append_at(batch, end)
            except (Refused, Unavailable) as error:
                if isinstance(error, Refused) and error.code in (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE):
                    why = f"its record is larger than max.message.bytes of {SCHEMAS_TOPIC}"
                    raise RegistryRefused(SCHEMA_TOO_LARGE, f"the schema is too large: {why}") from None
                self._last_refusal = str(error)
            await self._catch_up()
            if self._has_nonce:
                return True
            if self._fold.next_offset > end:
                return False
            await self._context.clock.sleep(PAUSE_SECONDS)

    async def _append_at(self, batch: bytes, end: int) -> None:
        topic = self._context.broker.image.topics.get(SCHEMAS_TOPIC)
        if topic is None:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {SCHEMAS_TOPIC} was deleted")
        partition = self._open(topic)
        replica = partition.local_replica()
        if replica is not None:
            await append_at(replica, bytearray(batch), end, APPEND_MS)
            return
        leader = partition.leader()
        await self._context.remote_brokers.append_at(leader, TP, topic.topic_id, batch, end, APPEND_MS)
