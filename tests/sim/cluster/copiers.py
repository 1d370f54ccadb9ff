"""Consume-transform-produce: each copier reads committed records of its partition, and writes one record for each
together with the offset that it has reached, in one transaction. After any unknown outcome it begins at the committed
offset."""

from __future__ import annotations

import asyncio
import random

from tests.sim.cluster.committed_reader import CommittedReader
from tests.sim.cluster.transactional_client import Outcome, TransactionalSession
from tests.sim.harness.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.client.leader_routing import send_to_coordinator
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

CHAIN = "chain"
"""The group of all copiers."""
REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
ABORT_SHARE, NEW_ID_SHARE = 0.15, 0.5
RETRY_SECONDS = 0.3


async def fetch_chain_offset(client: KafkaClient, tp: TopicPartition, *, stable: bool) -> int:
    """Returns the committed offset of the chain, like `fetch_group_offset`."""
    return await fetch_group_offset(client, CHAIN, tp, stable=stable)


async def fetch_group_offset(client: KafkaClient, group_id: str, tp: TopicPartition, *, stable: bool) -> int:
    """Returns the committed offset of a group; -1 for none. Raises `Refused`, with UNSTABLE_OFFSET_COMMIT if a stable
    one is wanted and a transaction is open."""
    topics = [OffsetFetchRequestTopics(tp.topic, partition_indexes=[tp.partition])]
    request = OffsetFetchRequest(
        group_id=group_id, topics=None, groups=[OffsetFetchRequestGroup(group_id, topics=topics)], require_stable=stable
    )
    got = await send_to_coordinator(
        client, group_id, request, OffsetFetchResponse, lambda each: each.groups[0].error_code
    )
    group = got.groups[0]
    if group.error_code:
        raise to_refused(group.error_code, group_id)
    answer = group.topics[0].partitions[0]
    if answer.error_code:
        raise to_refused(answer.error_code, str(tp))
    return answer.committed_offset


class Copier:
    """Copies one partition into another until `working` is unset. A copy is the number of the transaction, a colon and
    the value."""

    def __init__(
        self, session: TransactionalSession, reader: CommittedReader, loop: SimLoop, source: TopicPartition,
        target: TopicPartition,
    ) -> None:  # fmt: skip
        self.name = session.name
        self.working = True
        self.source = source
        self.target = target
        self.position = 0
        """Offset up to which all records are copied."""
        self._session = session
        self._ids = 0
        self._reader = reader
        self._loop = loop
        self._rng = random.Random(f"{loop.seed}/{session.name}")

    async def work(self) -> None:
        while self.working:
            try:
                await self._copy_from_committed()
            except REQUEST_ERRORS:
                self._session.abandon()
            await asyncio.sleep(RETRY_SECONDS)
        await self._session._client.close()

    async def _copy_from_committed(self) -> None:
        """Copies until an outcome is unknown. A new transactional id does not fence the one before: only the stable
        offset keeps the copier from what that one may still commit."""
        if self._rng.random() < NEW_ID_SHARE:
            self._ids += 1
            self._session = self._session.renew(f"{self.name}.{self._ids}")
        if not await self._session.init():
            return
        offset = await self._fetch_stable_offset()
        self.position = max(offset, 0)
        while self.working:
            poll = await self._reader.poll(self.source, self.position)
            if poll.next_offset == self.position:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if not await self._copy([value for _, value in poll.rows], poll.next_offset):
                return

    async def _fetch_stable_offset(self) -> int:
        while True:
            try:
                return await fetch_chain_offset(self._session._client, self.source, stable=True)
            except Refused as refused:
                if refused.code is not Code.UNSTABLE_OFFSET_COMMIT or not self.working:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def _copy(self, values: list[bytes], next_offset: int) -> bool:
        """Writes the copies and the offset in one transaction. False if the copier has to begin anew."""
        session = self._session
        session.begin()
        steps = [self._write_copies, self._commit_offset]
        if self._rng.random() < 0.5:
            steps.reverse()
        for step in steps:
            if not await step(values, next_offset):
                session.abandon()
                return False
        outcome = await session.end(self._rng.random() >= ABORT_SHARE)
        if outcome is Outcome.COMMITTED:
            self.position = next_offset
        return outcome is Outcome.COMMITTED

    async def _write_copies(self, values: list[bytes], next_offset: int) -> bool:
        transaction = self._session.transaction
        assert transaction is not None
        copies = [b"%d:%s" % (transaction.number, value) for value in values]
        return not values or await self._session.write(self.target, copies)

    async def _commit_offset(self, values: list[bytes], next_offset: int) -> bool:
        return await self._session.commit_offsets(CHAIN, {self.source: next_offset})
