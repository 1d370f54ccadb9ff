"""A broker that is not the controller: it asks the controller for what comes next, and is heard by asking.

The bucket is read only when the controller is no more, or has forgotten what is asked for. Who misses the controller
asks the other brokers before it stands for its place (rule M4, candidacy.py); the next slot decides (election.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiered.errors import Corrupt, Refused, Unavailable
from tiered.metadata.candidacy import Silence, Stand, Wait, next_step, next_step_of_unable
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.load import load, read_boundary, read_from
from tiered.peers import FollowAsk, HeardAnswer, Peers
from tiered.ports import ObjectStore

if TYPE_CHECKING:
    from tiered.cluster import Cluster

log = logging.getLogger(__name__)

NEVER = -1
ASK_SECONDS = 1.0
"""How long another broker may take to say what it knows of the controller."""
JITTER_MS = 20
PAUSE_SECONDS = 0.5
ACT_SECONDS = 0.2
"""How long a request waits until this broker has acted on the last answer, so that it can say so."""


class Following:
    """Follows for one cluster object. Without `peers` there is nobody to follow: who starts takes the controller's
    place at once."""

    def __init__(self, cluster: Cluster, peers: Peers | None, store: ObjectStore) -> None:
        self._cluster = cluster
        self._peers = peers
        self._store = store
        self._clock = cluster.clock
        self._chance = cluster.chance
        self._heard_ns = self._clock.mono_ns()
        self._unable_ms = 0
        self._missed = False

    @property
    def silent_ms(self) -> int:
        """Since when no controller was heard."""
        return (self._clock.mono_ns() - self._heard_ns) // 1_000_000

    def what_is_heard(self) -> HeardAnswer:
        """For another broker that misses the controller. One that does not answer us either is not heard."""
        image = self._cluster.image
        return HeardAnswer(image.controller_epoch, image.controller, NEVER if self._missed else self.silent_ms)

    def reset(self) -> None:
        """This broker was controller until now."""
        self._heard_ns, self._missed, self._unable_ms = self._clock.mono_ns(), False, 0

    # -- asking -------------------------------------------------------------------------------------------------------

    async def ask(self, wait_ms: int) -> bool:
        """Whether the controller answered, and can do its work; what it sent is committed."""
        if wait_ms:
            await self._cluster.committed.until_applied(self._cluster.image.slot, ACT_SECONDS)
        return await self._ask_at(self._cluster.controller_address, wait_ms)

    async def _ask_at(self, address: str, wait_ms: int) -> bool:
        image = self._cluster.image
        if self._peers is None or not address:
            return False
        ask = FollowAsk(
            self._cluster.node_id, self._cluster.incarnation, image.slot + 1, self._cluster.applied,
            image.controller_epoch, wait_ms,
        )  # fmt: skip
        try:
            answer = await self._peers.follow(address, ask, (wait_ms + self._cluster.session_ms) / 2000)
            if answer.controller_epoch < image.controller_epoch:
                return False
            if not answer.too_old:
                self._cluster.committed.learn(answer.entries)
        except (Unavailable, Refused, Corrupt) as error:
            log.info("controller does not answer node_id=%d why=%s", image.controller, error)
            return False
        self._heard_ns, self._missed, self._unable_ms = self._clock.mono_ns(), False, answer.store_age_ms
        if answer.too_old:
            await self.catch_up_if_it_can()
        return next_step_of_unable(self._silence(), self._cluster.session_ms) is None

    async def miss(self) -> None:
        """The controller does not answer, or cannot write: waits, or stands for its place."""
        image, session_ms = self._cluster.image, self._cluster.session_ms
        unable = next_step_of_unable(self._silence(), session_ms)
        self._missed = unable is None
        # Named is an earlier incarnation of this broker, or a candidacy that it gave up: nobody else reigns.
        gone = self._peers is None or image.controller in (self._cluster.node_id, NO_LEADER)
        address = self._cluster.controller_address
        if self._peers is not None and not gone and address:
            gone = await self._peers.is_gone(address, ASK_SECONDS)
        others = await self._ask_others()
        newest = max(others, key=lambda each: each.controller_epoch, default=None)
        if newest is not None and newest.controller_epoch > image.controller_epoch:
            if not await self._ask_at(self._cluster.address_of(newest.controller), 0):
                await self.catch_up_if_it_can()
            return
        ages = [each.heard_ms_ago for each in others if each.heard_ms_ago >= 0]
        match unable or next_step(self._silence(gone, ages), session_ms):
            case Wait(ms):
                await self._clock.sleep(ms / 1000 * (0.5 + self._chance.random() / 2))
                await self.catch_up_if_it_can()
            case Stand(after_ms):
                await self._stand(after_ms)

    async def _stand(self, after_ms: int) -> None:
        before = self._cluster.image.controller_epoch
        await self._clock.sleep((after_ms + JITTER_MS * self._chance.random()) / 1000)
        if await self.catch_up_if_it_can() and self._cluster.image.controller_epoch == before:
            log.warning("broker stands for controller node_id=%d after_epoch=%d", self._cluster.node_id, before)
            await self._cluster.try_to_take()

    async def _ask_others(self) -> list[HeardAnswer]:
        image, peers = self._cluster.image, self._peers
        if peers is None:
            return []
        skipped = (self._cluster.node_id, image.controller)
        others = [each.node_id for each in image.brokers.values() if each.live and each.node_id not in skipped]
        addresses = [address for address in map(self._cluster.address_of, others) if address]
        found = await asyncio.gather(*(_ask(peers, address) for address in addresses))
        return [each for each in found if each is not None]

    # -- reading the bucket -------------------------------------------------------------------------------------------

    async def catch_up_if_it_can(self) -> bool:
        """Whether the bucket told the rest of the log; after a pause when it did not."""
        try:
            await self.catch_up()
        except (Unavailable, Corrupt) as error:
            log.warning("the metadata log cannot be read why=%s", error)
            await self._clock.sleep(PAUSE_SECONDS * (0.5 + self._chance.random() / 2))
            return False
        return True

    async def catch_up(self) -> None:
        """Reads what the bucket has beyond the image, the boundary after the entries (rule M3)."""
        committed = self._cluster.committed
        entries, _ = await read_from(self._store, committed.image.slot + 1)
        boundary, _ = await read_boundary(self._store)
        if boundary.collected > committed.image.slot:
            committed.jump((await load(self._store)).image)
        else:
            committed.read(entries)

    # -- what is known ------------------------------------------------------------------------------------------------

    def is_alone(self) -> bool:
        """Whether nobody else is there who could be controller, or become it just now."""
        image, own = self._cluster.image, self._cluster.node_id
        if any(each.live and each.node_id != own for each in image.brokers.values()):
            return False
        last = image.brokers.get(image.controller)
        starting = last is None or last.incarnation != image.controller_incarnation
        return self._peers is None or image.controller in (own, NO_LEADER) or not starting

    def _silence(self, gone: bool = False, others: Sequence[int] = ()) -> Silence:
        image, own = self._cluster.image, self._cluster.node_id
        live = sorted(each.node_id for each in image.brokers.values() if each.live and each.node_id != image.controller)
        rank = live.index(own) if own in live else len(live)
        return Silence(self.silent_ms, gone, others, rank, self._unable_ms)


async def _ask(peers: Peers, address: str) -> HeardAnswer | None:
    try:
        return await peers.heard(address, ASK_SECONDS)
    except (Unavailable, Refused, Corrupt) as error:
        log.info("broker does not say whom it hears address=%s why=%s", address, error)
        return None
