"""Registration of an incarnation with the controller (R1, R6), and announcement of its addresses.

The registration says which logs this start could prove whole and where the others end. It names the incarnation that it
replaces, and that one is checked first for a live process. So the late request of a process that is gone replaces none
that came after it. The check is in `duplicate_check`, reports of losses are in `loss_reporter`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from tiered.broker.startup_retry import StartupRetry
from tiered.controller import requests
from tiered.controller.adoption import find_left_out, is_proved
from tiered.controller.channel import ControllerChannel
from tiered.controller.member_view import MemberView
from tiered.durability.adopted_logs import AdoptedLog, choose_adopted, group_by_giver
from tiered.durability.data_directory import DataDirectory, DirectoryState
from tiered.durability.log_store import LogStore
from tiered.durability.loss_reporter import LossReporter
from tiered.durability.possible_losses import PossibleLosses
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.delta import hosted_partitions
from tiered.metadata.effective_config import overridden_settings
from tiered.metadata.features import PROCESSES, PROCESSES_REFUSED, SUPPORTED_LEVELS
from tiered.metadata.image import Image
from tiered.metadata.parts.brokers import BrokerImage
from tiered.metadata.parts.topics import PartitionImage
from tiered.ports import Clock

log = logging.getLogger(__name__)

REGISTER_SECONDS = 30.0
SECONDS_PER_PARTITION = 2.0
"""Added to the timeout of a registration for each partition: a slow bucket may delay each of them."""
REACH_SECONDS = 15.0
"""Longest time that a starting broker waits until the controller can connect to it."""
RETRY_SECONDS = 1.0


class Registration:
    """The registration of one start."""

    def __init__(
        self,
        view: MemberView,
        channel: ControllerChannel,
        startup_retry: StartupRetry,
        log_store: LogStore,
        losses: PossibleLosses,
        loss_reporter: LossReporter,
        clock: Clock,
        data_directory: DataDirectory,
        refuse_duplicate: Callable[[Image], Awaitable[None]],
    ) -> None:
        self._refuse_duplicate = refuse_duplicate
        self._replaces = ""
        """The incarnation that this one replaces: the last one that was checked; "" if there is none."""
        self._view = view
        self._channel = channel
        self._startup_retry = startup_retry
        self._log_store = log_store
        self._losses = losses
        self._loss_reporter = loss_reporter
        self._clock = clock
        self._data_directory = data_directory
        self._adopted: tuple[AdoptedLog, ...] = ()
        """The adopted logs that the last request named."""
        self._directory_state: DirectoryState | None = None
        self._is_known_directory = False

    async def check_duplicate(self, image: Image) -> None:
        """Raises `Refused` if another process replies under this node id."""
        await self._refuse_duplicate(image)
        self._replaces = self._find_registered(image)

    def _find_registered(self, image: Image) -> str:
        known = image.brokers.get(self._view.node_id)
        return known.incarnation if known is not None else ""

    def assess_directory(self, image: Image, state: DirectoryState) -> DirectoryState:
        """Returns what may be believed of the data directory."""
        own = image.brokers.get(self._view.node_id)
        believed, self._is_known_directory = discard_untrusted(own, state)
        if not self._is_known_directory:
            self._loss_reporter.set_unknown_directory(state.directory_id)
        elif state.is_intact and not believed.is_intact and own is not None:
            log.warning("data directory may be an older copy: another process of this broker ran since")
        self._directory_state = believed
        return believed

    async def register(self) -> None:
        """Registers this incarnation, then reports the losses of the partitions that it leads.

        The addresses of this broker are announced later, once it listens: a refused connection would look like the end
        of the process. Raises `Refused` if the controller refuses the incarnation.
        """
        assert self._directory_state is not None
        view = self._view
        count = sum(1 for _ in hosted_partitions(view.image, view.node_id)) + len(self._log_store.adopted)
        timeout = REGISTER_SECONDS + SECONDS_PER_PARTITION * count
        await self._register(self._directory_state, timeout)
        await self._forget_adopted()
        overridden = overridden_settings(view.image, view.config.startup, view.node_id)
        for name, (given, in_force) in overridden.items():
            log.warning(
                "setting of this broker is not in force, the cluster overrides it name=%s given=%s in_force=%s",
                name, given, in_force,
            )  # fmt: skip
        # A log that follows another leader is truncated to that leader's: the registration said all of it. Leaders that
        # were opened meanwhile have cleared others.
        suspect = self._losses.suspect_partitions
        self._losses.set_suspect_partitions(
            tp for tp in suspect if can_lead(self._losses.get_partition_image(tp), view.node_id)
        )
        try:
            await self._loss_reporter.report_losses()
        except Unavailable as error:
            log.warning("data directory is trusted later why=%s", error)

    async def _forget_adopted(self) -> None:
        """Removes the file of adopted logs, since the metadata names this broker for them. Drops those whose replicas
        were deleted or moved away meanwhile."""
        hosted = {(tp, topic.topic_id) for tp, topic in hosted_partitions(self._view.image, self._view.node_id)}
        for each in self._log_store.adopted:
            if each not in self._adopted and (each.tp, each.topic_id) not in hosted:
                self._log_store.drop(each.tp, each.topic_id)
        try:
            await self._data_directory.forget_adopted()
        except Unavailable as error:
            log.warning("file of adopted logs stays until the next start why=%s", error)

    async def _register(self, state: DirectoryState, timeout: float) -> None:
        """Registers, and notes the suspect partitions.

        If another incarnation has registered meanwhile, replaces that one, unless it replies. Registers again if the
        level of the metadata was raised meanwhile: a registration tells the supported level from then on only.
        """
        view = self._view
        until_ns = self._clock.mono_ns() + int(timeout * 1e9)
        while True:
            image = view.image
            if self._find_registered(image) not in (self._replaces, view.incarnation):
                await self.check_duplicate(image)
                self._check_still_believed(image, state)
            if view.settings.process and image.brokers and image.metadata_version < PROCESSES:
                raise Refused(Code.UNSUPPORTED_VERSION, PROCESSES_REFUSED)
            registration, tells_level = self._make_request(state), image.metadata_version >= SUPPORTED_LEVELS
            try:
                await self._channel.submit_with_retry(registration, timeout)
                self._loss_reporter.is_registered = True
                return
            except Refused as refused:
                is_last = self._clock.mono_ns() >= until_ns or view.loader.has_ended
                is_level_missing = refused.code is Code.UNSUPPORTED_VERSION and not tells_level
                if not (refused.code is Code.DUPLICATE_BROKER_REGISTRATION or is_level_missing) or is_last:
                    raise
                log.warning("registration is refused, and repeated why=%s", refused.why)
            await self._clock.sleep(RETRY_SECONDS)

    def _check_still_believed(self, image: Image, state: DirectoryState) -> None:
        """Raises `Refused` if the start believes more of the directory than it may, since it replaces another
        incarnation now. That one may have run on another copy: the next start finds it out."""
        found, known = discard_untrusted(image.brokers.get(self._view.node_id), state)
        now = found.same_boot, found.clean, found.synced_logs, known
        if now != (state.same_boot, state.clean, state.synced_logs, self._is_known_directory):
            why = f"another process has registered as broker {self._view.node_id} during this start: start again"
            raise Refused(Code.DUPLICATE_BROKER_REGISTRATION, why)

    def _make_request(self, state: DirectoryState) -> requests.RegisterBroker:
        """Returns the request to register, and notes which partitions are suspect."""
        view, known = self._view, self._is_known_directory
        whole = known and state.is_intact
        proved: list[tuple[TopicId, int]] = []
        suspects: list[TopicPartition] = []
        ends: list[requests.ReplicaEnd] = []
        for tp, topic in hosted_partitions(view.image, view.node_id):
            proof = whole or (tp, topic.topic_id) in state.synced_logs
            if not proof or self._log_store.is_suspect(tp):
                suspects.append(tp)
            elif not whole:
                proved.append((topic.topic_id, tp.partition))
            now = topic.partitions[tp.partition]
            # The image may lack replicas: the controller may have started a reassignment that is not known here yet.
            if suspects[-1:] == [tp] or not (now.isr or now.elr):
                end = self._log_store.end_of(tp, topic.topic_id)
                ends.append(requests.ReplicaEnd(topic.topic_id, tp.partition, *end))
        adopted = self._choose_adopted(view.image)
        for given in adopted:
            whole_there = is_proved(view.image, given)
            for topic_id, p in given.partitions:
                topic = view.image.topics_by_id[topic_id]
                tp, now = TopicPartition(topic.name, p), topic.partitions[p]
                is_suspect = not whole_there or self._log_store.is_suspect(tp)
                if is_suspect:
                    suspects.append(tp)
                if is_suspect or not (now.isr or now.elr):
                    ends.append(requests.ReplicaEnd(topic_id, p, *self._log_store.end_of(tp, topic_id)))
        self._losses.set_suspect_partitions(suspects)
        return requests.RegisterBroker(
            view.node_id, view.incarnation, state.directory_id if known else "", view.settings.http_address,
            view.settings.broker_rack, whole, {}, tuple(ends), tuple(proved), self._replaces,
            process=view.settings.process, adopted=adopted,
        )  # fmt: skip

    def _choose_adopted(self, image: Image) -> tuple[requests.AdoptedReplicas, ...]:
        """Returns the replicas to take over from other processes of this machine (I36). Raises `Refused` if one of them
        cannot be taken over any more: the next start keeps its log aside."""
        view = self._view
        self._adopted, refused = choose_adopted(image, view.node_id, view.settings.process, self._log_store.adopted)
        for each, why in refused:
            raise Refused(Code.INVALID_REGISTRATION, f"{each.tp}: {why}: start again")
        return group_by_giver(self._adopted)

    async def announce(self, http: str, listeners: Mapping[str, str], advertised_http: str) -> None:
        """Tells the cluster the addresses of this incarnation.

        Waits a while until the controller can connect to them, then raises `Refused` (BROKER_NOT_AVAILABLE).
        """
        announced = requests.AnnounceBroker(
            self._view.node_id, self._view.incarnation, http, listeners, advertised_http
        )
        until_ns = self._clock.mono_ns() + int(REACH_SECONDS * 1e9)
        while True:
            try:
                await self._startup_retry.retry_refused(lambda: self._channel.submit_with_retry(announced))
                await self._unregister_left_out()
                return
            except Refused as refused:
                if refused.code is not Code.BROKER_NOT_AVAILABLE or self._clock.mono_ns() >= until_ns:
                    raise
                log.warning("addresses of this broker are not announced yet why=%s", refused.why)
            await self._clock.sleep(RETRY_SECONDS)

    async def _unregister_left_out(self) -> None:
        """Unregisters the processes that this machine does not run any more. Those that still have a replica stay."""
        view = self._view
        for node in find_left_out(view.image, view.node_id, view.settings):
            try:
                await self._channel.submit(requests.UnregisterBroker(node))
            except (Refused, Unavailable) as error:
                log.info("broker that this machine does not run stays registered node_id=%d why=%s", node, error)


def discard_untrusted(last: BrokerImage | None, state: DirectoryState) -> tuple[DirectoryState, bool]:
    """Returns what may be believed of a directory, and whether the cluster knows the directory.

    Its proof and its clean mark count only if the `last` incarnation had this directory, and if they name it. Otherwise
    that one ran on another copy of the directory, and this copy may be older. A broker registers a directory that the
    cluster does not know under an empty id, until all its losses are reported. Nothing of such a directory counts.
    """
    known = last is None or last.directory == state.directory_id
    ran = (last.incarnation,) if last is not None and known else ()
    if set(ran).intersection(state.incarnations):  # the last one first: of many incarnations some are left out
        state = state._replace(incarnations=tuple(dict.fromkeys((*ran, *state.incarnations))))
    else:
        state = state._replace(same_boot=False, synced_logs=frozenset(), incarnations=())
    if state.clean_incarnation not in ran:
        state = state._replace(clean=False, clean_entries={})
    return state, known


def can_lead(now: PartitionImage | None, node_id: int) -> bool:
    """True if this broker may still lead with the log that its start found.

    If there is no leader, this broker may be fenced for a moment, and may lead again before it applies that.
    """
    return now is not None and now.leader in (node_id, NO_LEADER)
