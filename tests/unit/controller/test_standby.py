"""Tests of a standby controller: its contact with the controller, and its view of it for others."""

from __future__ import annotations

from random import Random

import pytest

from tests.scenario import in_rig
from tests.unit.member_view import make_view
from tests.unit.replication.rig import DirectPeers, ReplicationRig
from tiered.config.settings import Settings
from tiered.controller.standby import NO_CONTACT, StandbyController
from tiered.errors import Code, Refused, Unavailable
from tiered.metadata.changes import NO_LEADER, BrokerFenced, BrokerRegistered, BrokerStopped, Change, ControllerElected
from tiered.metadata.image import Image
from tiered.peers import ClockComparison, ControllerView, MetadataFetch, MetadataFetchReply

SESSION_SECONDS = 6.0
SUSPECT_SECONDS = 2.0
SETTINGS = Settings(node_id=1, broker_session_timeout_ms=int(SESSION_SECONDS * 1000))


class ControllerPeers(DirectPeers):
    """A controller that replies after a second, and brokers with a view of it."""

    def __init__(self, rig: ReplicationRig) -> None:
        super().__init__(rig)
        self.reply: MetadataFetchReply | Exception = MetadataFetchReply(1, 1, (), False, 0)
        self.views: dict[str, ControllerView] = {}
        self.fetches: list[MetadataFetch] = []
        self.is_process_gone = False

    async def fetch_metadata(self, address: str, ask: MetadataFetch, timeout: float) -> MetadataFetchReply:
        self.fetches.append(ask)
        await self._rig.clock.sleep(1)
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    async def get_controller_view(self, address: str, timeout: float) -> ControllerView:
        if address not in self.views:
            raise Unavailable(f"{address} does not answer")
        return self.views[address]

    async def is_gone(self, address: str, timeout: float) -> bool:
        return self.is_process_gone


def cluster(*more: Change, controller: int = 2) -> Image:
    """Returns the image of the brokers 1 to 3 after slot 0, with one of them as controller of epoch 1."""
    brokers = [
        BrokerRegistered(node, f"i{node}", "d", "", "", 0, {"PLAINTEXT": f"broker-{node}:9092"}) for node in (1, 2, 3)
    ]
    incarnation = f"i{controller}" if controller in (1, 2, 3) else ""
    return Image().apply([*brokers, ControllerElected(1, controller, incarnation), *more], 0)


class Rig:
    """Broker 1, which follows the controller 2."""

    def __init__(self, image: Image | None = None, *, alone: bool = False) -> None:
        self.rig = ReplicationRig()
        self.peers = ControllerPeers(self.rig)
        self.view = make_view(image or cluster(), SETTINGS, "i1")
        self.compared: list[ClockComparison] = []
        self.standby = StandbyController(
            self.view, None if alone else self.peers, self.rig.bucket.memory, self.rig.clock, Random(1),
            self.compared.append, lambda: "",
        )  # fmt: skip
        self.run = self.rig.run


@in_rig(Rig)
async def test_contact_ends_a_suspect_timeout_after_the_fetch_was_sent(at: Rig) -> None:
    assert await at.standby.fetch_metadata(0)
    assert at.standby.has_controller_contact and at.standby.silent_ms == 0
    await at.rig.clock.sleep(SUSPECT_SECONDS - 1.5)
    assert at.standby.has_controller_contact
    await at.rig.clock.sleep(1)
    assert at.standby.silent_ms == 1500 and not at.standby.has_controller_contact, "the reply took a second"


@pytest.mark.parametrize(
    "reply",
    [Unavailable("no answer"), Refused(Code.NOT_CONTROLLER, "none"), MetadataFetchReply(0, 1, (), False, 0)],
    ids=["unreachable", "refused", "an older controller"],
)
@in_rig(Rig)
async def test_reply_of_no_or_an_older_controller_is_no_contact(
    at: Rig, *, reply: MetadataFetchReply | Exception
) -> None:
    at.peers.reply = reply
    await at.rig.clock.sleep(SESSION_SECONDS)
    assert not await at.standby.fetch_metadata(0)
    assert not at.standby.has_controller_contact and at.standby.silent_ms == 7000


@in_rig(Rig)
async def test_broker_that_lacks_entries_of_the_controller_has_no_contact(at: Rig) -> None:
    at.peers.reply = MetadataFetchReply(1, 5, (), False, 0)
    assert await at.standby.fetch_metadata(0)
    assert not at.standby.has_controller_contact, "it may be fenced by one of them"
    at.peers.reply = MetadataFetchReply(1, at.view.image.slot + 1, (), False, 0)
    assert await at.standby.fetch_metadata(0)
    assert at.standby.has_controller_contact


@in_rig(Rig)
async def test_controller_that_cannot_write_for_long_is_stalled(at: Rig) -> None:
    at.peers.reply = MetadataFetchReply(1, 1, (), False, 10 * int(SESSION_SECONDS * 1000))
    assert not await at.standby.fetch_metadata(0)
    assert at.standby.is_store_stalled and at.standby.has_controller_contact, "it counts the fetch all the same"
    assert at.standby.controller_view() == ControllerView(1, 2, 0)


@in_rig(Rig)
async def test_view_of_a_lost_controller_has_no_contact_time(at: Rig) -> None:
    at.peers.reply = Unavailable("no answer")
    await at.rig.clock.sleep(2)
    assert at.standby.controller_view() == ControllerView(1, 2, 2000)
    assert not await at.standby.on_controller_lost()
    assert at.standby.controller_view().heard_ms_ago == NO_CONTACT
    at.peers.reply = MetadataFetchReply(1, at.view.image.slot + 1, (), False, 0)
    assert await at.standby.fetch_metadata(0)
    assert at.standby.controller_view().heard_ms_ago == 0


@pytest.mark.parametrize("others", ["have contact", "have none"])
@in_rig(Rig)
async def test_broker_is_no_candidate_while_others_have_contact(at: Rig, *, others: str) -> None:
    ago = 0 if others == "have contact" else int(SESSION_SECONDS * 1000) + 1
    at.peers.views["broker-3:9092"] = ControllerView(1, 2, ago)
    await at.rig.clock.sleep(SESSION_SECONDS + 1)
    assert await at.standby.on_controller_lost() is (others == "have none")


@in_rig(Rig)
async def test_broker_is_a_candidate_at_once_if_the_process_is_gone(at: Rig) -> None:
    at.peers.is_process_gone = True
    at.peers.views["broker-3:9092"] = ControllerView(1, 2, 100)
    assert await at.standby.on_controller_lost()
    assert at.rig.clock.mono_ns() < 1_000_000_000


@in_rig(Rig)
async def test_former_controller_has_no_contact_before_it_follows_another(at: Rig) -> None:
    at.standby.reset(was_followed=True)
    assert not at.standby.has_controller_contact and at.standby.silent_ms == 0
    assert await at.standby.fetch_metadata(0)
    assert at.standby.has_controller_contact


@in_rig(Rig)
async def test_ended_attempt_counts_silence_anew_and_is_no_contact(at: Rig) -> None:
    await at.rig.clock.sleep(SESSION_SECONDS + 1)
    at.standby.on_attempt_ended()
    assert at.standby.silent_ms == 0 and not at.standby.has_controller_contact


@pytest.mark.parametrize(
    ("image", "is_alone"),
    [
        (cluster(), False),
        (cluster(BrokerFenced(2, "i2"), BrokerStopped(3, "i3")), True),
        (cluster(BrokerStopped(2, "i2"), BrokerStopped(3, "i3"), controller=NO_LEADER), True),
        (cluster(BrokerStopped(2, "i2"), BrokerStopped(3, "i3"), controller=1), True),
        (Image(), True),
    ],
)
def test_broker_is_alone_if_no_other_is_live_or_becoming_controller(image: Image, is_alone: bool) -> None:
    """A fenced controller of the newest incarnation is no start that goes on."""
    assert Rig(image).standby.is_alone() is is_alone


@in_rig(Rig)
async def test_clock_is_compared_with_each_controller_that_sends_its_own(at: Rig) -> None:
    at.peers.reply = MetadataFetchReply(1, 1, (), False, 0, at.rig.clock.wall_ms() + 500, 0)
    assert await at.standby.fetch_metadata(0) and await at.standby.fetch_metadata(0)
    assert at.peers.fetches[0].clock is None and at.peers.fetches[1].clock is not None
    [first, second] = at.compared
    assert abs(first.ahead_ms) <= first.error_ms + 500 and second.error_ms >= 500, "a round trip of a second"
