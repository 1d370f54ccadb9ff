"""The active controller during one controller epoch: runs the controller shard and tracks the heartbeats of brokers.

A broker without contact for a session timeout, one that is silent in every way for the suspect timeout, and one whose
process has ended are fenced. Fencing a broker by mistake costs leaderships and never a record (M4). The epoch ends when
another controller wins a log slot (M2), or when a broker reports a newer controller. Decisions about requests are in
`controller`, those about silent brokers in `heartbeats` and `suspicion`, writes to the bucket in `metadata.log_writer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tiered.controller.balancer import Balancer
from tiered.controller.controller import Controller
from tiered.controller.features import check_brokers
from tiered.controller.heartbeats import BrokerHeartbeats, UnreachableBrokers
from tiered.controller.member_view import MemberView
from tiered.controller.missing_replicas import MissingReplicas
from tiered.controller.preferred_leaders import PreferredLeaders
from tiered.controller.requests import (
    ElectLeaders,
    FenceBroker,
    Quorum,
    QuorumObserver,
    Reassign,
    RemoveExpiredTokens,
    Request,
    UnfenceBroker,
    UpdateFeatures,
)
from tiered.controller.runtime import Runtime
from tiered.controller.silence_watch import TICK_NS, LastContact, SilenceWatch
from tiered.errors import Corrupt, Fenced, Refused, Unavailable, first_cause
from tiered.metadata.changes import Change
from tiered.metadata.features import HIGHEST_METADATA_VERSION
from tiered.metadata.log_writer import MetadataLog
from tiered.metadata.parts.brokers import BrokerImage
from tiered.peers import ClockComparison, MetadataFetch, Peers
from tiered.ports import Clock
from tiered.quotas.timed_steps import TimedSteps
from tiered.spending import SPENDER
from tiered.subtask import run_subtask

log = logging.getLogger(__name__)

TICK_SECONDS = TICK_NS / 1e9
PROBE_SECONDS = 0.5
FENCED_QUERY_INTERVAL_NS = 1_000_000_000
"""Shortest time between two queries to fenced brokers for the controller that they follow."""
DECISION_SECONDS = 30.0
PROPAGATION_SECONDS = 1.0
STEP_DOWN_SECONDS = 2.0


class ActiveController:
    """The controller of `epoch`. `applied_progress` is set and replaced whenever a broker reports its applied slot."""

    def __init__(
        self,
        view: MemberView,
        peers: Peers | None,
        clock: Clock,
        controller: Controller,
        metadata: MetadataLog,
        last_contact: LastContact,
    ) -> None:
        self.epoch = metadata.epoch
        self.heartbeats = BrokerHeartbeats(view.session_ms * 1_000_000)
        self.applied_progress = asyncio.Event()
        self.was_followed = False
        """True if any broker has fetched metadata from this controller."""
        self._unreachable = UnreachableBrokers()
        self._controller = controller
        self._metadata = metadata
        self._view = view
        self._peers = peers
        self._clock = clock
        self.runtime: Runtime[Request] = Runtime(
            controller, _SnapshottingLog(metadata, view), clock, self._on_entry_committed
        )
        self._leader_balancer = Balancer(PreferredLeaders(), self._submit_balancing, view, clock)
        self._replica_balancer = Balancer(MissingReplicas(), self._submit_balancing, view, clock)
        self._silence_watch = SilenceWatch(view, peers, clock, self._spawn)
        self._newer_controller_seen = asyncio.Event()
        self._fenced_queried_ns = self._looked_ns = 0
        self._is_watched = False
        """True while other brokers are there, one of which may take over."""
        self._ticked_ns = self._paused_ns = self._pause_checked_ns = clock.mono_ns()
        """Times of the last look at the brokers, of the end of the last pause, and of the last look into the log, as it
        began, that found no newer controller."""
        self._last_contact: LastContact | None = last_contact
        self._wake = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._running_tasks: dict[tuple[str, int], None] = {}

    async def run(self) -> None:
        """Runs the controller until it is cancelled. Raises `Fenced` when another controller has written to the log."""
        try:
            await run_subtask(self._run(), "active controller")
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
            group.create_task(self._commit_changes(), name="metadata")
            group.create_task(self._monitor_brokers(), name="liveness")
            group.create_task(self._await_newer_controller(), name="newer controller")
            group.create_task(self._leader_balancer.run(), name="preferred leaders")
            group.create_task(self._replica_balancer.run(), name="missing replicas")
            self._watch_tokens()

    async def _commit_changes(self) -> None:
        SPENDER.set(self._view.change_time)  # the task has a context of its own
        await TimedSteps(self.runtime.run(), self._view.change_time, self._clock.mono_ns)

    @property
    def has_contact(self) -> bool:
        """False if another broker is controller, or may have become it while this process was paused, until a look into
        the log finds none. This broker must acknowledge nothing meanwhile (R6)."""
        if self._newer_controller_seen.is_set() or self._pause_checked_ns < self._paused_ns:
            return False
        return not self._is_watched or self._clock.mono_ns() - self._ticked_ns < self._pause_max_ns

    @property
    def _pause_max_ns(self) -> int:
        """Others take over after the suspect timeout, which may have begun before the pause."""
        return self._view.suspect_ms * 500_000

    def on_newer_controller(self) -> None:
        """Ends this controller soon: another broker or the bucket reports a higher controller epoch."""
        self._newer_controller_seen.set()

    def on_view_request(self) -> None:
        """Checks the log for a newer controller, because another broker requests the view.

        Brokers send this request only in trouble. Either the sender has lost its controller, or it is a newer
        controller that misses brokers which still follow this one.
        """
        self._look_for_newer_controller()

    def _look_for_newer_controller(self) -> None:
        """Starts a check of the log, at most once a second."""
        now_ns = self._clock.mono_ns()
        if now_ns - self._looked_ns >= FENCED_QUERY_INTERVAL_NS:
            self._looked_ns = now_ns
            self._spawn("look", self._view.node_id, self._check_newer_controller())

    @contextlib.contextmanager
    def track_metadata_fetch(self, metadata_fetch: MetadataFetch) -> Iterator[None]:
        """Records a broker's fetch while it is in progress.

        If it ends with its connection, checks whether the broker is gone.
        """
        now_ns, connection_lost, self.was_followed = self._clock.mono_ns(), True, True
        known = self._view.image.brokers.get(metadata_fetch.node_id)
        if not self.heartbeats.begin_fetch(
            metadata_fetch.node_id, metadata_fetch.incarnation, metadata_fetch.applied, now_ns, self._view.image.slot
        ):
            self._wake.set()
        self._silence_watch.brokers.on_heard(metadata_fetch.node_id, metadata_fetch.incarnation, now_ns)
        if known is not None and known.incarnation == metadata_fetch.incarnation:
            self.heartbeats.note_metadata_version(metadata_fetch.incarnation, metadata_fetch.metadata_version)
        self.heartbeats.note_active_key(metadata_fetch.node_id, metadata_fetch.incarnation, metadata_fetch.active_key)
        if metadata_fetch.clock is not None:
            self._judge_clock(metadata_fetch, metadata_fetch.clock)
        progress, self.applied_progress = self.applied_progress, asyncio.Event()
        progress.set()
        fenced = known is not None and known.fenced and known.alive and known.incarnation == metadata_fetch.incarnation
        if fenced and metadata_fetch.applied >= self._view.image.slot:
            self._decide(
                "unfence", metadata_fetch.node_id, UnfenceBroker(metadata_fetch.node_id, metadata_fetch.incarnation)
            )
        try:
            yield
            connection_lost = False
        finally:
            self.heartbeats.end_fetch(
                metadata_fetch.node_id,
                metadata_fetch.incarnation,
                self._clock.mono_ns(),
                connection_lost=connection_lost,
            )
            if connection_lost:
                self.probe(metadata_fetch.node_id)

    def _judge_clock(self, metadata_fetch: MetadataFetch, clock: ClockComparison) -> None:
        max_ms = self._view.settings.tiered_clock_skew_max_ms
        changed = self.heartbeats.judge_clock(metadata_fetch.node_id, metadata_fetch.incarnation, clock, max_ms)
        if changed is not None:
            log.log(
                logging.WARNING if changed else logging.INFO,
                "clock of a broker differs%s node_id=%d ahead_seconds=%.1f error_seconds=%.2f",
                "" if changed else " no more", metadata_fetch.node_id, clock.ahead_ms / 1000, clock.error_ms / 1000,
            )  # fmt: skip

    async def decide(self, request: Request, timeout: float) -> Any:
        """Returns the controller's reply after its changes are committed. Raises `Refused` like `Runtime.submit`."""
        if isinstance(request, UpdateFeatures):
            own = {self._view.incarnation: HIGHEST_METADATA_VERSION}
            check_brokers(self._controller.image, request, {**self.heartbeats.metadata_versions(), **own})
        return await self.runtime.submit(request, timeout)

    def add_progress(self, quorum: Quorum) -> Quorum:
        """Adds what the observers have applied, and the times of their fetches."""
        now_ns = self._clock.mono_ns()

        def wall_ms(at_ns: int) -> int:
            return quorum.now_ms - (now_ns - at_ns) // 1_000_000 if at_ns >= 0 else -1

        observers = []
        for each in quorum.observers:
            progress = self.heartbeats.fetch_progress(each.node_id)
            times = wall_ms(progress.fetched_ns), wall_ms(progress.caught_up_ns)
            observers.append(QuorumObserver(each.node_id, progress.applied_slot, *times))
        return replace(quorum, slot=self._view.image.slot, observers=tuple(observers))

    async def wait_until_applied(self, slot: int) -> None:
        """Returns once every broker with a session has applied `slot`, or after one second at most.

        A topic is therefore ready for every client when the reply to its creation is sent, if its leaders are quick.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROPAGATION_SECONDS):
                while not self.heartbeats.is_applied_by_all(slot):
                    await self.applied_progress.wait()

    # -- brokers ------------------------------------------------------------------------------------------------------

    async def _monitor_brokers(self) -> None:
        while True:
            self._wake.clear()
            image, own = self._view.image, self._view.node_id
            live = [each for each in image.brokers.values() if each.live and each.node_id != own]
            now_ns = self._clock.mono_ns()
            self.heartbeats.set_live_brokers([(each.node_id, each.incarnation) for each in live], now_ns)
            self._silence_watch.brokers.set_live_brokers([(each.node_id, each.incarnation) for each in live], now_ns)
            if self._last_contact is not None:
                self.heartbeats.backdate_contact(
                    self._last_contact.node_id, self._last_contact.silent_ms * 1_000_000, now_ns
                )
                self._silence_watch.backdate(self._last_contact, now_ns)
                self._last_contact = None
            self._unfence_self(image.brokers.get(own))
            fenced_ids = [each.node_id for each in image.brokers.values() if each.alive and each.fenced]
            if not len(self.heartbeats) and not fenced_ids:
                self._is_watched = False
                await self._wake.wait()
                continue
            if self._is_watched and now_ns - self._ticked_ns >= self._pause_max_ns:
                self._paused_ns = now_ns
            self._ticked_ns, self._is_watched = now_ns, True
            if self._pause_checked_ns < self._paused_ns:
                self._look_for_newer_controller()
            expired = self.heartbeats.expired_sessions(now_ns)
            if now_ns - self._fenced_queried_ns >= FENCED_QUERY_INTERVAL_NS:
                self._fenced_queried_ns = now_ns
                # A controller that cannot write fences no broker. Brokers of expired sessions may follow a newer one.
                for node_id in [*fenced_ids, *(node_id for node_id, _ in expired)]:
                    self._query_fenced_broker(node_id)
            for node_id in self.heartbeats.take_probes_due(now_ns):
                self.probe(node_id)
            unreachable = [*fenced_ids, *self.heartbeats.silent_brokers(now_ns, self._pause_max_ns)]
            if self._unreachable.is_log_check_due(unreachable, now_ns):
                self._spawn("look", own, self._check_newer_controller())
            expired = list(dict.fromkeys([*expired, *self._silence_watch.find_silent(now_ns)]))
            # One decision for all, and one at a time: brokers that are lost together stay eligible together (I10).
            if expired and self._spawn(
                "fence", own, self._submit(expired[0][0], FenceBroker(*expired[0], tuple(expired[1:])))
            ):
                for node_id, _ in expired:
                    log.warning("broker is silent, is fenced node_id=%d", node_id)
            await self._clock.sleep(TICK_SECONDS)

    def on_image(self) -> None:
        """Looks for brokers to track, and for leaderships and replicas to balance, after the image has changed."""
        self._wake.set()
        self._leader_balancer.on_image()
        self._replica_balancer.on_image()
        self._watch_tokens()

    def _watch_tokens(self) -> None:
        if self._view.image.delegation_tokens:
            self._spawn("tokens", self._view.node_id, self._remove_expired_tokens())

    async def _remove_expired_tokens(self) -> None:
        """Removes expired delegation tokens now and then, as long as there are any tokens."""
        while self._view.image.delegation_tokens:
            await self._clock.sleep(self._view.settings.delegation_token_expiry_check_interval_ms / 1000)
            try:
                while await self.runtime.submit(RemoveExpiredTokens(), DECISION_SECONDS):
                    log.info("expired delegation tokens are removed left=%d", len(self._view.image.delegation_tokens))
            except Refused as refused:
                log.warning("expired delegation tokens are removed later why=%s", refused)

    def _unfence_self(self, own: BrokerImage | None) -> None:
        """Unfences this broker: an earlier controller lost contact with it and fenced it."""
        if own is not None and own.fenced and own.alive and own.incarnation == self._view.incarnation:
            self._decide("unfence", own.node_id, UnfenceBroker(own.node_id, own.incarnation))

    def probe(self, node_id: int) -> None:
        """Starts a check of whether the broker's process has ended."""
        incarnation = self.heartbeats.incarnation(node_id)
        address = self._view.address_of(node_id)
        if incarnation is not None and address:
            self._spawn("probe", node_id, self._fence_if_gone(node_id, incarnation, address))

    async def _fence_if_gone(self, node_id: int, incarnation: str, address: str) -> None:
        """Fences a broker at once if its process has ended: its session timeout need not be waited for."""
        if self._peers is None or not await self._peers.is_gone(address, PROBE_SECONDS):
            return
        if self._decide("fence", node_id, FenceBroker(node_id, incarnation)):
            log.warning("broker process has ended, is fenced node_id=%d address=%s", node_id, address)

    async def _check_newer_controller(self) -> None:
        """Reads the next slot of the log to find a newer controller.

        Brokers that are silent may follow a newer controller. If this broker is cut off, it can reach none of them. It
        must not tell its clients for long that it leads.
        """
        began_ns = self._clock.mono_ns()
        try:
            await self._metadata.check_next_slot()
            self._pause_checked_ns = began_ns
        except Fenced:
            self.on_newer_controller()
        except (Unavailable, Corrupt) as error:
            log.info("check for a newer controller failed, is repeated why=%s", error)

    def _query_fenced_broker(self, node_id: int) -> None:
        address = self._view.address_of(node_id)
        if address:
            self._spawn("ask", node_id, self._query_controller_view(address))

    async def _query_controller_view(self, address: str) -> None:
        """Queries a silent broker for the controller that it follows.

        After a network partition two controllers can each miss some brokers. The bucket is checked only once a minute,
        so both would stay for that long.
        """
        if self._peers is None:
            return
        try:
            view = await self._peers.get_controller_view(address, PROBE_SECONDS)
        except (Unavailable, Refused, Corrupt):
            return
        if view.controller_epoch > self.epoch:
            self.on_newer_controller()

    def _decide(self, kind: str, node_id: int, request: Request) -> bool:
        return self._spawn(kind, node_id, self._submit(node_id, request))

    async def _submit(self, node_id: int, request: Request) -> None:
        try:
            await self.runtime.submit(request, DECISION_SECONDS)
        except Refused as refused:
            kind = type(request).__name__
            log.warning(
                "decision about a broker failed, is repeated request=%s node_id=%d why=%s", kind, node_id, refused
            )

    def _spawn(self, kind: str, node_id: int, work: Coroutine[Any, Any, None]) -> bool:
        """Starts `work` if no other task of this kind for this broker runs. Returns True if `work` was started."""
        key = (kind, node_id)
        if self._group is None or key in self._running_tasks:
            work.close()
            return False
        try:
            task = self._group.create_task(work, name=kind)
        except RuntimeError:  # the group is ending
            work.close()
            return False
        self._running_tasks[key] = None
        task.add_done_callback(lambda _: self._running_tasks.pop(key, None))
        return True

    async def _on_entry_committed(self, changes: Sequence[Change], slot: int) -> None:
        """Adds an entry that this controller has committed to the loader."""
        self._view.loader.append_own(changes, slot, self._metadata.newest_body)

    async def _submit_balancing(self, request: ElectLeaders | Reassign) -> Any:
        return await self.runtime.submit(request, DECISION_SECONDS)

    async def _await_newer_controller(self) -> None:
        await self._newer_controller_seen.wait()
        with contextlib.suppress(TimeoutError):  # pending requests get the outcome of their slot if it is known in time
            async with asyncio.timeout(STEP_DOWN_SECONDS):
                while self.runtime.pending:
                    await self._clock.sleep(TICK_SECONDS)
        raise Fenced(f"a newer controller than that of epoch {self.epoch} exists")


class _SnapshottingLog:
    """The metadata log of a controller; writes a snapshot of the committed image before an append if one is due."""

    def __init__(self, metadata: MetadataLog, view: MemberView) -> None:
        self._metadata = metadata
        self._view = view

    async def append(self, changes: Sequence[Change]) -> int:
        if self._metadata.is_snapshot_due:
            try:
                await self._metadata.write_snapshot(self._view.image)
            except (Unavailable, Corrupt) as error:
                log.warning("metadata snapshot failed, is repeated why=%s", error)
        return await self._metadata.append(changes)
