"""This broker's role in the cluster: active controller, or standby that follows the controller's metadata log.

It also sends the broker's requests to the controller, wherever the controller is. Rules: M2 (steps down for good after
a lost slot), M5 (acts on committed entries) and R6 (`has_controller_contact`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tiered.config.settings import Settings
from tiered.controller.active import ActiveController, LastContact
from tiered.controller.controller import Controller
from tiered.controller.request_codec import decode_reply, decode_request, encode_reply, encode_request
from tiered.controller.requests import AnnounceBroker, CreatePartitions, CreateTopic, CreateTopics, Request
from tiered.controller.standby import StandbyController
from tiered.errors import Code, Fenced, Refused, Unavailable
from tiered.ids import TopicId
from tiered.metadata.changes import Change
from tiered.metadata.dynamic_config import DynamicBrokerConfig
from tiered.metadata.image import Image, inter_broker_address
from tiered.metadata.loader import ApplyImage, MetadataLoader, OnChanges
from tiered.metadata.log_writer import MetadataLog
from tiered.peers import ControllerView, ForwardReply, MetadataFetch, MetadataFetchReply, Peers
from tiered.ports import World

log = logging.getLogger(__name__)

PAUSE_SECONDS = (0.05, 0.5)
"""Shortest and longest pause between two attempts to submit a request to a controller."""
REACH_SECONDS = 3.0
"""Longest time for the controller to connect to a broker that announces its addresses."""


class ClusterMember:
    """One broker's membership: `active_controller` is set while this broker is the controller, else `standby` follows
    one.

    The owner calls `start`, then keeps `run` and `loader.run` running. An error of either ends the broker.
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
    ) -> None:
        self.incarnation = incarnation
        self.node_id = config.node_id
        self.peers = peers
        self.clock = world.clock
        self.rng = world.rng.stream("cluster")
        self.loader = MetadataLoader(apply_image, on_changes, self._on_image)
        self._config = config
        self._metadata = metadata
        self._draw_id = draw_id
        self.active_controller: ActiveController | None = None
        self.standby = StandbyController(self, peers, world.store)
        self._ended = False
        self._forwarded: dict[asyncio.Timeout, tuple[int, str]] = {}
        """Forwarded requests without a reply, each with the controller (node id, incarnation) that got it."""

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        """The newest committed image that this broker knows."""
        return self.loader.image

    @property
    def applied_slot(self) -> int:
        """The slot up to which this broker has applied the log."""
        return self.loader.applied_slot

    @property
    def settings(self) -> Settings:
        """The settings in force on this broker."""
        return self._config.current

    @property
    def session_ms(self) -> int:
        """Session timeout: after this time without contact, broker and controller each count the other as gone."""
        return self.settings.broker_session_timeout_ms

    @property
    def is_controller(self) -> bool:
        """True if this broker is the active controller."""
        return self.active_controller is not None

    @property
    def has_controller_contact(self) -> bool:
        """True if this broker is the controller, or had contact with it within a session timeout (R6)."""
        return self.active_controller is not None or self.standby.has_controller_contact

    @property
    def pending(self) -> int:
        """Number of requests that this broker, as controller, has decided and the bucket has not confirmed."""
        return self.active_controller.runtime.pending if self.active_controller is not None else 0

    def address_of(self, node_id: int) -> str:
        """Returns HOST:PORT of a broker for other brokers; "" if the broker has not announced it."""
        known = self.image.brokers.get(node_id)
        return known.address(self.settings.inter_broker_listener_name) if known is not None else ""

    @property
    def controller_address(self) -> str:
        """HOST:PORT of the controller; "" if it has not announced it, and if this broker is the controller."""
        image = self.image
        known = image.brokers.get(image.controller)
        if known is None or known.node_id == self.node_id or known.incarnation != image.controller_incarnation:
            return ""
        return self.address_of(image.controller)

    # -- requests of other brokers ------------------------------------------------------------------------------------

    async def handle_metadata_fetch(self, metadata_fetch: MetadataFetch) -> MetadataFetchReply:
        """Returns the next entries for another broker.

        Raises `Refused` (NOT_CONTROLLER) if this broker is not the controller.
        """
        active = self._require_active()
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
            active.epoch, self.image.slot + 1, tuple(entries or ()), entries is None, self._store_stalled_ms()
        )  # fmt: skip

    async def handle_forwarded(self, request: bytes, timeout: float) -> ForwardReply:
        """Decides a request that another broker forwards. Raises `Refused` if the controller refuses the request."""
        reply = await self._decide(decode_request(request), timeout)
        return ForwardReply(encode_reply(reply), self.image.slot)

    def on_broker_unreachable(self, node_id: int) -> None:
        """Probes a broker that no longer answers this one, if this broker is the controller."""
        if self.active_controller is not None:
            self.active_controller.probe(node_id)

    def controller_view(self) -> ControllerView:
        """Returns this broker's view of the controller, and who this broker is."""
        view = self.standby.controller_view()
        if self.active_controller is not None:
            self.active_controller.on_view_request()
            view = ControllerView(self.image.controller_epoch, self.image.controller, 0)
        return view._replace(node_id=self.node_id, incarnation=self.incarnation)

    # -- requests to the controller -----------------------------------------------------------------------------------

    async def submit(self, request: Request, timeout: float) -> Any:
        """Returns the controller's reply, after this broker has applied the change.

        Raises `Refused` with the controller's code. NOT_CONTROLLER means that no controller was found in time and
        nothing was done. REQUEST_TIMED_OUT means that the request may have been carried out.
        """
        deadline = self.clock.mono_ns() + int(timeout * 1e9)
        while True:
            left_seconds = (deadline - self.clock.mono_ns()) / 1e9
            try:
                reply, slot = await self._submit_once(request, max(left_seconds, 0.001))
                break
            except Refused as refused:
                if refused.code is not Code.NOT_CONTROLLER or self._ended or left_seconds <= PAUSE_SECONDS[1]:
                    raise
            shortest, longest = PAUSE_SECONDS
            await self.clock.sleep(shortest + (longest - shortest) * self.rng.random())
        await self.loader.wait_until_applied(slot, (deadline - self.clock.mono_ns()) / 1e9)
        if self.applied_slot < slot and self._ended:
            raise Refused(
                Code.REQUEST_TIMED_OUT, "the change is committed, but this broker stopped before it applied it"
            )
        return reply

    async def _submit_once(self, request: Request, timeout: float) -> tuple[Any, int]:
        if self.active_controller is not None:
            return await self._decide(request, timeout), self.image.slot
        address = self.controller_address
        if self.peers is None or not address:
            raise Refused(Code.NOT_CONTROLLER, "this broker knows no controller")
        sent = asyncio.Event()
        try:
            async with asyncio.timeout(None) as takeover_timeout:
                self._forwarded[takeover_timeout] = self._current_controller()
                try:
                    reply = await self.peers.forward(address, encode_request(request), timeout, sent.set)
                finally:
                    self._forwarded.pop(takeover_timeout, None)
        except TimeoutError:
            why = "another controller took over before the previous one confirmed the change"
        except Unavailable as error:
            why = f"the controller did not confirm the change: {error}"
        else:
            return decode_reply(reply.reply), reply.slot
        if not sent.is_set():
            raise Refused(Code.NOT_CONTROLLER, f"the request was not sent: {why}")
        # The controller may have written the change before it died.
        raise Refused(Code.REQUEST_TIMED_OUT, f"{why}; the change may have been made")

    async def _decide(self, request: Request, timeout: float) -> Any:
        active = self._require_active()
        if isinstance(request, AnnounceBroker):
            await self._check_reachable(request)
        reply = await active.decide(request, timeout)
        if isinstance(request, CreateTopic | CreateTopics | CreatePartitions):
            await active.wait_until_applied(self.image.slot)
        return reply

    async def _check_reachable(self, request: AnnounceBroker) -> None:
        """Raises `Refused` (BROKER_NOT_AVAILABLE) if the controller cannot connect to the broker that announces itself.

        Such a broker would lead partitions that no other broker could copy and no client could use.
        """
        address = inter_broker_address(request.listeners, self.settings.inter_broker_listener_name)
        if self.peers is None or request.node_id == self.node_id or not address:
            return
        try:
            await self.peers.check_listening(address, REACH_SECONDS)
        except Unavailable as error:
            why = f"broker {request.node_id} cannot be reached at its advertised.listeners by the controller"
            raise Refused(Code.BROKER_NOT_AVAILABLE, f"{why} (broker {self.node_id}): {error}") from None

    def _current_controller(self) -> tuple[int, str]:
        return self.image.controller, self.image.controller_incarnation

    def _require_active(self) -> ActiveController:
        if self.active_controller is None or self._ended:
            raise Refused(Code.NOT_CONTROLLER, f"broker {self.node_id} is not the controller")
        return self.active_controller

    def _store_stalled_ms(self) -> int:
        since = self._metadata.unconfirmed_since_ns
        return (self.clock.mono_ns() - since) // 1_000_000 if since >= 0 else 0

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
            else:
                await self.standby.on_controller_lost()
        self.loader.start_from(image)

    async def run(self) -> None:
        """Runs as controller or as standby until it is cancelled."""
        try:
            while True:
                if self.active_controller is not None:
                    await self._run_active(self.active_controller)
                elif self.peers is None:
                    raise Fenced("another controller writes to this store")
                elif not await self.standby.fetch_metadata(self.settings.broker_heartbeat_interval_ms):
                    await self.standby.on_controller_lost()
        finally:
            self._ended = True
            self.loader.end()

    async def check_store(self) -> None:
        """Checks that the bucket still holds this cluster, and as controller that no other controller has written
        since.

        Makes one request. Raises `Unavailable`, `Corrupt`, or `Refused` if the bucket holds another cluster.
        """
        if self.active_controller is None:
            await self._metadata.verify_cluster()
            return
        try:
            await self._metadata.check_superseded()
        except Fenced:
            if self.active_controller is not None:
                self.active_controller.on_newer_controller()

    async def try_take_over(self) -> None:
        """Tries to become controller, for two session timeouts at most.

        An attempt that is given up may still land: its entry is then the next one in the log, or it has no effect.
        """
        try:
            async with asyncio.timeout(2 * self.session_ms / 1000):
                await self._take_over()
        except TimeoutError:
            log.warning("candidacy ended: the bucket did not confirm it in time why=%s", self._metadata.last_error)
        except Fenced as error:
            log.info("candidacy lost: another broker is controller why=%s", error)
            await self.standby.try_catch_up()

    async def _take_over(self) -> None:
        last_contact = LastContact(self.image.controller, self.standby.silent_ms)
        await self._metadata.take_over(self.image, self.node_id, self.incarnation)
        self.loader.append_entries(self._metadata.takeover_entries)  # standbys get these from memory
        image = self.image
        controller = Controller(image, self._config.startup, self._draw_id)
        self.active_controller = ActiveController(self, controller, self._metadata, last_contact)

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
        with suppress(TimeoutError):  # if the bucket does not answer, other brokers name the new controller
            async with asyncio.timeout(self.session_ms / 1000):
                await self.standby.try_catch_up()

    async def on_entry_committed(self, changes: Sequence[Change], slot: int) -> None:
        """Adds an entry that this controller has committed to the loader."""
        self.loader.append_own(changes, slot, self._metadata.newest_body)

    def _on_image(self) -> None:
        for timeout, controller in list(self._forwarded.items()):
            if controller != self._current_controller():  # all its entries are known: no reply follows any more
                del self._forwarded[timeout]
                timeout.reschedule(0)
        if self.active_controller is not None:
            self.active_controller.on_image()
