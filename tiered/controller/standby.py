"""A broker that is not the controller: it asks the controller for what comes next, and is heard by asking.

The bucket is read only when the controller is no more, or has forgotten what is asked for. Who misses the controller
asks the other brokers before it stands for its place (rule M4, candidacy.py); the next slot decides (election.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tiered.errors import Corrupt, Refused, Unavailable
from tiered.log_limiter import StateLogLimiter
from tiered.metadata.candidacy import BecomeCandidate, ContactLoss, Wait, decide_candidacy, decide_if_store_stalled
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.log_reader import load_metadata, read_boundary, read_entries, verify_cluster
from tiered.peers import ControllerView, MetadataFetch, Peers
from tiered.ports import ObjectStore

if TYPE_CHECKING:
    from tiered.controller.member import ClusterMember

log = logging.getLogger(__name__)

NO_CONTACT = -1
QUERY_SECONDS = 1.0
"""How long another broker may take to say what it knows of the controller."""
JITTER_MS = 20
PAUSE_SECONDS = 0.5
APPLY_WAIT_SECONDS = 0.2
"""How long a request waits until this broker has acted on the last answer, so that it can say so."""


class StandbyController:
    """Follows for one cluster object. Without `peers` there is nobody to follow: who starts takes the controller's
    place at once."""

    def __init__(self, cluster: ClusterMember, peers: Peers | None, store: ObjectStore) -> None:
        self._cluster = cluster
        self._peers = peers
        self._store = store
        self._clock = cluster.clock
        self._rng = cluster.rng
        self._contact_ns = self._activity_ns = self._clock.mono_ns()
        self._store_stalled_ms = 0
        self._unfollowed_epochs = 0
        self._read_failure_log = StateLogLimiter(self._clock)
        self._store_readable = True
        """True if the bucket told the rest of the log when it was asked last."""
        self._controller_lost = False
        self._awaits_successor = False
        """Whether this broker was controller, and has not heard the next one yet."""
        self._is_behind = False
        """Whether the controller that was heard last knows more than this broker, which could not read it yet."""

    @property
    def has_controller_contact(self) -> bool:
        """Whether a controller was heard within a session, and with it all that it knew (rule R6): a broker that is
        behind may have been fenced, and lead what another one leads."""
        return not (self._awaits_successor or self._is_behind) and self.silent_ms < self._cluster.session_ms

    @property
    def silent_ms(self) -> int:
        """Since when no controller was heard."""
        return (self._clock.mono_ns() - self._contact_ns) // 1_000_000

    def controller_view(self) -> ControllerView:
        """For another broker that misses the controller. One that does not answer us either is not heard."""
        image = self._cluster.image
        return ControllerView(
            image.controller_epoch, image.controller, NO_CONTACT if self._controller_lost else self.silent_ms
        )

    def reset(self, *, was_followed: bool) -> None:
        """This broker was controller until now, and others followed it, or nobody did. It stands for that place no
        sooner than who has heard a controller just now; yet it has heard none."""
        self._on_contact(0)
        self._awaits_successor = True
        self._unfollowed_epochs = 0 if was_followed else self._unfollowed_epochs + 1

    def _on_contact(self, store_stalled_ms: int) -> None:
        self._contact_ns = self._activity_ns = self._clock.mono_ns()
        self._controller_lost, self._awaits_successor, self._store_stalled_ms = False, False, store_stalled_ms

    # -- asking -------------------------------------------------------------------------------------------------------

    async def fetch_metadata(self, wait_ms: int) -> bool:
        """Whether the controller answered, and can do its work; what it sent is committed."""
        if wait_ms:
            await self._cluster.loader.wait_until_applied(self._cluster.image.slot, APPLY_WAIT_SECONDS)
        return await self._fetch_metadata_from(self._cluster.controller_address, wait_ms)

    async def _fetch_metadata_from(self, address: str, wait_ms: int) -> bool:
        image = self._cluster.image
        self._store_stalled_ms = 0  # what it said before says nothing of one that answers no more, nor of the next one
        if self._peers is None or not address:
            return False
        # Not much beyond its session: who waits longer misses it later.
        left_ms = max(self._cluster.session_ms - self.silent_ms, int(QUERY_SECONDS * 1000))
        timeout_ms = min((wait_ms + self._cluster.session_ms) // 2, left_ms)
        wait_ms = min(wait_ms, timeout_ms // 2)
        metadata_fetch = MetadataFetch(
            self._cluster.node_id, self._cluster.incarnation, image.slot + 1, self._cluster.applied_slot,
            image.controller_epoch, wait_ms,
        )  # fmt: skip
        try:
            reply = await self._peers.fetch_metadata(address, metadata_fetch, timeout_ms / 1000)
            if reply.controller_epoch < image.controller_epoch:
                return False
            if not reply.too_old:
                self._cluster.loader.append_entries(reply.entries)
        except (Unavailable, Refused, Corrupt) as error:
            log.info("controller does not answer node_id=%d why=%s", image.controller, error)
            return False
        self._on_contact(reply.store_age_ms)
        self._unfollowed_epochs = 0
        self._is_behind = self._cluster.image.slot + 1 < reply.next_slot
        if reply.too_old and await self.try_catch_up():
            self._is_behind = self._cluster.image.slot + 1 < reply.next_slot
        return decide_if_store_stalled(self._contact_loss(), self._cluster.session_ms) is None

    async def on_controller_lost(self) -> None:
        """The controller does not answer, or cannot write: waits, or stands for its place."""
        image, session_ms = self._cluster.image, self._cluster.session_ms
        stalled_step = decide_if_store_stalled(self._contact_loss(), session_ms)
        self._controller_lost = stalled_step is None
        # Named is an earlier incarnation of this broker, or a candidacy that it gave up: nobody else reigns.
        gone = self._peers is None or image.controller in (self._cluster.node_id, NO_LEADER)
        addresses = self._other_addresses()
        ended, views = await asyncio.gather(self._is_controller_gone(), self._query_others(addresses))
        newest = max(views, key=lambda each: each.controller_epoch, default=None)
        if newest is not None and newest.controller_epoch > image.controller_epoch:
            if not await self._fetch_metadata_from(self._cluster.address_of(newest.controller), 0):
                await self.try_catch_up()
            return
        # Who hears an older controller says nothing of this one.
        same = [each for each in views if each.controller_epoch == image.controller_epoch]
        ages = [each.heard_ms_ago for each in same if each.heard_ms_ago >= 0]

        def step() -> Wait | BecomeCandidate:
            loss = self._contact_loss(gone or ended, ages)._replace(
                brokers_queried=len(addresses), brokers_replied=len(views)
            )
            return stalled_step or decide_candidacy(loss, session_ms)

        match step():
            case Wait(ms):
                await self._clock.sleep(ms / 1000 * (0.5 + self._rng.random() / 2))
                await self.try_catch_up()
            case BecomeCandidate(after_ms):
                await self._become_candidate(after_ms, step)

    async def _become_candidate(self, delay_ms: int, step: Callable[[], Wait | BecomeCandidate]) -> None:
        """Unless the log says by then that a newer controller is there, or that the last one fenced this broker."""
        last_epoch = self._cluster.image.controller_epoch
        await self._clock.sleep((delay_ms + JITTER_MS * self._rng.random()) / 1000)
        if not await self.try_catch_up():
            return
        if self._cluster.image.controller_epoch == last_epoch and isinstance(step(), BecomeCandidate):
            log.warning("broker stands for controller node_id=%d after_epoch=%d", self._cluster.node_id, last_epoch)
            await self._cluster.try_take_over()

    async def _is_controller_gone(self) -> bool:
        """Whether the process of the controller has ended."""
        address = self._cluster.controller_address
        return self._peers is not None and bool(address) and await self._peers.is_gone(address, QUERY_SECONDS)

    def _other_addresses(self) -> list[str]:
        """Addresses of who else may know a controller; also of who is fenced."""
        image = self._cluster.image
        skipped = (self._cluster.node_id, image.controller)
        others = [each.node_id for each in image.brokers.values() if each.alive and each.node_id not in skipped]
        return [address for address in map(self._cluster.address_of, others) if address]

    async def _query_others(self, addresses: Sequence[str]) -> list[ControllerView]:
        """What those say that answer."""
        found = await asyncio.gather(*(self._query_other(each) for each in addresses))
        return [each for each in found if each is not None]

    async def _query_other(self, address: str) -> ControllerView | None:
        if self._peers is None:
            return None
        try:
            return await self._peers.get_controller_view(address, QUERY_SECONDS)
        except (Unavailable, Refused, Corrupt) as error:
            log.info("broker does not say whom it hears address=%s why=%s", address, error)
            return None

    # -- reading the bucket -------------------------------------------------------------------------------------------

    async def try_catch_up(self) -> bool:
        """Whether the bucket told the rest of the log; after a pause when it did not."""
        try:
            await self.catch_up()
        except (Unavailable, Corrupt) as error:
            seconds = self._read_failure_log.admit(is_start=self._store_readable)
            self._store_readable = False
            if seconds is not None:
                log.warning("the metadata log cannot be read seconds=%d why=%s", seconds, error)
            await self._clock.sleep(PAUSE_SECONDS * (0.5 + self._rng.random() / 2))
            return False
        self._store_readable = True
        return True

    async def catch_up(self) -> None:
        """Reads what the bucket has beyond the image, the boundary after the entries (rule M3)."""
        loader = self._cluster.loader
        entries, _ = await read_entries(self._store, loader.image.slot + 1)
        boundary, _ = await read_boundary(self._store)
        if entries or boundary.collected > loader.image.slot:
            self._activity_ns = self._clock.mono_ns()
        if boundary.collected > loader.image.slot:
            await verify_cluster(self._store, loader.cluster_id)
            loader.load_image((await load_metadata(self._store, loader.cluster_id)).image)
        else:
            loader.append_from_bucket(entries)

    # -- what is known ------------------------------------------------------------------------------------------------

    def is_alone(self) -> bool:
        """Whether nobody else is there who could be controller, or become it just now."""
        image, own = self._cluster.image, self._cluster.node_id
        if any(each.live and each.node_id != own for each in image.brokers.values()):
            return False
        last = image.brokers.get(image.controller)
        starting = last is None or last.incarnation != image.controller_incarnation
        return self._peers is None or image.controller in (own, NO_LEADER) or not starting

    def _contact_loss(self, process_gone: bool = False, others_contact_ms: Sequence[int] = ()) -> ContactLoss:
        image, own = self._cluster.image, self._cluster.node_id
        live = sorted(each.node_id for each in image.brokers.values() if each.live and each.node_id != image.controller)
        rank = live.index(own) if own in live else len(live)
        known = image.brokers.get(own)
        fenced = known is not None and known.fenced and known.incarnation == self._cluster.incarnation
        inactive_ms = (self._clock.mono_ns() - self._activity_ns) // 1_000_000
        return ContactLoss(
            self.silent_ms, process_gone, others_contact_ms, rank, self._store_stalled_ms,
            fenced=fenced, inactive_ms=inactive_ms, unfollowed_epochs=self._unfollowed_epochs,
        )  # fmt: skip
