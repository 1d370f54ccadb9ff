"""DeleteRecords of partitions in use, tiered or not: what was answered stays deleted (I22)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tests.sim.cluster.expected import Expected
from tests.sim.cluster.options import Options
from tests.sim.cluster.witness import Findings
from tests.sim.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client import Client, code_of
from tiered_api.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tiered_api.kafka.routing import EARLIEST, LATEST, offsets_at

CANNOT = (Refused, Unavailable, Corrupt)
PAUSE_SECONDS = 4.0
HIGH_WATERMARK = -1


class Deletions:
    """Deletes records of the run's topics until `working` is unset."""

    def __init__(
        self,
        client: Client,
        loop: SimLoop,
        options: Options,
        tell: Callable[[str], None],
        expected: Expected,
        findings: Findings,
    ) -> None:
        self.working = True
        self.counts: dict[str, int] = {}
        self._client = client
        self._options = options
        self._tell = tell
        self._expected = expected
        self._findings = findings
        self._draw = random.Random(f"{loop.seed}/deletions")

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(self._draw.expovariate(1 / PAUSE_SECONDS))
            shape = self._draw.choice(self._options.topics)
            where = TopicPartition(shape.name, self._draw.randrange(shape.partitions))
            try:
                code = await self._delete(where)
            except CANNOT as error:
                self._tell(f"records of {where} are deleted: {error}")
                self._client.forget_leaders([where])
                continue
            name = f"{'tiered' if shape.tiered else 'untiered'}_{code.name}"
            self.counts[name] = self.counts.get(name, 0) + 1
        await self._client.close()

    async def _delete(self, where: TopicPartition) -> Code:
        """Up to some offset within the log, now and then all that is committed."""
        end = (await offsets_at(self._client, [where], LATEST))[where]
        start = (await offsets_at(self._client, [where], EARLIEST))[where]
        before = self._draw.randint(min(start, end), end)
        everything = self._draw.random() < 0.1
        asked = HIGH_WATERMARK if everything else before
        self._expected.deletes(where, None if everything else before)
        request = DeleteRecordsRequest(
            [DeleteRecordsTopic(where.topic, [DeleteRecordsPartition(where.partition, asked)])], 5_000
        )
        shares, _ = await self._client.by_leader([where])
        for node in shares:
            answer = (await self._client.ask(request, DeleteRecordsResponse, node=node)).topics[0].partitions[0]
            code = code_of(answer.error_code)
            self._tell(f"records of {where} below {asked} are deleted: {code} {answer.low_watermark}")
            if answer.error_code:
                self._client.forget_leaders([where])
                return code
            for finding in self._expected.records_deleted(where, answer.low_watermark):
                self._findings.red(*finding)
            return code
        return Code.LEADER_NOT_AVAILABLE
