"""REST consumers of one group over the handlers of HTTP, which come, go and read slowly (I34).

Each client creates its consumer at the coordinator of the group, follows redirects, and reads. It deletes its consumer
now and then, forgets it, or subscribes anew, so that the group rebalances. Replies are read late, or get lost.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.sim.cluster.checkers import LossPredicate
from tests.sim.cluster.history import ReadRecord
from tests.sim.cluster.observer import Finding, patched
from tests.sim.cluster.rest_checker import RestChecker, RestReads, check_deliveries
from tests.sim.cluster.rest_server import RestCall, RestReply, RestServer, RestServers
from tiered.errors import Unavailable
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered_api.http.consumers import instance, instances, member
from tiered_api.http.exchange import context

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun

GROUP = "rest"
PATTERN = "t[0-9]|x[1-9]"
"""The topics of the run, and those of the administration, which come, grow and go."""
SESSION_MS, REBALANCE_MS = 6_000, 8_000
IDLE_SECONDS, SWEEP_SECONDS = 6.0, 2.0
INLINE_BYTES = 1 << 40
TURN_SECONDS = 6.0
"""Mean time between two turns of a client: it deletes its consumer, forgets it, or subscribes anew."""
DELETE_CHANCE, FORGET_CHANCE, COMMIT_CHANCE, LATE_CHANCE, LOST_CHANCE = 0.5, 0.2, 0.5, 0.3, 0.1
LATE_SECONDS = (0.3, 1.5, 4.0)
TIMEOUTS_MS, MAX_BYTES = (0, 100, 500), (200, 1000, 10_000)
"""The last ones are those of a consumer that stays."""
START_SECONDS, AWAY_SECONDS, RETRY_SECONDS = 6.0, 2.0, 0.4
REDIRECTS_MAX = 3
GONE, EXISTS, LOST_READS = 404, 409, 400
"""Statuses of a consumer that does not exist, of one that does, and of a commit of records that come again."""


@contextmanager
def short_lives() -> Iterator[None]:
    """Makes members and idle consumers end within a run, and no broker use a thread."""
    times: tuple[tuple[Any, str, Any], ...] = (
        (instance, "SESSION_MS", SESSION_MS),
        (member, "REBALANCE_MS", REBALANCE_MS),
        (instances, "IDLE_SECONDS", IDLE_SECONDS),
        (instances, "SWEEP_SECONDS", SWEEP_SECONDS),
        (context, "INLINE_BYTES", INLINE_BYTES),
    )
    with ExitStack() as stack:
        for owner, name, value in times:
            stack.enter_context(patched(owner, name, partial(_replace, value)))
        yield


def _replace(value: Any, _: Any) -> Any:
    return value


class RestFailed(Exception):
    """A request that got no reply, or not the wanted one."""


class RestConsumer:
    """One client. It works until `working` is unset, and then deletes its consumer."""

    def __init__(self, load: RestLoad, number: int) -> None:
        self.working = True
        self.stays = False
        """True if the consumer keeps its subscription to all topics and its connection, and reads without pauses."""
        self.positions: dict[TopicPartition, int] = {}
        """Positions after its last read; none while it has no assignment."""
        self._load = load
        self._number = number
        self._lives = 0
        self._name = f"c{number}"
        self._rng = random.Random(f"{load.seed}/rest-{number}")
        self._host = ""

    async def work(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, START_SECONDS))
        while self.working:
            try:
                await self._live()
            except RestFailed as failed:
                self._load.log_event(f"{self._name}: {failed}")
                self.positions = {}
                await asyncio.sleep(RETRY_SECONDS)
        while True:
            try:
                await self._ask("DELETE", "", wanted=(GONE,))
                return
            except RestFailed:
                await asyncio.sleep(RETRY_SECONDS)

    async def _live(self) -> None:
        """Runs one life of the consumer: from its creation until it is deleted or forgotten."""
        options = self._load.options
        settings = {
            "name": self._name,
            "format": "binary",
            "auto.offset.reset": options.rest_reset,
            "auto.commit.enable": str(options.rest_commits).lower(),
        }
        await self._ask("POST", f"/consumers/{GROUP}", settings, wanted=(EXISTS,))
        turn_ns = self._draw_turn()
        takes_all = self.stays  # it may be left, and so stay, while the request is under way
        await self._subscribe()
        all_at = self._host if takes_all else ""
        while self.working:
            # The next coordinator knows the subscription of the last rebalance only (docs/reference/http.md).
            if self.stays and all_at != self._host:
                await self._subscribe()
                all_at = self._host
            if not self.stays:
                await asyncio.sleep(self._rng.expovariate(1 / options.rest_pause_seconds))
                if self._load.now_ns() >= turn_ns:
                    turn_ns = self._draw_turn()
                    if not await self._take_turn():
                        return
            await self._read()
            if not options.rest_commits and self._rng.random() < COMMIT_CHANCE:
                await self._ask("POST", "/offsets", wanted=(LOST_READS,))

    def _draw_turn(self) -> int:
        return self._load.now_ns() + round(self._rng.expovariate(1 / TURN_SECONDS) * 1e9)

    async def _take_turn(self) -> bool:
        """Returns False if the consumer was deleted or forgotten."""
        chance = self._rng.random()
        if chance < DELETE_CHANCE:
            self.positions = {}
            await self._ask("DELETE", "", wanted=(GONE,))
            self._load.counts["deleted"] += 1
            await asyncio.sleep(self._rng.uniform(0, AWAY_SECONDS))
            return False
        if chance < DELETE_CHANCE + FORGET_CHANCE:
            self._forget()
            return False
        await self._subscribe()
        return True

    def _forget(self) -> None:
        """Leaves the consumer to its broker, which ends it once it is idle."""
        self.positions = {}
        self._lives += 1
        self._name = f"c{self._number}-{self._lives}"
        self._load.counts["forgotten"] += 1

    async def _subscribe(self) -> None:
        names = [shape.name for shape in self._load.options.topics]
        kinds: tuple[dict[str, Any], ...] = ({"topics": names}, {"topic_pattern": PATTERN}, {"topics": names[:1]})
        # A consumer that comes back has another subscription perhaps, and one that stays takes all topics.
        await self._ask("POST", "/subscription", kinds[0] if self.stays else self._rng.choice(kinds))

    async def _read(self) -> None:
        is_steady = self.stays or not self._load.options.rest_slow
        timeout_ms = TIMEOUTS_MS[-1] if self.stays else self._rng.choice(TIMEOUTS_MS)
        query = f"timeout={timeout_ms}&max_bytes={MAX_BYTES[-1] if self.stays else self._rng.choice(MAX_BYTES)}"
        seconds = 0.0 if is_steady or self._rng.random() > LATE_CHANCE else self._rng.choice(LATE_SECONDS)
        is_lost = not is_steady and self._rng.random() < LOST_CHANCE
        self._load.counts["late_replies"] += seconds > 0
        self._load.counts["lost_replies"] += is_lost
        await self._ask("GET", f"/records?{query}", read_seconds=seconds, loses_reply=is_lost)

    def _on_read(self, name: str, server: RestServer, reply: RestReply) -> None:
        """Notes the records of a reply, and from which positions it was read."""
        if reply.status != 200:
            return
        known = server.instance(GROUP, name)
        positions = {tp: spot.offset for tp, spot in known._positions.all().items()} if known is not None else {}
        rows: dict[TopicPartition, list[ReadRecord]] = {}
        for row in reply.content:
            tp = TopicPartition(row["topic"], row["partition"])
            rows.setdefault(tp, []).append(ReadRecord(row["offset"], base64.b64decode(row["value"] or "")))
        self._load.checker.on_read(rows, positions)
        self._load.counts["read"] += len(reply.content)
        self.positions = positions | {tp: records[-1].offset + 1 for tp, records in rows.items()}

    async def _ask(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        wanted: tuple[int, ...] = (),
        read_seconds: float = 0.0,
        loses_reply: bool = False,
    ) -> None:
        """Sends a request, and follows redirects to the coordinator of the group. Raises `RestFailed` if it got no
        reply, or an error that is not `wanted`."""
        servers = self._load.servers
        target = path if path.startswith("/consumers") else f"/consumers/{GROUP}/instances/{self._name}{path}"
        for _ in range(REDIRECTS_MAX):
            self._host = self._host or self._rng.choice(sorted(servers.hosts))
            call = RestCall(
                method, target, content, read_seconds=read_seconds, loses_reply=loses_reply,
                on_read=partial(self._on_read, self._name) if path.startswith("/records") else lambda *_: None,
            )  # fmt: skip
            try:
                reply = await servers.ask(servers.hosts[self._host], call)
            except (Unavailable, TimeoutError) as error:
                self._host = ""
                raise RestFailed(str(error)) from None
            self._load.counts[f"status_{reply.status}"] += 1
            if reply.status == 307:
                self._host = reply.host
            elif reply.status < 300 or reply.status in wanted:
                return
            else:
                break
        raise RestFailed(f"{method} {target}: {reply.status} {reply.content}")


class RestLoad:
    """The REST consumers of a run, and what must hold of them at the end."""

    def __init__(self, run: ClusterRun) -> None:
        self.options = run.options
        self.seed = run.options.seed
        self.counts: Counter[str] = Counter()
        self.log_event = run.world.events.add
        self.now_ns: Callable[[], int] = lambda: run.loop.now_ns
        self.servers = RestServers(run.world)
        reads = RestReads(run.options.rest_reset == "latest", run.options.rest_commits)
        self.checker = RestChecker(run.findings.report, run.manifest_start, lambda tp: tp.topic.startswith("t"), reads)
        self.consumers = [RestConsumer(self, number) for number in range(run.options.rest_consumers)]
        self._run = run
        self._ends: dict[TopicPartition, int] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observes the consumers within the context, and gives them short lives."""
        with short_lives(), self.checker.watch():
            yield

    @property
    def all_counts(self) -> dict[str, int]:
        """Counts of events."""
        return {**self.counts, **self.checker.counts}

    def begin_drain(self, ends: dict[TopicPartition, int]) -> None:
        """Leaves one consumer, which is to read up to `ends`."""
        self._ends = ends
        for each in self.consumers[1:]:
            each.working = False
        self.consumers[0].stays = True

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Returns the positions of the consumer that is left."""
        return self.consumers[0].positions

    def check(self, may_be_gone: LossPredicate) -> Iterator[Finding]:
        """I34 over the whole history. A group that begins at the end may lose its place with its committed offsets."""
        run, model = self._run, self._run.model
        lost = {model.image.topics_by_id[each.topic_id].name for each in model.image.losses}
        if self.options.rest_reset == "latest" and (OFFSETS_TOPIC in lost or model.unclean_election_times):
            return
        log_starts, lost_from = dict[TopicPartition, int](), dict[TopicPartition, int]()
        for tp in self._ends:
            partition_id = run.partition_id(tp)
            assert partition_id is not None, tp
            copies = model.copies_of(partition_id)
            log_starts[tp] = copies.log_start
            if copies.losses or copies.parted >= 0:
                lost_from[tp] = 0 if copies.parted >= 0 else min(each.from_offset for each in copies.losses)
        self.counts["judged"] += sum(
            max(0, end - max(self.checker.reads.starts.get(tp, end), log_starts[tp])) for tp, end in self._ends.items()
        )
        yield from check_deliveries(
            self.checker.reads, run.history.sends, self._ends, log_starts, lost_from, may_be_gone
        )  # fmt: skip
