"""A standby controller: fetches the metadata log from the active controller, which counts each fetch as a heartbeat.

A standby reads the bucket only if the controller is gone or no longer has the entries that it needs (M3). A broker that
loses the controller queries the other brokers before it becomes a candidate (M4, `metadata.candidacy`). The next slot
decides the election (M2, `metadata.election`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random

from tiered.controller.clock_skew import ClockSkew, compare_clocks
from tiered.controller.controller_queries import ControllerQueries
from tiered.controller.member_view import MemberView
from tiered.controller.suspicion import OwnPauses, is_conclusive
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.log_limiter import StateLogLimiter
from tiered.metadata.candidacy import BecomeCandidate, ContactLoss, Wait, decide_candidacy, decide_if_store_stalled
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.features import HIGHEST_METADATA_VERSION
from tiered.metadata.log_reader import load_metadata, read_boundary, read_entries, verify_cluster
from tiered.peers import ClockComparison, ControllerView, MetadataFetch, MetadataFetchReply, Peers
from tiered.ports import Clock, ObjectStore

log = logging.getLogger(__name__)

NO_CONTACT = -1
"""Contact time of a broker that has lost the controller."""
JITTER_MS = 20
PAUSE_TICK_NS = 200_000_000
PAUSE_SECONDS = 0.5
APPLY_WAIT_SECONDS = 0.2
"""Longest time that a fetch waits until this broker has applied the last reply, so that the fetch can report that."""


OnClockCompared = Callable[[ClockComparison], None]
"""Takes a comparison of this broker's clock with the controller's."""


class StandbyController:
    """The standby role of one broker. Without `peers` the broker is alone and takes over at once."""

    def __init__(
        self,
        view: MemberView,
        peers: Peers | None,
        store: ObjectStore,
        clock: Clock,
        rng: Random,
        on_clock_compared: OnClockCompared,
        active_key: Callable[[], str],
    ) -> None:
        self.active_keys: tuple[str, ...] = ()
        """Ids of the keys by which brokers encrypt, as the controller said last."""
        self._active_key = active_key
        self.clock_skew = ClockSkew()
        """The comparisons of this broker's clock by heartbeats."""
        self._compared_epoch = -1
        """The epoch of the controller with which the clock was compared."""
        self._on_clock_compared = on_clock_compared
        self._view = view
        self._peers = peers
        self._store = store
        self._clock = clock
        self._rng = rng
        self._contact_ns = self._activity_ns = self._fetch_sent_ns = self._clock.mono_ns()
        """`_fetch_sent_ns`: the time at which the last fetch was sent that got a reply."""
        self._store_stalled_ms = 0
        self._unfollowed_epochs = 0
        self._read_failure_log = StateLogLimiter(self._clock)
        self._store_readable = True
        """True if the last read of the log from the bucket succeeded."""
        self._fetch_failure_log = StateLogLimiter(self._clock)
        self._fetch_works = True
        """True if the last fetch from a controller got a reply."""
        self._queries = ControllerQueries(view, peers, clock)
        self._candidate_log = StateLogLimiter(self._clock)
        self._was_candidate = False
        """True if this broker was candidate since it last had contact with a controller that can write."""
        self._controller_lost = False
        self.is_controller_silent = False
        """True if the controller left the last request without a reply, and no fetch got one since."""
        self._awaits_successor = False
        """True if this broker was controller and has had no contact with the next one yet."""
        self._is_behind = False
        """True if the last controller reply named entries that this broker could not read yet."""
        self._is_log_read = True
        """True if this broker read the log from the bucket since its last contact. It begins with what its start
        read."""
        self._log_went_on = False
        """True if a later read found more: a controller writes that this broker does not reach."""

    @property
    def has_controller_contact(self) -> bool:
        """True if this broker had contact with a controller within the suspect timeout and has all of its entries (R6).

        The time counts from when the fetch was sent: the controller counts up to its own reply, which may arrive late.
        A broker that is behind may have been fenced, and may still lead partitions that have a new leader.
        """
        unconfirmed_ms = (self._clock.mono_ns() - self._fetch_sent_ns) // 1_000_000
        return not (self._awaits_successor or self._is_behind) and unconfirmed_ms < self._view.suspect_ms

    @property
    def is_store_stalled(self) -> bool:
        """True if the controller replied to the last fetch, and could not write to the bucket for long."""
        return decide_if_store_stalled(self._contact_loss(), self._view.session_ms) is not None

    @property
    def silent_ms(self) -> int:
        """Time since the last contact with a controller."""
        return (self._clock.mono_ns() - self._contact_ns) // 1_000_000

    def controller_view(self) -> ControllerView:
        """Returns this broker's view of the controller for a broker that lost it.

        A controller that is lost here too has no contact time.
        """
        image = self._view.image
        return ControllerView(
            image.controller_epoch, image.controller, NO_CONTACT if self._controller_lost else self.silent_ms
        )

    def reset(self, *, was_followed: bool) -> None:
        """Starts over as standby after this broker was controller. `was_followed`: any broker fetched from it.

        It becomes a candidate no sooner than a broker that just had contact with a controller. It still has no contact
        (R6).
        """
        self._on_contact(0, self._clock.mono_ns())
        self._awaits_successor = True
        self.clock_skew = ClockSkew()
        self._unfollowed_epochs = 0 if was_followed else self._unfollowed_epochs + 1

    async def watch_pauses(self) -> None:
        """Leaves pauses of this process out of the silence of the controller, until it is cancelled. Contact itself
        (R6) counts them."""
        own_pauses = OwnPauses(PAUSE_TICK_NS)
        while True:
            now_ns = self._clock.mono_ns()
            self._contact_ns = min(self._contact_ns + own_pauses.tick(now_ns), now_ns)
            await self._clock.sleep(PAUSE_TICK_NS / 1e9)

    def on_attempt_ended(self) -> None:
        """Counts the silence from now on, after an attempt to replace a controller that replied.

        This broker did not fetch meanwhile. The controller may count the next fetch, even if its reply is lost, and
        fences this broker a session timeout after that. Contact itself (R6) counts from the last fetch with a reply.
        """
        self._contact_ns = self._clock.mono_ns()

    def _on_contact(self, store_stalled_ms: int, fetch_sent_ns: int) -> None:
        self._contact_ns = self._activity_ns = self._clock.mono_ns()
        self._fetch_sent_ns = fetch_sent_ns
        self._controller_lost, self._awaits_successor, self._store_stalled_ms = False, False, store_stalled_ms
        self._is_log_read = self._log_went_on = self.is_controller_silent = False
        self._fetch_works = True
        self._was_candidate = self._was_candidate and store_stalled_ms > 0

    # -- following the controller -------------------------------------------------------------------------------------

    async def fetch_metadata(self, wait_ms: int) -> bool:
        """Fetches the next entries. Returns True if the controller replied and can write to the bucket."""
        if wait_ms:
            await self._view.loader.wait_until_applied(self._view.image.slot, APPLY_WAIT_SECONDS)
        return await self._fetch_metadata_from(self._view.controller_address, wait_ms)

    async def _fetch_metadata_from(self, address: str, wait_ms: int) -> bool:
        image = self._view.image
        self._store_stalled_ms = 0  # known only for a controller that replies
        if self._peers is None or not address:
            return False
        # Ends soon after the session timeout, or before the suspect timeout by as much as the queries take that follow:
        # a longer wait would detect a lost controller later.
        left_ms = max(self._view.session_ms - self.silent_ms, int(self._queries.seconds * 1000))
        timeout_ms = min((wait_ms + self._view.session_ms) // 2, left_ms)
        if self._view.is_early:
            query_ms = int(self._queries.seconds * 1000)
            suspect_ms = self._view.suspect_ms_of(image.controller)
            timeout_ms = min(timeout_ms, max(suspect_ms - query_ms - self.silent_ms, query_ms))
        wait_ms = min(wait_ms, timeout_ms // 2)
        metadata_fetch = MetadataFetch(
            self._view.node_id, self._view.incarnation, image.slot + 1, self._view.loader.applied_slot,
            image.controller_epoch, wait_ms,
            self.clock_skew.comparison if self._compared_epoch == image.controller_epoch else None,
            HIGHEST_METADATA_VERSION, self._active_key(),
        )  # fmt: skip
        sent_ns = self._clock.mono_ns()
        try:
            reply = await self._peers.fetch_metadata(address, metadata_fetch, timeout_ms / 1000)
            clock = self._compare_clocks(reply, sent_ns)
            if reply.controller_epoch < image.controller_epoch:
                return False
            if not reply.too_old:
                begun_ns = self._clock.mono_ns()
                self._view.loader.append_entries(reply.entries)
                self._view.change_time.spend(self._clock.mono_ns() - begun_ns)
        except (Unavailable, Refused, Corrupt) as error:
            seconds = self._fetch_failure_log.admit(is_start=self._fetch_works)
            self._fetch_works = False
            if seconds is not None:
                # One failure is the end of a controller; failures that last are a fault that somebody has to mend.
                log.log(
                    logging.WARNING if seconds else logging.INFO,
                    "metadata fetch from controller failed node_id=%d seconds=%d why=%s",
                    image.controller, seconds, error,
                )  # fmt: skip
            return False
        self._fetch_works = True
        self._on_contact(reply.store_age_ms, sent_ns)
        if clock is not None:
            self._compared_epoch = reply.controller_epoch
            self._on_clock(clock)
        self.active_keys = reply.active_keys
        self._unfollowed_epochs = 0
        self._is_behind = self._view.image.slot + 1 < reply.next_slot
        if reply.too_old and await self.try_catch_up():
            self._is_behind = self._view.image.slot + 1 < reply.next_slot
        return not self.is_store_stalled

    def _compare_clocks(self, reply: MetadataFetchReply, sent_ns: int) -> ClockComparison | None:
        """Returns the comparison by a reply that has just arrived; None if the controller sends no clock."""
        if reply.wall_ms < 0:
            return None
        round_trip_ms = (self._clock.mono_ns() - sent_ns) // 1_000_000
        return compare_clocks(self._clock.wall_ms(), reply.wall_ms, round_trip_ms, reply.held_ms)

    def _on_clock(self, clock: ClockComparison) -> None:
        self._on_clock_compared(clock)
        if not self.clock_skew.judge(clock, self._view.settings.tiered_clock_skew_max_ms):
            return
        if self.clock_skew.is_beyond:
            log.warning(
                "clock differs from the controller's ahead_seconds=%.1f error_seconds=%.2f controller=%d: tokens,"
                " certificates and timestamps of records go by this one, retention by the earlier of the two, set one"
                " of them right", clock.ahead_ms / 1000, clock.error_ms / 1000, self._view.image.controller,
            )  # fmt: skip
        else:
            log.info("clock is right again, as the controller's ahead_seconds=%.1f", clock.ahead_ms / 1000)

    async def on_controller_lost(self) -> bool:
        """Waits, or returns True if this broker has to become a candidate now.

        The controller does not reply or cannot write to the bucket.
        """
        image, session_ms, began_ns = self._view.image, self._view.session_ms, self._clock.mono_ns()
        # A controller need not fence a broker that has not registered, and cannot query one without an address. So the
        # log may show to it that others go on only later.
        is_known = self._is_registered() and self._view.address_of(self._view.node_id)
        suspect_ms = self._view.suspect_ms_of(image.controller) if is_known else session_ms
        stalled_step = decide_if_store_stalled(self._contact_loss(), session_ms)
        self._controller_lost = stalled_step is None
        # The image names this broker: an earlier incarnation of it, or a candidacy that it gave up.
        no_other = self._peers is None or image.controller in (self._view.node_id, NO_LEADER)
        queries = self._queries
        near, far = queries.other_addresses()
        process_gone, controller_replied, near_views, far_views = await asyncio.gather(
            queries.is_controller_gone(),
            queries.query_controller(),
            queries.query_others(near),
            queries.query_others(far),
        )
        was_paused = not is_conclusive(self._clock.mono_ns() - began_ns, int(queries.seconds * 1e9))
        self.is_controller_silent = not (controller_replied or was_paused)
        views = near_views + far_views
        newest = max(views, key=lambda each: each.controller_epoch, default=None)
        if newest is not None and newest.controller_epoch > image.controller_epoch:
            if not await self._fetch_metadata_from(self._view.address_of(newest.controller), 0):
                await self.try_catch_up()
            return False
        # A broker that follows an older controller knows nothing of this one.
        same_epoch = [each for each in views if each.controller_epoch == image.controller_epoch]
        contact_ms = [each.heard_ms_ago for each in same_epoch if each.heard_ms_ago >= 0]

        def step() -> Wait | BecomeCandidate:
            loss = self._contact_loss(no_other or process_gone, contact_ms)._replace(
                brokers_queried=len(far), brokers_replied=len(far_views), controller_replied=controller_replied,
                was_paused=was_paused,
            )  # fmt: skip
            return stalled_step or decide_candidacy(loss, session_ms, suspect_ms)

        match step():
            case Wait(ms):
                await self._clock.sleep(ms / 1000 * (0.5 + self._rng.random() / 2))
                await self.try_catch_up()
                return False
            case BecomeCandidate(delay_ms):
                return await self._confirm_candidacy(delay_ms, step)

    async def _confirm_candidacy(self, delay_ms: int, step: Callable[[], Wait | BecomeCandidate]) -> bool:
        """Returns True if this broker still has to become a candidate after a delay.

        It has not if the log then has a newer controller or shows that this broker was fenced.
        """
        last_epoch = self._view.image.controller_epoch
        await self._clock.sleep((delay_ms + JITTER_MS * self._rng.random()) / 1000)
        if not await self.try_catch_up():
            return False
        if self._view.image.controller_epoch != last_epoch or not isinstance(step(), BecomeCandidate):
            return False
        seconds = self._candidate_log.admit(is_start=not self._was_candidate)
        self._was_candidate = True
        if seconds is not None:
            log.warning(
                "broker becomes candidate for controller node_id=%d after_epoch=%d seconds=%d",
                self._view.node_id, last_epoch, seconds,
            )  # fmt: skip
        return True

    # -- reading the bucket -------------------------------------------------------------------------------------------

    async def try_catch_up(self) -> bool:
        """Reads the rest of the log from the bucket. Returns False after a pause if that failed."""
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
        """Applies the entries in the bucket beyond the image. Reads the boundary after the entries (M3)."""
        loader = self._view.loader
        entries, _ = await read_entries(self._store, loader.image.slot + 1)
        boundary, _ = await read_boundary(self._store)
        if entries or boundary.collected > loader.image.slot:
            self._activity_ns = self._clock.mono_ns()
            self._log_went_on = self._log_went_on or self._is_log_read
        self._is_log_read = True
        if boundary.collected > loader.image.slot:
            await verify_cluster(self._store, loader.cluster_id)
            loader.load_image((await load_metadata(self._store, loader.cluster_id)).image)
        else:
            loader.append_from_bucket(entries)

    # -- state --------------------------------------------------------------------------------------------------------

    def is_alone(self) -> bool:
        """True if no other broker is controller, or could just be becoming it."""
        image, own = self._view.image, self._view.node_id
        if any(each.live and each.node_id != own for each in image.brokers.values()):
            return False
        last = image.brokers.get(image.controller)
        starting = last is None or last.incarnation != image.controller_incarnation
        return self._peers is None or image.controller in (own, NO_LEADER) or not starting

    def _is_registered(self) -> bool:
        known = self._view.image.brokers.get(self._view.node_id)
        return known is not None and known.incarnation == self._view.incarnation

    def _contact_loss(self, process_gone: bool = False, others_contact_ms: Sequence[int] = ()) -> ContactLoss:
        image, own = self._view.image, self._view.node_id
        live = sorted(each.node_id for each in image.brokers.values() if each.live and each.node_id != image.controller)
        rank = live.index(own) if own in live else len(live)
        known = image.brokers.get(own)
        excluded = known.fenced if known is not None and self._is_registered() else self._log_went_on
        inactive_ms = (self._clock.mono_ns() - self._activity_ns) // 1_000_000
        return ContactLoss(
            self.silent_ms, process_gone, others_contact_ms, rank, self._store_stalled_ms,
            excluded=excluded, inactive_ms=inactive_ms, unfollowed_epochs=self._unfollowed_epochs,
        )  # fmt: skip
