"""One time as controller: the shard behind its log, and the brokers it listens to. Ends with the first slot lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tiered.controller.controller import Controller
from tiered.controller.heartbeats import Missing, Sessions
from tiered.controller.preferred_leaders import Preferring
from tiered.controller.replica_gains import Gaining
from tiered.controller.requests import ElectLeaders, FenceBroker, Reassign, Request, UnfenceBroker
from tiered.controller.runtime import Runtime
from tiered.errors import Corrupt, Fenced, Refused, Unavailable, first_cause
from tiered.metadata.changes import Change
from tiered.metadata.image import BrokerImage
from tiered.metadata.log_writer import MetadataLog
from tiered.peers import FollowAsk
from tiered.subtask import run_subtask

if TYPE_CHECKING:
    from tiered.controller.member import Cluster

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
PROBE_SECONDS = 0.5
ASK_MISSED_NS = 1_000_000_000
"""Between two questions to brokers that are fenced: whom do they hear?"""
DECIDE_SECONDS = 30.0
SPREAD_SECONDS = 1.0
DOUBT_SECONDS = 2.0


class Silent(NamedTuple):
    """The controller before, and for how long this broker had not heard it: that counts for its session."""

    node_id: int
    ms: int


class Reign:
    """`epoch` is this controller's; `progress` is set, and replaced, whenever a broker says what it has acted on."""

    def __init__(self, cluster: Cluster, controller: Controller, metadata: MetadataLog, before: Silent) -> None:
        self.epoch = metadata.epoch
        self.sessions = Sessions(cluster.session_ms * 1_000_000)
        self.progress = asyncio.Event()
        self.followed = False
        """Whether any broker has asked this controller."""
        self._missing = Missing()
        self._metadata = metadata
        self._cluster = cluster
        self._clock = cluster.clock
        self.runtime: Runtime[Request] = Runtime(
            controller, _Snapshotting(metadata, cluster), self._clock, cluster.written
        )
        self._preferring = Preferring(self._elect, lambda: cluster.image, lambda: cluster.settings, self._clock)
        self._gaining = Gaining(self._elect, lambda: cluster.image, lambda: cluster.settings, self._clock)
        self._doubted = asyncio.Event()
        self._asked_ns = self._was_asked_ns = 0
        self._before: Silent | None = before
        self._wake = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._under_way: dict[tuple[str, int], None] = {}

    async def run(self) -> None:
        """Until it is cancelled. `Fenced` when another controller has written."""
        try:
            await run_subtask(self._run(), "reign")
        except BaseExceptionGroup as errors:
            fenced = errors.subgroup(Fenced)
            if fenced is None:
                raise
            raise first_cause(fenced) from None
        finally:
            self._group = None

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self.runtime.run(), name="metadata")
            group.create_task(self._listen(), name="liveness")
            group.create_task(self._doubt(), name="doubt")
            group.create_task(self._preferring.run(), name="preferred leaders")
            group.create_task(self._gaining.run(), name="gaining")

    def doubt(self) -> None:
        """Somebody knows a newer controller."""
        self._doubted.set()

    def asked(self) -> None:
        """Somebody asks whom this broker hears: it misses its controller, or it is a later one, that misses those who
        still follow this one. That much cannot be said of a cluster that is well."""
        now_ns = self._clock.mono_ns()
        if now_ns - self._was_asked_ns >= ASK_MISSED_NS:
            self._was_asked_ns = now_ns
            self._spawn("look", self._cluster.node_id, self._look_for_another())

    @contextlib.contextmanager
    def heard(self, ask: FollowAsk) -> Iterator[None]:
        """While a broker's request is under way. One that ends with its connection may be the last."""
        now_ns, broken, self.followed = self._clock.mono_ns(), True, True
        known = self._cluster.image.brokers.get(ask.node_id)
        if not self.sessions.asks(ask.node_id, ask.incarnation, ask.applied, now_ns):
            self._wake.set()
        progress, self.progress = self.progress, asyncio.Event()
        progress.set()
        fenced = known is not None and known.fenced and known.alive and known.incarnation == ask.incarnation
        if fenced and ask.applied >= self._cluster.image.slot:
            self._decide("unfence", ask.node_id, UnfenceBroker(ask.node_id, ask.incarnation))
        try:
            yield
            broken = False
        finally:
            self.sessions.answered(ask.node_id, ask.incarnation, self._clock.mono_ns(), broken=broken)
            if broken:
                self.probe(ask.node_id)

    async def decide(self, request: Request, timeout: float) -> Any:
        """The controller's reply, once it is committed; `Refused` as `Runtime.submit` has it."""
        return await self.runtime.submit(request, timeout)

    async def spread(self, slot: int) -> None:
        """Returns once every broker that is heard has acted on `slot`, or after a moment: a topic is ready for every
        client when its creation is answered, where its leaders are quick."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SPREAD_SECONDS):
                while not self.sessions.applied_by_all(slot):
                    await self.progress.wait()

    # -- listening ----------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            self._wake.clear()
            image, own = self._cluster.image, self._cluster.node_id
            live = [each for each in image.brokers.values() if each.live and each.node_id != own]
            self.sessions.expect(((each.node_id, each.incarnation) for each in live), self._clock.mono_ns())
            if self._before is not None:
                self.sessions.was_silent(self._before.node_id, self._before.ms * 1_000_000, self._clock.mono_ns())
                self._before = None
            self._free_self(image.brokers.get(own))
            missed = [each.node_id for each in image.brokers.values() if each.alive and each.fenced]
            if not len(self.sessions) and not missed:
                await self._wake.wait()
                continue
            now_ns = self._clock.mono_ns()
            expired = self.sessions.expired(now_ns)
            if now_ns - self._asked_ns >= ASK_MISSED_NS:
                self._asked_ns = now_ns
                # Who cannot write fences nobody, and still misses those that follow somebody else.
                for node_id in [*missed, *(node_id for node_id, _ in expired)]:
                    self._ask_missed(node_id)
            for node_id in self.sessions.suspects(now_ns):
                self.probe(node_id)
            if self._missing.look_is_due([*missed, *self.sessions.silent(now_ns)], now_ns):
                self._spawn("look", own, self._look_for_another())
            for node_id, incarnation in expired:
                if self._decide("fence", node_id, FenceBroker(node_id, incarnation)):
                    log.warning("broker is not heard node_id=%d", node_id)
            await self._clock.sleep(TICK_SECONDS)

    def grown(self) -> None:
        """The image has: there may be others to listen to."""
        self._wake.set()
        self._preferring.grown()
        self._gaining.grown()

    def _free_self(self, own: BrokerImage | None) -> None:
        """Another controller did not hear this broker; the one that it is itself does."""
        if own is not None and own.fenced and own.alive and own.incarnation == self._cluster.incarnation:
            self._decide("unfence", own.node_id, UnfenceBroker(own.node_id, own.incarnation))

    def probe(self, node_id: int) -> None:
        """Looks whether its process is gone."""
        incarnation = self.sessions.incarnation(node_id)
        address = self._cluster.address_of(node_id)
        if incarnation is not None and address:
            self._spawn("probe", node_id, self._look(node_id, incarnation, address))

    async def _look(self, node_id: int, incarnation: str, address: str) -> None:
        """A process that has ended need not be waited for."""
        peers = self._cluster.peers
        if peers is None or not await peers.is_gone(address, PROBE_SECONDS):
            return
        if self._decide("fence", node_id, FenceBroker(node_id, incarnation)):
            log.warning("broker is gone node_id=%d address=%s", node_id, address)

    async def _look_for_another(self) -> None:
        """Whom it does not hear may follow a newer controller, which it cannot ask about where it is cut off itself. It
        must not tell its clients for long that it leads."""
        try:
            await self._metadata.look()
        except Fenced:
            self.doubt()
        except (Unavailable, Corrupt) as error:
            log.info("whether there is a newer controller is asked again why=%s", error)

    def _ask_missed(self, node_id: int) -> None:
        address = self._cluster.address_of(node_id)
        if address:
            self._spawn("ask", node_id, self._ask(address))

    async def _ask(self, address: str) -> None:
        """Whom it does not hear may be heard by a newer controller: after a cut each of the two misses somebody, and a
        bucket that is asked once a minute would leave them both in place for so long."""
        peers = self._cluster.peers
        if peers is None:
            return
        try:
            answer = await peers.heard(address, PROBE_SECONDS)
        except (Unavailable, Refused, Corrupt):
            return
        if answer.controller_epoch > self.epoch:
            self.doubt()

    def _decide(self, what: str, node_id: int, request: Request) -> bool:
        return self._spawn(what, node_id, self._submit(node_id, request))

    async def _submit(self, node_id: int, request: Request) -> None:
        try:
            await self.runtime.submit(request, DECIDE_SECONDS)
        except Refused as refused:
            kind = type(request).__name__
            log.warning("decision about a broker comes later request=%s node_id=%d why=%s", kind, node_id, refused)

    def _spawn(self, what: str, node_id: int, work: Coroutine[Any, Any, None]) -> bool:
        """One of a kind at a time: whether it has begun."""
        key = (what, node_id)
        if self._group is None or key in self._under_way:
            work.close()
            return False
        try:
            task = self._group.create_task(work, name=what)
        except RuntimeError:  # the group is ending
            work.close()
            return False
        self._under_way[key] = None
        task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return True

    async def _elect(self, request: ElectLeaders | Reassign) -> Any:
        return await self.runtime.submit(request, DECIDE_SECONDS)

    async def _doubt(self) -> None:
        await self._doubted.wait()
        with contextlib.suppress(TimeoutError):  # who waits for an entry shall hear that it lost its slot, if it did
            async with asyncio.timeout(DOUBT_SECONDS):
                while self.runtime.pending:
                    await self._clock.sleep(TICK_SECONDS)
        raise Fenced(f"a controller newer than epoch {self.epoch} is there")


class _Snapshotting:
    """The metadata log of a controller, with a snapshot of what is committed whenever a replay would grow long."""

    def __init__(self, metadata: MetadataLog, cluster: Cluster) -> None:
        self._metadata = metadata
        self._cluster = cluster

    async def append(self, changes: Sequence[Change]) -> int:
        if self._metadata.snapshot_due:
            try:
                await self._metadata.snapshot(self._cluster.image)
            except (Unavailable, Corrupt) as error:
                log.warning("metadata snapshot comes later why=%s", error)
        return await self._metadata.append(changes)
