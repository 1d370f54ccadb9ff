"""This broker's role in the cluster: active controller, or standby that follows the controller's metadata log.

Rules: M2 (steps down for good after a lost slot), M5 (acts on committed entries) and R6 (`has_controller_contact`).
Requests of this broker to the controller are in `channel`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from tiered.controller.active import ActiveController
from tiered.controller.channel import ControllerChannel
from tiered.controller.clock_skew import describe_clocks, describe_own_clock
from tiered.controller.controller import Controller
from tiered.controller.member_view import MemberView
from tiered.controller.request_codec import decode_request, encode_reply
from tiered.controller.requests import AnnounceBroker, CreatePartitions, CreateTopic, CreateTopics, Quorum, Request
from tiered.controller.silence_watch import LastContact
from tiered.controller.standby import OnClockCompared, StandbyController
from tiered.errors import Code, Fenced, Refused, Unavailable
from tiered.ids import TopicId
from tiered.log_limiter import StateLogLimiter
from tiered.metadata.dynamic_config import DynamicBrokerConfig
from tiered.metadata.image import Image
from tiered.metadata.loader import ApplyImage, MetadataLoader, OnChanges
from tiered.metadata.log_writer import MetadataLog
from tiered.metadata.parts.brokers import inter_broker_address
from tiered.peers import ClockComparison, ControllerView, ForwardReply, MetadataFetch, MetadataFetchReply, Peers
from tiered.ports import World

log = logging.getLogger(__name__)

REACH_SECONDS = 3.0
"""Longest time for the controller to connect to a broker that announces its addresses."""


class ClusterMember:
    """One broker's membership: `active_controller` is set while this broker is the controller, else `standby` follows
    one.

    `view` is what this broker knows of the cluster, `channel` sends its requests to the controller. The owner calls
    `start`, opens the channel, then keeps `run` and `loader.run` running. An error of either ends the broker.
    """

    def __init__(
        self,
        incarnation: str,
        config: DynamicBrokerConfig,
        world: World,
        peers: Peers | None,
        metadata: MetadataLog,
        apply_image: ApplyImage,
        on_changes: OnChanges,
        draw_id: Callable[[], TopicId],
        on_clock_compared: OnClockCompared,
        active_key: Callable[[], str] = lambda: "",
    ) -> None:
        self.loader = MetadataLoader(apply_image, on_changes, self._on_image)
        self.view = MemberView(incarnation, config, self.loader, world.clock)
        self._peers = peers
        self._clock = world.clock
        self._metadata = metadata
        self._draw_id = draw_id
        rng = world.rng.stream("cluster")
        self.channel = ControllerChannel(self.view, self, peers, world.clock, rng)
        self.active_controller: ActiveController | None = None
        self._candidacy_log = StateLogLimiter(world.clock)
        self._is_candidacy_late = False
        """True if an attempt to replace the controller took too long since the controller could last write."""
        self.standby = StandbyController(self.view, peers, world.store, world.clock, rng, on_clock_compared, active_key)
        self._active_key = active_key

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def is_controller(self) -> bool:
        """True if this broker is the active controller."""
        return self.active_controller is not None

    @property
    def has_controller_contact(self) -> bool:
        """True if this broker is the controller and was not paused, or had contact with the controller within a session
        timeout (R6)."""
        active = self.active_controller
        return active.has_contact if active is not None else self.standby.has_controller_contact

    def describe_contact(self) -> str:
        """Returns why this broker has no contact with the controller; "" if it has."""
        if self.has_controller_contact:
            return ""
        if self.active_controller is not None:
            return (
                "this broker was paused while it was controller: it acknowledges nothing with acks=all until the bucket"
                " shows that no other broker took over"
            )
        controller, seconds = self.view.image.controller, self.standby.silent_ms / 1000
        if controller == self.view.node_id:
            return f"no contact with a controller for {seconds:.0f} s: this broker was the last one that it knows"
        return f"no contact with the controller (broker {controller}) for {seconds:.0f} s"

    @property
    def pending(self) -> int:
        """Number of requests that this broker, as controller, has decided and the bucket has not confirmed."""
        return self.active_controller.runtime.pending if self.active_controller is not None else 0

    def clock_comparisons(self) -> dict[int, ClockComparison]:
        """Returns how far clocks are ahead of the controller's, by broker: as controller those of all other brokers,
        else that of this broker."""
        if self.active_controller is None:
            skews = {self.view.node_id: self.standby.clock_skew}
        else:
            skews = self.active_controller.heartbeats.clock_skews()
        return {node_id: skew.comparison for node_id, skew in skews.items() if skew.comparison is not None}

    def describe_clocks(self) -> tuple[list[str], list[str]]:
        """Returns the problems of this broker's clock, and those of other brokers' clocks that it finds as
        controller."""
        if self.active_controller is None:
            return describe_own_clock(self.standby.clock_skew, self.view.image.controller), []
        skews = self.active_controller.heartbeats.clock_skews()
        return describe_clocks(skews, self.view.settings.tiered_clock_skew_max_ms)

    def active_keys(self) -> list[str]:
        """Returns the ids of the keys by which brokers encrypt, as far as this broker knows them."""
        active = self.active_controller
        others = self.standby.active_keys if active is None else active.heartbeats.active_keys()
        return sorted({*others, self._active_key()} - {""})

    # -- requests of other brokers ------------------------------------------------------------------------------------

    async def handle_metadata_fetch(self, metadata_fetch: MetadataFetch) -> MetadataFetchReply:
        """Returns the next entries for another broker.

        Raises `Refused` (NOT_CONTROLLER) if this broker is not the controller.
        """
        arrived_ns, active = self._clock.mono_ns(), self._require_active()
        if metadata_fetch.controller_epoch > active.epoch:
            active.on_newer_controller()
            raise Refused(
                Code.NOT_CONTROLLER, f"controller epoch {metadata_fetch.controller_epoch} is newer than {active.epoch}"
            )
        with active.track_metadata_fetch(metadata_fetch):
            await self.loader.wait_for_slot(metadata_fetch.slot, metadata_fetch.wait_ms / 1000)
        if self._require_active() is not active:
            raise Refused(Code.NOT_CONTROLLER, f"controller epoch {active.epoch} has ended")
        entries = self.loader.recent_entries.read(metadata_fetch.slot)
        return MetadataFetchReply(
            active.epoch, self.view.image.slot + 1, tuple(entries or ()), entries is None, self._store_stalled_ms(),
            self._clock.wall_ms(), (self._clock.mono_ns() - arrived_ns) // 1_000_000,
            tuple(self.active_keys()),
        )  # fmt: skip

    async def handle_forwarded(self, request: bytes, timeout: float) -> ForwardReply:
        """Decides a request that another broker forwards. Raises `Refused` if the controller refuses the request."""
        reply = await self.decide(decode_request(request), timeout)
        return ForwardReply(encode_reply(reply, self.view.image.metadata_version), self.view.image.slot)

    def on_broker_unreachable(self, node_id: int) -> None:
        """Probes a broker that no longer replies to this one, if this broker is the controller."""
        if self.active_controller is not None:
            self.active_controller.probe(node_id)

    def controller_view(self) -> ControllerView:
        """Returns this broker's view of the controller, and who this broker is."""
        view = self.standby.controller_view()
        if self.active_controller is not None:
            self.active_controller.on_view_request()
            view = ControllerView(self.view.image.controller_epoch, self.view.image.controller, 0)
        return view._replace(node_id=self.view.node_id, incarnation=self.view.incarnation)

    async def decide(self, request: Request, timeout: float) -> Any:
        """Decides a request as controller. Raises `Refused`, with NOT_CONTROLLER if this broker is none."""
        active = self._require_active()
        if isinstance(request, AnnounceBroker):
            await self._check_reachable(request)
        reply = await active.decide(request, timeout)
        if isinstance(request, CreateTopic | CreateTopics | CreatePartitions):
            await active.wait_until_applied(self.view.image.slot)
        return active.add_progress(reply) if isinstance(reply, Quorum) else reply

    async def _check_reachable(self, request: AnnounceBroker) -> None:
        """Raises `Refused` (BROKER_NOT_AVAILABLE) if the controller cannot connect to the broker that announces itself.

        Such a broker would lead partitions that no other broker could copy and no client could use.
        """
        address = inter_broker_address(request.listeners, self.view.settings.inter_broker_listener_name)
        if self._peers is None or request.node_id == self.view.node_id or not address:
            return
        try:
            await self._peers.check_listening(address, REACH_SECONDS)
        except Unavailable as error:
            why = f"broker {request.node_id} cannot be reached at its advertised.listeners by the controller"
            raise Refused(Code.BROKER_NOT_AVAILABLE, f"{why} (broker {self.view.node_id}): {error}") from None

    def _require_active(self) -> ActiveController:
        if self.active_controller is None or self.loader.has_ended:
            raise Refused(Code.NOT_CONTROLLER, f"broker {self.view.node_id} is not the controller")
        return self.active_controller

    def _store_stalled_ms(self) -> int:
        since = self._metadata.unconfirmed_since_ns
        return (self._clock.mono_ns() - since) // 1_000_000 if since >= 0 else 0

    # -- start, run and take over -------------------------------------------------------------------------------------

    async def start(self, image: Image) -> None:
        """Finds the controller of `image`, which was just read from the bucket, or becomes controller.

        Waits until one is found.
        """
        self.loader.cluster_id = self._metadata.cluster_id
        self.loader.load_image(image)
        while self.active_controller is None:
            if self.standby.is_alone():
                await self.try_take_over()
            elif await self.standby.fetch_metadata(wait_ms=0):
                break
            elif await self.standby.on_controller_lost():
                await self.try_take_over()
        self.loader.start_from(image)

    async def run(self) -> None:
        """Runs as controller or as standby until it is cancelled."""
        pauses = asyncio.ensure_future(self.standby.watch_pauses()) if self._peers is not None else None
        try:
            while True:
                if self.active_controller is not None:
                    await self._run_active(self.active_controller)
                elif self._peers is None:
                    raise Fenced("another controller writes to this store")
                elif await self.standby.fetch_metadata(self.view.heartbeat_ms):
                    self._is_candidacy_late = False
                else:
                    await self._on_controller_lost()
        finally:
            self.loader.end()
            if pauses is not None:
                pauses.cancel()

    async def _on_controller_lost(self) -> None:
        """Becomes candidate if this broker has to.

        A controller that replies, but cannot write to the bucket, counts each fetch as a heartbeat. So the attempt ends
        after a third of a session timeout, or three fifths of a suspect timeout: a bucket that is slow or
        unreachable for all costs no broker its contact.
        """
        is_stalled = self.standby.is_store_stalled
        limit = min(self.view.session_ms / 3000, self.view.suspect_ms * 3 / 5000) if is_stalled else None
        try:
            async with asyncio.timeout(limit):
                if await self.standby.on_controller_lost():
                    await self.try_take_over()
        except TimeoutError:
            seconds = self._candidacy_log.admit(is_start=not self._is_candidacy_late)
            self._is_candidacy_late = True
            if seconds is not None:
                log.warning("candidacy ended: the bucket confirms nothing in time here either seconds=%d", seconds)
        if is_stalled:
            self.standby.on_attempt_ended()

    async def check_store(self) -> None:
        """Checks that the bucket still holds this cluster, and as controller that no other controller has written
        since.

        Makes one request. Raises `Unavailable`, `Corrupt`, or `Refused` if the bucket holds another cluster.
        """
        if self.active_controller is None:
            await self._metadata.verify_cluster()
        else:
            await self._check_controller(self._metadata.check_superseded)

    async def confirm_controller(self) -> bool:
        """Returns True if this broker is the controller: no other one has written to the metadata log before this
        call. So the image has all that brokers were told before it.

        Raises `Unavailable`, `Corrupt`, or `Refused` if the bucket holds another cluster.
        """
        return await self._check_controller(self._metadata.confirm_newest)

    async def _check_controller(self, check: Callable[[], Awaitable[None]]) -> bool:
        active = self.active_controller
        if active is None:
            return False
        try:
            await check()
        except Fenced:
            active.on_newer_controller()
            return False
        return self.active_controller is active

    async def try_take_over(self) -> None:
        """Tries to become controller, for two session timeouts at most.

        An attempt that is given up may still land: its entry is then the next one in the log, or it has no effect.
        """
        try:
            async with asyncio.timeout(2 * self.view.session_ms / 1000):
                await self._take_over()
        except TimeoutError:
            log.warning("candidacy ended: the bucket did not confirm it in time why=%s", self._metadata.last_error)
        except Fenced as error:
            log.info("candidacy lost: another broker is controller why=%s", error)
            await self.standby.try_catch_up()

    async def _take_over(self) -> None:
        last_contact = LastContact(
            self.view.image.controller, self.standby.silent_ms, self.standby.is_controller_silent
        )
        await self._metadata.take_over(self.view.image, self.view.node_id, self.view.incarnation)
        self.loader.append_entries(self._metadata.takeover_entries)  # standbys get these from memory
        image = self.view.image
        controller = Controller(image, self.view.config.startup, self._draw_id)
        self.active_controller = ActiveController(
            self.view, self._peers, self._clock, controller, self._metadata, last_contact
        )

    async def _run_active(self, active: ActiveController) -> None:
        """Runs the controller until another controller has won a slot, then catches up as standby."""
        try:
            await active.run()
        except Fenced as error:
            log.warning("controller steps down epoch=%d why=%s", active.epoch, error)
        finally:
            self.active_controller = None
            self.standby.reset(was_followed=active.was_followed)
            self.loader.wake_waiters()
        with suppress(TimeoutError):  # if the bucket does not reply, other brokers name the new controller
            async with asyncio.timeout(self.view.session_ms / 1000):
                await self.standby.try_catch_up()

    def _on_image(self) -> None:
        self.view.on_image()
        self.channel.on_image()
        if self.active_controller is not None:
            self.active_controller.on_image()
