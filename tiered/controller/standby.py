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
from tiered.log_limiter import Waning
from tiered.metadata.candidacy import Silence, Stand, Wait, next_step, next_step_of_unable
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.log_reader import load, prove_cluster, read_boundary, read_from
from tiered.peers import FollowAsk, HeardAnswer, Peers
from tiered.ports import ObjectStore

if TYPE_CHECKING:
    from tiered.controller.member import Cluster

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
        self._heard_ns = self._news_ns = self._clock.mono_ns()
        self._unable_ms = 0
        self._in_vain = 0
        self._waning = Waning(self._clock)
        self._reads = True
        """True if the bucket told the rest of the log when it was asked last."""
        self._missed = False
        self._replaced = False
        """Whether this broker was controller, and has not heard the next one yet."""
        self._behind = False
        """Whether the controller that was heard last knows more than this broker, which could not read it yet."""

    @property
    def in_touch(self) -> bool:
        """Whether a controller was heard within a session, and with it all that it knew (rule R6): a broker that is
        behind may have been fenced, and lead what another one leads."""
        return not (self._replaced or self._behind) and self.silent_ms < self._cluster.session_ms

    @property
    def silent_ms(self) -> int:
        """Since when no controller was heard."""
        return (self._clock.mono_ns() - self._heard_ns) // 1_000_000

    def what_is_heard(self) -> HeardAnswer:
        """For another broker that misses the controller. One that does not answer us either is not heard."""
        image = self._cluster.image
        return HeardAnswer(image.controller_epoch, image.controller, NEVER if self._missed else self.silent_ms)

    def reset(self, *, followed: bool) -> None:
        """This broker was controller until now, and others followed it, or nobody did. It stands for that place no
        sooner than who has heard a controller just now; yet it has heard none."""
        self._hears(0)
        self._replaced = True
        self._in_vain = 0 if followed else self._in_vain + 1

    def _hears(self, unable_ms: int) -> None:
        self._heard_ns = self._news_ns = self._clock.mono_ns()
        self._missed, self._replaced, self._unable_ms = False, False, unable_ms

    # -- asking -------------------------------------------------------------------------------------------------------

    async def ask(self, wait_ms: int) -> bool:
        """Whether the controller answered, and can do its work; what it sent is committed."""
        if wait_ms:
            await self._cluster.committed.until_applied(self._cluster.image.slot, ACT_SECONDS)
        return await self._ask_at(self._cluster.controller_address, wait_ms)

    async def _ask_at(self, address: str, wait_ms: int) -> bool:
        image = self._cluster.image
        self._unable_ms = 0  # what it said before says nothing of one that answers no more, nor of the next one
        if self._peers is None or not address:
            return False
        # Not much beyond its session: who waits longer misses it later.
        left_ms = max(self._cluster.session_ms - self.silent_ms, int(ASK_SECONDS * 1000))
        timeout_ms = min((wait_ms + self._cluster.session_ms) // 2, left_ms)
        wait_ms = min(wait_ms, timeout_ms // 2)
        ask = FollowAsk(
            self._cluster.node_id, self._cluster.incarnation, image.slot + 1, self._cluster.applied,
            image.controller_epoch, wait_ms,
        )  # fmt: skip
        try:
            answer = await self._peers.follow(address, ask, timeout_ms / 1000)
            if answer.controller_epoch < image.controller_epoch:
                return False
            if not answer.too_old:
                self._cluster.committed.learn(answer.entries)
        except (Unavailable, Refused, Corrupt) as error:
            log.info("controller does not answer node_id=%d why=%s", image.controller, error)
            return False
        self._hears(answer.store_age_ms)
        self._in_vain = 0
        self._behind = self._cluster.image.slot + 1 < answer.next_slot
        if answer.too_old and await self.catch_up_if_it_can():
            self._behind = self._cluster.image.slot + 1 < answer.next_slot
        return next_step_of_unable(self._silence(), self._cluster.session_ms) is None

    async def miss(self) -> None:
        """The controller does not answer, or cannot write: waits, or stands for its place."""
        image, session_ms = self._cluster.image, self._cluster.session_ms
        unable = next_step_of_unable(self._silence(), session_ms)
        self._missed = unable is None
        # Named is an earlier incarnation of this broker, or a candidacy that it gave up: nobody else reigns.
        gone = self._peers is None or image.controller in (self._cluster.node_id, NO_LEADER)
        asking = self._others()
        ended, others = await asyncio.gather(self._is_gone(), self._ask_others(asking))
        newest = max(others, key=lambda each: each.controller_epoch, default=None)
        if newest is not None and newest.controller_epoch > image.controller_epoch:
            if not await self._ask_at(self._cluster.address_of(newest.controller), 0):
                await self.catch_up_if_it_can()
            return
        # Who hears an older controller says nothing of this one.
        same = [each for each in others if each.controller_epoch == image.controller_epoch]
        ages = [each.heard_ms_ago for each in same if each.heard_ms_ago >= 0]

        def step() -> Wait | Stand:
            silence = self._silence(gone or ended, ages)._replace(asked=len(asking), answered=len(others))
            return unable or next_step(silence, session_ms)

        match step():
            case Wait(ms):
                await self._clock.sleep(ms / 1000 * (0.5 + self._chance.random() / 2))
                await self.catch_up_if_it_can()
            case Stand(after_ms):
                await self._stand(after_ms, step)

    async def _stand(self, after_ms: int, step: Callable[[], Wait | Stand]) -> None:
        """Unless the log says by then that a newer controller is there, or that the last one fenced this broker."""
        before = self._cluster.image.controller_epoch
        await self._clock.sleep((after_ms + JITTER_MS * self._chance.random()) / 1000)
        if not await self.catch_up_if_it_can():
            return
        if self._cluster.image.controller_epoch == before and isinstance(step(), Stand):
            log.warning("broker stands for controller node_id=%d after_epoch=%d", self._cluster.node_id, before)
            await self._cluster.try_to_take()

    async def _is_gone(self) -> bool:
        """Whether the process of the controller has ended."""
        address = self._cluster.controller_address
        return self._peers is not None and bool(address) and await self._peers.is_gone(address, ASK_SECONDS)

    def _others(self) -> list[str]:
        """Addresses of who else may know a controller; also of who is fenced."""
        image = self._cluster.image
        skipped = (self._cluster.node_id, image.controller)
        others = [each.node_id for each in image.brokers.values() if each.alive and each.node_id not in skipped]
        return [address for address in map(self._cluster.address_of, others) if address]

    async def _ask_others(self, addresses: Sequence[str]) -> list[HeardAnswer]:
        """What those say that answer."""
        found = await asyncio.gather(*(self._ask_other(each) for each in addresses))
        return [each for each in found if each is not None]

    async def _ask_other(self, address: str) -> HeardAnswer | None:
        if self._peers is None:
            return None
        try:
            return await self._peers.heard(address, ASK_SECONDS)
        except (Unavailable, Refused, Corrupt) as error:
            log.info("broker does not say whom it hears address=%s why=%s", address, error)
            return None

    # -- reading the bucket -------------------------------------------------------------------------------------------

    async def catch_up_if_it_can(self) -> bool:
        """Whether the bucket told the rest of the log; after a pause when it did not."""
        try:
            await self.catch_up()
        except (Unavailable, Corrupt) as error:
            seconds = self._waning.lasts(begins=self._reads)
            self._reads = False
            if seconds is not None:
                log.warning("the metadata log cannot be read seconds=%d why=%s", seconds, error)
            await self._clock.sleep(PAUSE_SECONDS * (0.5 + self._chance.random() / 2))
            return False
        self._reads = True
        return True

    async def catch_up(self) -> None:
        """Reads what the bucket has beyond the image, the boundary after the entries (rule M3)."""
        committed = self._cluster.committed
        entries, _ = await read_from(self._store, committed.image.slot + 1)
        boundary, _ = await read_boundary(self._store)
        if entries or boundary.collected > committed.image.slot:
            self._news_ns = self._clock.mono_ns()
        if boundary.collected > committed.image.slot:
            await prove_cluster(self._store, committed.cluster_id)
            committed.jump((await load(self._store, committed.cluster_id)).image)
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
        known = image.brokers.get(own)
        fenced = known is not None and known.fenced and known.incarnation == self._cluster.incarnation
        quiet_ms = (self._clock.mono_ns() - self._news_ns) // 1_000_000
        return Silence(
            self.silent_ms, gone, others, rank, self._unable_ms,
            fenced=fenced, quiet_ms=quiet_ms, in_vain=self._in_vain,
        )  # fmt: skip
