"""Tests of an active controller: brokers that it tracks, and a pause of its process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress

import pytest

from tests.scenario import run_by
from tests.unit.controller.test_member import MemberRig, run
from tiered.controller.active import ActiveController
from tiered.controller.requests import FenceBroker, Quorum, QuorumObserver, RegisterBroker
from tiered.errors import Unavailable
from tiered.peers import MetadataFetch

Scenario = Callable[[MemberRig, ActiveController], Coroutine[None, None, None]]


def run_active(scenario: Scenario) -> None:
    """Runs a scenario beside broker 1, which is the controller of the brokers 1 and 2."""

    async def main(rig: MemberRig) -> None:
        await rig.start()
        running = asyncio.ensure_future(rig.member.run())
        for node in (1, 2):
            await rig.member.decide(RegisterBroker(node, f"i{node}", "d", ""), 10)
        active = rig.member.active_controller
        assert active is not None
        await scenario(rig, active)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(main)


def fetch_by(rig: MemberRig, node: int, *, applied: int | None = None) -> MetadataFetch:
    slot = rig.member.view.image.slot
    return MetadataFetch(node, f"i{node}", slot + 1, slot if applied is None else applied, 1, 0)


@run_by(run_active)
async def test_broker_that_fetches_is_not_fenced_and_a_silent_one_is(rig: MemberRig, active: ActiveController) -> None:
    session = rig.member.view.session_ms / 1000
    for _ in range(6):
        with active.track_metadata_fetch(fetch_by(rig, 2)):
            await asyncio.sleep(session / 3)
    assert not rig.member.view.image.brokers[2].fenced and active.was_followed
    await asyncio.sleep(2 * session)
    assert rig.member.view.image.brokers[2].fenced
    assert not rig.member.view.image.brokers[1].fenced, "this broker does not fetch from itself"


@pytest.mark.parametrize("has_all", [True, False])
@run_by(run_active)
async def test_fenced_broker_returns_once_it_has_applied_all(
    rig: MemberRig, active: ActiveController, *, has_all: bool
) -> None:
    await active.decide(FenceBroker(2, "i2"), 10)
    assert rig.member.view.image.brokers[2].fenced
    slot = rig.member.view.image.slot
    with active.track_metadata_fetch(fetch_by(rig, 2, applied=slot if has_all else slot - 1)):
        await asyncio.sleep(1)
    assert rig.member.view.image.brokers[2].fenced is not has_all


@run_by(run_active)
async def test_fetch_that_ends_with_its_connection_is_no_contact(rig: MemberRig, active: ActiveController) -> None:
    session = rig.member.view.session_ms / 1000
    with suppress(Unavailable), active.track_metadata_fetch(fetch_by(rig, 2)):
        await asyncio.sleep(session * 2 / 3)
        raise Unavailable("the connection is gone")
    await asyncio.sleep(session / 2)
    assert rig.member.view.image.brokers[2].fenced, "its last contact is the begin of the fetch"


@run_by(run_active)
async def test_newer_controller_ends_contact_at_once(rig: MemberRig, active: ActiveController) -> None:
    assert active.has_contact
    active.on_newer_controller()
    assert not active.has_contact


@run_by(run_active)
async def test_observers_are_listed_with_what_they_have_applied(rig: MemberRig, active: ActiveController) -> None:
    slot = rig.member.view.image.slot
    with active.track_metadata_fetch(fetch_by(rig, 2)):
        await asyncio.sleep(1)
    observers = (QuorumObserver(2, -1, -1, -1), QuorumObserver(3, -1, -1, -1))
    quorum = active.add_progress(Quorum(1, 1, 0, 100_000, observers))
    [second, third] = quorum.observers
    assert second == QuorumObserver(2, slot, 99_000, 99_000)
    assert third == QuorumObserver(3, -1, -1, -1), "no fetch, no times"


@run_by(run_active)
async def test_wait_for_all_brokers_ends_with_the_last_of_them_or_after_a_second(
    rig: MemberRig, active: ActiveController
) -> None:
    slot, now = rig.member.view.image.slot, asyncio.get_running_loop().time
    with active.track_metadata_fetch(fetch_by(rig, 2, applied=slot - 1)):
        began = now()
        await active.wait_until_applied(slot)
        assert now() - began == pytest.approx(1)
    waiting = asyncio.ensure_future(active.wait_until_applied(slot))
    await asyncio.sleep(0.25)
    began = now()
    with active.track_metadata_fetch(fetch_by(rig, 2)):
        await waiting
    assert now() == began
