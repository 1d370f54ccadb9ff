"""This broker among the others: it follows the controller's metadata log, or is the controller itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tiered.config.settings import Settings
from tiered.controller.active import Reign, Silent
from tiered.controller.controller import Controller
from tiered.controller.request_codec import decode_reply, decode_request, encode_reply, encode_request
from tiered.controller.requests import AnnounceBroker, CreatePartitions, CreateTopic, CreateTopics, Request
from tiered.controller.standby import Following
from tiered.errors import Code, Fenced, Refused, Unavailable
from tiered.ids import text_id
from tiered.metadata.changes import Change
from tiered.metadata.image import Image, address_in
from tiered.metadata.loader import Act, Committed
from tiered.metadata.log_writer import MetadataLog
from tiered.peers import FollowAnswer, FollowAsk, HeardAnswer, Peers, SubmitAnswer

if TYPE_CHECKING:
    from tiered.broker.broker import Node

log = logging.getLogger(__name__)

PAUSE_SECONDS = (0.05, 0.5)
REACH_SECONDS = 3.0
"""Between two tries to find somebody who takes a request."""


class Cluster:
    """Either `reign` is there and this broker is the controller, or `following` follows one.

    Whoever starts calls `begin`, then keeps `run` and `committed.carry_out` running; an error of one of these ends the
    broker."""

    def __init__(self, node: Node, metadata: MetadataLog, act: Act) -> None:
        self._node = node
        self._metadata = metadata
        self.clock = node.world.clock
        self.chance = node.world.rng.stream("cluster")
        self.committed = Committed(act, node.told, self._grown)
        self.reign: Reign | None = None
        self.following = Following(self, node.peers, node.store)
        self._ended = False
        self._asking: dict[asyncio.Timeout, tuple[int, str]] = {}
        """Requests that a controller (node id, incarnation) has not answered yet."""

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        """What is committed, as far as this broker has heard."""
        return self.committed.image

    @property
    def applied(self) -> int:
        """The slot up to which this broker has acted."""
        return self.committed.applied

    @property
    def node_id(self) -> int:
        return self._node.settings.node_id

    @property
    def incarnation(self) -> str:
        return self._node.incarnation

    @property
    def peers(self) -> Peers | None:
        return self._node.peers

    @property
    def settings(self) -> Settings:
        """What is in force here."""
        return self._node.settings

    @property
    def session_ms(self) -> int:
        """Silence after which a broker counts as gone, on both sides."""
        return self._node.settings.broker_session_timeout_ms

    @property
    def reigns(self) -> bool:
        """Whether this broker is the controller."""
        return self.reign is not None

    @property
    def in_touch(self) -> bool:
        """Whether this broker is the controller, or has heard it within a session (rule R6)."""
        return self.reign is not None or self.following.in_touch

    @property
    def pending(self) -> int:
        """Requests that this broker, as controller, has decided and the bucket has not confirmed."""
        return self.reign.runtime.pending if self.reign is not None else 0

    def address_of(self, node_id: int) -> str:
        """HOST:PORT where a broker is reached by others; "" when it has not said so."""
        known = self.image.brokers.get(node_id)
        return known.address(self._node.settings.inter_broker_listener_name) if known is not None else ""

    @property
    def controller_address(self) -> str:
        """HOST:PORT of the controller; "" while it has not said so, and when it is this broker."""
        image = self.image
        known = image.brokers.get(image.controller)
        if known is None or known.node_id == self.node_id or known.incarnation != image.controller_incarnation:
            return ""
        return self.address_of(image.controller)

    # -- what others ask ----------------------------------------------------------------------------------------------

    async def followed(self, ask: FollowAsk) -> FollowAnswer:
        """Another broker wants what comes next. `Refused(NOT_CONTROLLER)`."""
        reign = self._reigning()
        if ask.controller_epoch > reign.epoch:
            reign.doubt()
            raise Refused(Code.NOT_CONTROLLER, f"controller epoch {ask.controller_epoch} is newer than {reign.epoch}")
        with reign.heard(ask):
            await self.committed.until(ask.slot, ask.wait_ms / 1000)
        if self._reigning() is not reign:
            raise Refused(Code.NOT_CONTROLLER, f"controller epoch {reign.epoch} is over")
        entries = self.committed.tail.read(ask.slot)
        return FollowAnswer(
            reign.epoch, self.image.slot + 1, tuple(entries or ()), entries is None, self._unable_ms()
        )  # fmt: skip

    async def submitted(self, request: bytes, timeout: float) -> SubmitAnswer:
        """A request that another broker passes on. `Refused` as the controller refuses it."""
        reply = await self._decide(decode_request(request), timeout)
        return SubmitAnswer(encode_reply(reply), self.image.slot)

    def suspect(self, node_id: int) -> None:
        """A broker answers this one no more; a controller looks whether it is gone."""
        if self.reign is not None:
            self.reign.probe(node_id)

    def heard(self) -> HeardAnswer:
        """What this broker knows of the controller."""
        found = self.following.what_is_heard()
        if self.reign is not None:
            self.reign.asked()
            found = HeardAnswer(self.image.controller_epoch, self.image.controller, 0)
        return found._replace(node_id=self.node_id, incarnation=self.incarnation)

    # -- requests to the controller -----------------------------------------------------------------------------------

    async def submit(self, request: Request, timeout: float) -> Any:
        """The controller's reply, once this broker has acted on what was committed. `Refused`: as the controller says;
        NOT_CONTROLLER, when none was found in time and nothing was done; REQUEST_TIMED_OUT: it may have been done."""
        deadline = self.clock.mono_ns() + int(timeout * 1e9)
        while True:
            left = (deadline - self.clock.mono_ns()) / 1e9
            try:
                reply, slot = await self._submit_once(request, max(left, 0.001))
                break
            except Refused as refused:
                if refused.code is not Code.NOT_CONTROLLER or self._ended or left <= PAUSE_SECONDS[1]:
                    raise
            shortest, longest = PAUSE_SECONDS
            await self.clock.sleep(shortest + (longest - shortest) * self.chance.random())
        await self.committed.until_applied(slot, (deadline - self.clock.mono_ns()) / 1e9)
        if self.applied < slot and self._ended:
            raise Refused(Code.REQUEST_TIMED_OUT, "this broker stopped before it acted on the change, which is in")
        return reply

    async def _submit_once(self, request: Request, timeout: float) -> tuple[Any, int]:
        if self.reign is not None:
            return await self._decide(request, timeout), self.image.slot
        address = self.controller_address
        if self.peers is None or not address:
            raise Refused(Code.NOT_CONTROLLER, "no controller is known")
        heard = asyncio.Event()
        try:
            async with asyncio.timeout(None) as reign:
                self._asking[reign] = self._who()
                try:
                    answer = await self.peers.submit(address, encode_request(request), timeout, heard.set)
                finally:
                    self._asking.pop(reign, None)
        except TimeoutError:
            why = "another controller took over before the last one confirmed the change"
        except Unavailable as error:
            why = f"the controller did not confirm the change: {error}"
        else:
            return decode_reply(answer.reply), answer.slot
        if not heard.is_set():
            raise Refused(Code.NOT_CONTROLLER, f"the controller is gone: {why}")
        raise Refused(Code.REQUEST_TIMED_OUT, f"{why}; it may have been done")  # a controller that died later wrote it

    async def _decide(self, request: Request, timeout: float) -> Any:
        reign = self._reigning()
        if isinstance(request, AnnounceBroker):
            await self._reach(request)
        reply = await reign.decide(request, timeout)
        if isinstance(request, CreateTopic | CreateTopics | CreatePartitions):
            await reign.spread(self.image.slot)
        return reply

    async def _reach(self, told: AnnounceBroker) -> None:
        """BROKER_NOT_AVAILABLE for one that cannot be reached: it would lead what nobody could copy, read or write."""
        address = address_in(told.listeners, self._node.settings.inter_broker_listener_name)
        if self.peers is None or told.node_id == self.node_id or not address:
            return
        try:
            await self.peers.reach(address, REACH_SECONDS)
        except Unavailable as error:
            why = f"broker {told.node_id} cannot be reached where its advertised.listeners say, from the controller"
            raise Refused(Code.BROKER_NOT_AVAILABLE, f"{why} (broker {self.node_id}): {error}") from None

    def _who(self) -> tuple[int, str]:
        return self.image.controller, self.image.controller_incarnation

    def _reigning(self) -> Reign:
        if self.reign is None or self._ended:
            raise Refused(Code.NOT_CONTROLLER, f"broker {self.node_id} is not the controller")
        return self.reign

    def _unable_ms(self) -> int:
        since = self._metadata.undecided_since_ns
        return (self.clock.mono_ns() - since) // 1_000_000 if since >= 0 else 0

    # -- life ---------------------------------------------------------------------------------------------------------

    async def begin(self, image: Image) -> None:
        """Finds the controller of `image`, just read from the bucket, or becomes it. Does not end before."""
        self.committed.cluster_id = self._metadata.cluster_id
        self.committed.jump(image)
        while self.reign is None:
            if self.following.is_alone():
                await self.try_to_take()
            elif await self.following.ask(wait_ms=0):
                break
            else:
                await self.following.miss()
        self.committed.begin(image)

    async def run(self) -> None:
        """Follows or reigns until it is cancelled."""
        try:
            while True:
                if self.reign is not None:
                    await self._reign(self.reign)
                elif self.peers is None:
                    raise Fenced("another controller writes to this store")
                elif not await self.following.ask(self._node.settings.broker_heartbeat_interval_ms):
                    await self.following.miss()
        finally:
            self._ended = True
            self.committed.end()

    async def watch(self) -> None:
        """Asks the bucket whether it still holds this cluster, and a controller whether another one has written since.
        One request; `Unavailable`, `Corrupt`, `Refused` for another cluster."""
        if self.reign is None:
            await self._metadata.prove_cluster()
            return
        try:
            await self._metadata.watch()
        except Fenced:
            if self.reign is not None:
                self.reign.doubt()

    async def try_to_take(self) -> None:
        """Stands for controller, for a while. What is given up may still land: as the next entry, or nowhere."""
        try:
            async with asyncio.timeout(2 * self.session_ms / 1000):
                await self._take()
        except TimeoutError:
            log.warning("the bucket did not take a candidacy in time why=%s", self._metadata.trouble)
        except Fenced as error:
            log.info("another broker is controller why=%s", error)
            await self.following.catch_up_if_it_can()

    async def _take(self) -> None:
        node, silent = self._node, Silent(self.image.controller, self.following.silent_ms)
        await self._metadata.take(self.image, self.node_id, self.incarnation)
        self.committed.learn(self._metadata.taken)  # and so others need no bucket to follow
        image = self.image
        controller = Controller(image, node.started_with, lambda: text_id(node.draw_uuid()))
        self.reign = Reign(self, controller, self._metadata, silent)

    async def _reign(self, reign: Reign) -> None:
        """Until another one has a slot that this controller wanted."""
        try:
            await reign.run()
        except Fenced as error:
            log.warning("controller steps down epoch=%d why=%s", reign.epoch, error)
        finally:
            self.reign = None
            self.following.reset(followed=reign.followed)
            self.committed.wake()
        with suppress(TimeoutError):  # where the bucket says nothing, others say who is controller now
            async with asyncio.timeout(self.session_ms / 1000):
                await self.following.catch_up_if_it_can()

    async def written(self, changes: Sequence[Change], slot: int) -> None:
        """An entry of this controller is in the log."""
        self.committed.add(changes, slot, self._metadata.newest)

    def _grown(self) -> None:
        for asked, who in list(self._asking.items()):
            if who != self._who():  # all that it wrote is known: it has answered, or will not
                del self._asking[asked]
                asked.reschedule(0)
        if self.reign is not None:
            self.reign.grown()
