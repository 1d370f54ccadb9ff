"""The way to the controller: closed before the broker runs, in this process, or over another broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.scenario import in_rig
from tests.unit.member_view import make_view
from tests.unit.replication.rig import DirectPeers, ReplicationRig
from tiered.config.settings import Settings
from tiered.controller.channel import FORWARDED_MAX, ControllerChannel
from tiered.controller.request_codec import encode_reply
from tiered.controller.requests import ForgetTopic
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicId
from tiered.metadata.changes import BrokerRegistered, ControllerElected
from tiered.metadata.image import Image
from tiered.peers import ForwardReply
from tiered_api.kafka.client.peers import IN_FLIGHT_MAX

REQUEST = ForgetTopic(TopicId("A" * 22))


class Role:
    """The controller role of this broker, which replies with the number of requests so far."""

    def __init__(self, *, is_controller: bool) -> None:
        self.is_controller = is_controller
        self.requests: list[Any] = []

    async def decide(self, request: Any, timeout: float) -> int:
        self.requests.append(request)
        return len(self.requests)


class ForwardingPeers(DirectPeers):
    """Forwards requests to a controller: `reply` says what comes of each, `is_sent` if it was sent before that."""

    def __init__(self, rig: ReplicationRig) -> None:
        super().__init__(rig)
        self.addresses: list[str] = []
        self.is_sent = True
        self.reply: Unavailable | str | None = None
        self.replies = asyncio.Event()
        """Replies come while it is set."""
        self.replies.set()

    async def forward(
        self, address: str, request: bytes, timeout: float, on_send: Callable[[], None] = lambda: None
    ) -> ForwardReply:
        self.addresses.append(address)
        if self.is_sent:
            on_send()
        await self.replies.wait()
        if isinstance(self.reply, Unavailable):
            raise self.reply
        if self.reply == "never":
            await asyncio.sleep(timeout)
        return ForwardReply(encode_reply(None), 0)


def image_with_controller(node_id: int) -> Image:
    """Returns the image of brokers 1 to 3, with one of them as controller."""
    brokers = [
        BrokerRegistered(node, f"i{node}", "d", "", "", 0, {"PLAINTEXT": f"broker-{node}:9092"}) for node in (1, 2, 3)
    ]
    return Image().apply([*brokers, ControllerElected(1, node_id, f"i{node_id}")], 0)


class Way:
    """An open channel of broker 1, with broker 2 as controller."""

    def __init__(self, *, is_controller: bool = False) -> None:
        self.rig = ReplicationRig()
        self.view = make_view(image_with_controller(2), Settings(node_id=1), "i1")
        self.role = Role(is_controller=is_controller)
        self.peers = ForwardingPeers(self.rig)
        self.channel = ControllerChannel(self.view, self.role, self.peers, self.rig.clock, Random(1))
        self.view.loader.applied_slot = 0
        self.run = self.rig.run


@in_rig(Way, is_controller=True)
async def test_closed_channel_refuses_every_request(way: Way) -> None:
    with pytest.raises(Refused, match="does not run") as refused:
        await way.channel.submit(REQUEST)
    assert refused.value.code is Code.NOT_CONTROLLER and not way.role.requests
    way.channel.open()
    assert await way.channel.submit(REQUEST) == 1


@in_rig(Way, is_controller=True)
async def test_controller_in_this_process_decides_the_request(way: Way) -> None:
    way.channel.open()
    assert await way.channel.submit(REQUEST) == 1
    assert way.role.requests == [REQUEST] and not way.peers.addresses


@in_rig(Way)
async def test_request_goes_to_the_controller_that_the_image_names(way: Way) -> None:
    way.channel.open()
    assert await way.channel.submit(REQUEST) is None
    assert way.peers.addresses == ["broker-2:9092"] and not way.role.requests


@in_rig(Way)
async def test_request_that_was_not_sent_is_sent_again_to_the_next_controller(way: Way) -> None:
    way.channel.open()
    way.peers.is_sent, way.peers.reply = False, Unavailable("connection refused")
    submitted = asyncio.create_task(way.channel.submit(REQUEST))
    await asyncio.sleep(1)
    way.peers.is_sent, way.peers.reply = True, None
    way.view.loader.image = image_with_controller(3)
    assert await submitted is None
    assert set(way.peers.addresses[:-1]) == {"broker-2:9092"} and way.peers.addresses[-1] == "broker-3:9092"


@in_rig(Way)
async def test_request_that_was_sent_is_not_sent_again_without_a_reply(way: Way) -> None:
    """The controller may have written the change before it died."""
    way.channel.open()
    way.peers.reply = Unavailable("connection lost")
    with pytest.raises(Refused) as refused:
        await way.channel.submit(REQUEST)
    assert refused.value.code is Code.REQUEST_TIMED_OUT and len(way.peers.addresses) == 1


@in_rig(Way)
async def test_new_controller_ends_requests_that_the_previous_one_got(way: Way) -> None:
    way.channel.open()
    way.peers.reply = "never"
    submitted = asyncio.create_task(way.channel.submit(REQUEST))
    await asyncio.sleep(1)
    way.channel.on_image()
    await asyncio.sleep(1)
    assert not submitted.done(), "the same controller may still reply"
    way.view.loader.image = image_with_controller(3)
    way.channel.on_image()
    with pytest.raises(Refused, match="another controller took over") as refused:
        await submitted
    assert refused.value.code is Code.REQUEST_TIMED_OUT


@in_rig(Way)
async def test_request_that_may_be_repeated_is_sent_again_without_a_reply(way: Way) -> None:
    way.channel.open()
    way.peers.reply = Unavailable("connection lost")
    submitted = asyncio.create_task(way.channel.submit_with_retry(REQUEST))
    await asyncio.sleep(1)
    way.peers.reply = None
    await submitted
    assert len(way.peers.addresses) > 1


@in_rig(Way)
async def test_request_is_not_repeated_by_a_broker_that_ended(way: Way) -> None:
    """It can apply no change any more. Once, a start repeated its request for half a minute before it gave up."""
    way.channel.open()
    way.view.loader.applied_slot = -1
    way.view.loader.end()
    with pytest.raises(Refused, match="this broker stopped"):
        await way.channel.submit_with_retry(REQUEST)
    assert len(way.peers.addresses) == 1


@in_rig(Way)
async def test_forwarded_requests_of_one_client_leave_room_for_others(way: Way) -> None:
    """Once, one client's changes were all requests that a broker may have under way to the controller. Heartbeats of
    the broker waited behind them, and the controller fenced it."""
    way.channel.open()
    way.peers.replies.clear()
    submitted = [asyncio.create_task(way.channel.submit(REQUEST, holder="User:greedy")) for _ in range(200)]
    await asyncio.sleep(0)
    assert len(way.peers.addresses) == FORWARDED_MAX < IN_FLIGHT_MAX, "the others wait for their turn"
    own = asyncio.create_task(way.channel.submit(REQUEST))
    await asyncio.sleep(0)
    assert len(way.peers.addresses) == FORWARDED_MAX + 1, "a request of the broker itself does not wait"
    late = asyncio.create_task(way.channel.submit(REQUEST, holder="User:late"))
    await asyncio.sleep(0)
    way.peers.replies.set()
    await late
    assert sum(each.done() for each in submitted) < 100, "it waited for few of the other client"
    await asyncio.gather(own, *submitted)


@in_rig(Way)
async def test_request_of_a_client_is_refused_if_its_turn_does_not_come_in_time(way: Way) -> None:
    way.channel.open()
    way.peers.replies.clear()
    first = [asyncio.create_task(way.channel.submit(REQUEST, holder="User:greedy")) for _ in range(FORWARDED_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(Refused, match="wait for the controller") as refused:
        await way.channel.submit(REQUEST, 1.0, holder="User:late")
    assert refused.value.code is Code.THROTTLING_QUOTA_EXCEEDED and len(way.peers.addresses) == FORWARDED_MAX
    way.peers.replies.set()
    await asyncio.gather(*first)
