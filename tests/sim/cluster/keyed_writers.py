"""Writers over HTTP with idempotency keys: each sends its request again, to any broker, until it gets the reply, and
some send it again after that. The handlers run in the processes of the brokers, without their sockets."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from tests.sim.cluster.key_checker import KeyedRequest, Place
from tests.sim.cluster.world import SimHost, SimWorld
from tests.sim.harness.loop import SimLoop, process_context
from tiered.broker.broker import Broker
from tiered.ids import TopicPartition
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import EXPECTED_ERRORS, KEY_REUSED, HttpError, to_http_error
from tiered_api.http.exchange.limits import HttpLimits
from tiered_api.http.partitions.idempotency import IdempotencyKeys, make_key
from tiered_api.http.partitions.produce import append_many, find_topic
from tiered_api.http.partitions.record_formats import ProducerRecord
from tiered_api.http.transactions.body import TopicRecord, TransactionBody
from tiered_api.http.transactions.commit import NO_TOPIC, commit_once
from tiered_api.http.transactions.transactional_ids import TransactionalIds

TRANSACTION_SHARE, CANCEL_SHARE = 0.6, 0.5
APPEND_MS = 3_000
WAIT_SECONDS = (0.0, 0.02, 0.2, 2.0, 10.0)
"""Times for which a client waits for the reply of one try."""
PAUSE_SECONDS = (0.0, 0.1, 1.0, 5.0)
"""Pauses before a request is sent again that has its reply."""
RETRY_SECONDS = 0.3
TIMESTAMP = 1_700_000_000_000


class KeyedWriter:
    """One client that sends request after request until `working` is unset."""

    def __init__(
        self, name: str, world: SimWorld, topic: str, partitions: int, rate: float, history: list[KeyedRequest]
    ) -> None:
        self.name = name
        self.working = True
        self.counts: Counter[str] = Counter()
        self._world = world
        self._loop: SimLoop = world.loop
        self._topic = topic
        self._partitions = partitions
        self._rate = rate
        self._history = history
        self._rng = random.Random(f"{self._loop.seed}/{name}")
        self._sites: dict[Broker, HttpContext] = {}

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(self._rng.expovariate(self._rate))
            if self.working:
                await self._send_until_replied()
        for _, node in self._world.nodes():
            if node in self._sites:
                await self._sites[node].close()

    async def _send_until_replied(self) -> None:
        """Sends one request until a try has its reply, and then perhaps again."""
        rng, key = self._rng, f"{self.name}.{len(self._history)}"
        values = tuple(b"%s:%d" % (key.encode(), number) for number in range(rng.randint(1, 3)))
        partitions = [rng.choice((None, rng.randrange(self._partitions))) for _ in values]
        request = KeyedRequest(key, rng.random() < TRANSACTION_SHARE, values)
        self._history.append(request)
        while not await self._try(request, partitions):
            await asyncio.sleep(RETRY_SECONDS)
        for pause in rng.sample(PAUSE_SECONDS, rng.choice((0, 1, 2))):
            await asyncio.sleep(pause)
            self.counts["again"] += await self._try(request, partitions)

    async def _try(self, request: KeyedRequest, partitions: Sequence[int | None]) -> bool:
        """Sends the request to one broker. True if its reply came while the client waited."""
        brokers = list(self._world.nodes())
        if not brokers:
            return False
        host, node = self._rng.choice(brokers)
        task = self._loop.create_task(
            self._handle(self._site_of(host, node), request, partitions), name=host.process,
            context=process_context(host.process),
        )  # fmt: skip
        done, _ = await asyncio.wait([task], timeout=self._rng.choice(WAIT_SECONDS))
        if not done:
            self.counts["impatient"] += 1
            if self._rng.random() < CANCEL_SHARE:  # a server ends the work of a request whose connection ended
                task.cancel()
            return False
        return not task.cancelled() and task.result()

    def _site_of(self, host: SimHost, node: Broker) -> HttpContext:
        site = self._sites.get(node)
        if site is None:
            site = process_context(host.process).run(HttpContext, node, HttpLimits(append_ms=APPEND_MS))
            site.add_service(IdempotencyKeys(site))
            site.add_service(TransactionalIds(site))
            self._sites[node] = site
        return site

    async def _handle(self, site: HttpContext, request: KeyedRequest, partitions: Sequence[int | None]) -> bool:
        records = [
            ProducerRecord(partition, TIMESTAMP, None, value, ())
            for partition, value in zip(partitions, request.values, strict=True)
        ]
        try:
            handle = self._commit if request.is_transaction else self._append
            reply = await handle(site, request, records)
        except EXPECTED_ERRORS as error:
            found = to_http_error(error)
            self.counts[f"refused_{found.error_code}"] += 1
            if found.error_code == KEY_REUSED:
                request.refusals.append(found.message)
            return False
        request.replies.append(reply)
        return True

    async def _append(
        self, site: HttpContext, request: KeyedRequest, records: Sequence[ProducerRecord]
    ) -> tuple[Place, ...]:
        topic = find_topic(site, self._topic)
        key = make_key(topic.topic_id, request.key, f"/topics/{self._topic}", b"".join(request.values))
        with site.service(IdempotencyKeys).use(key):
            outcomes = await append_many(site, topic, records, key)
        errors = [outcome for outcome in outcomes if isinstance(outcome, HttpError)]
        if errors:
            raise next((error for error in errors if error.error_code == KEY_REUSED), errors[0])
        placed = (outcome for outcome in outcomes if not isinstance(outcome, HttpError))
        return tuple((TopicPartition(self._topic, each.partition), each.offset) for each in placed)

    async def _commit(
        self, site: HttpContext, request: KeyedRequest, records: Sequence[ProducerRecord]
    ) -> tuple[Place, ...]:
        key = make_key(NO_TOPIC, request.key, "/tiered/v1/transactions", b"".join(request.values))
        body = TransactionBody(tuple(TopicRecord(self._topic, record) for record in records), None)
        with site.service(IdempotencyKeys).use(key):
            written = await commit_once(site, body, key, lambda: None)
        places: dict[int, Place] = {}
        for tp, runs, placed in written:
            for run, place in zip(runs, placed, strict=True):
                places |= {number: (tp, place.base_offset + at) for at, number in enumerate(run)}
        return tuple(places[number] for number in range(len(records)))
