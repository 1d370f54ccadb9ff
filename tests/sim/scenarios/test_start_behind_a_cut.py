"""Tests of a broker that is cut off from the controller: its pending requests are sent soon after the cut heals.

One that starts meanwhile does not take the place of a controller that goes on.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.refusal import refuses
from tests.scenario import GIVEN, run_by
from tests.seeds import first_seeds
from tests.sim.scenarios.test_cut_off import isolate
from tests.sim.scenarios.three import SESSION, SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic, RegisterBroker
from tiered.durability.data_directory import DataDirectory
from tiered.errors import Code, Unavailable
from tiered.metadata.parts.brokers import BrokerImage

LATE = "L" * 21 + "A"
"""The incarnation of a process that was killed and whose registration comes late."""


def cut_from_controller(three: ThreeBrokers, broker: SimBroker) -> SimBroker:
    """Cuts both directions between the broker and the controller; returns the controller."""
    controller = three.controller
    for source, target in ((controller, broker), (broker, controller)):
        three.network.cut(source.name, target.name)
    return controller


async def wait_known(
    controller: SimBroker, broker: SimBroker, three: ThreeBrokers, *, live: bool, seconds: float
) -> None:
    await three.wait_until(lambda: controller.node.image.brokers[broker.node_id].live is live, seconds)


async def register_late(three: ThreeBrokers, broker: SimBroker, registered: BrokerImage, directory: str) -> None:
    """Submits the registration of a process that died after it had read `registered`."""
    request = RegisterBroker(broker.node_id, LATE, directory, "b9:1", replaces=registered.incarnation)
    await three.controller.node.submit(request)


async def kill_twice(three: ThreeBrokers, broker: SimBroker) -> BrokerImage:
    """Kills a broker, and then the start after it, which noted itself in the data directory. Returns what is
    registered."""
    await broker.kill()
    await wait_known(three.controller, broker, three, live=False, seconds=10)
    registered = three.controller.node.image.brokers[broker.node_id]
    await DataDirectory(broker.machine.disk).write_boot_mark(LATE, registered.incarnation)
    return registered


@run_by(run_scenario)
async def test_broker_that_starts_behind_a_cut_serves_soon_after_it_heals(three: ThreeBrokers) -> None:
    late = three.others()[0]
    await late.kill()
    await wait_known(three.controller, late, three, live=False, seconds=10)
    controller = cut_from_controller(three, late)
    starting = asyncio.create_task(late.start())
    await asyncio.sleep(10)
    assert not starting.done()
    three.network.heal()
    await wait_known(controller, late, three, live=True, seconds=5)
    await starting


@pytest.mark.parametrize("seed", first_seeds(1, of=3))
@run_by(run_scenario, seed=GIVEN)
async def test_starting_broker_that_is_cut_off_replaces_no_writing_controller(three: ThreeBrokers) -> None:
    """No controller has registered its process, so that none has to fence it. The log shows that others go on."""
    late = three.others()[0]
    await late.kill()
    await wait_known(three.controller, late, three, live=False, seconds=10)
    controller, epoch = three.controller, three.controller.node.image.controller_epoch
    isolate(three, late)
    starting = asyncio.create_task(late.start())
    await asyncio.sleep(SESSION)
    await controller.node.submit(CreateTopic("t"))
    for _ in range(30):
        await asyncio.sleep(SESSION / 4)
        assert controller.node.image.controller_epoch == epoch and controller.node.cluster.is_controller
    three.network.heal()
    await wait_known(controller, late, three, live=True, seconds=5)
    await starting


@run_by(run_scenario)
async def test_late_registration_of_a_killed_process_replaces_no_newer_one(three: ThreeBrokers) -> None:
    late = three.others()[0]
    await late.kill()
    await wait_known(three.controller, late, three, live=False, seconds=10)
    registered = three.controller.node.image.brokers[late.node_id].incarnation
    await late.start()
    for replaces in (registered, ""):
        with refuses(Code.DUPLICATE_BROKER_REGISTRATION):
            await three.controller.node.submit(RegisterBroker(late.node_id, LATE, "d", "", replaces=replaces))
    await asyncio.sleep(2 * SESSION)
    known = three.controller.node.image.brokers[late.node_id]
    assert (known.incarnation, known.live) == (late.node.incarnation, True)


@run_by(run_scenario)
async def test_start_replaces_a_killed_process_that_is_registered_meanwhile(three: ThreeBrokers) -> None:
    late = three.others()[0]
    registered = await kill_twice(three, late)
    controller = cut_from_controller(three, late)
    starting = asyncio.create_task(late.start())
    await asyncio.sleep(2)
    await register_late(three, late, registered, registered.directory)
    three.network.heal()
    await three.wait_until(lambda: controller.node.image.brokers[late.node_id].incarnation != LATE, 10)
    await starting
    known = controller.node.image.brokers[late.node_id]
    assert (known.incarnation, known.directory) == (late.node.incarnation, registered.directory)


@run_by(run_scenario)
async def test_start_waits_for_a_registration_of_its_broker_that_is_under_way(three: ThreeBrokers) -> None:
    """The controller has decided it, and the bucket is slow: the start has not read it."""
    late = three.others()[0]
    registered = await kill_twice(three, late)
    controller = three.controller
    controller.machine.faults.first_byte_seconds = 0.5
    earlier = asyncio.create_task(register_late(three, late, registered, registered.directory))
    await late.start()
    await earlier
    known = controller.node.image.brokers[late.node_id]
    assert (known.incarnation, known.live) == (late.node.incarnation, True)


@run_by(run_scenario)
async def test_start_after_which_another_directory_was_registered_fails(three: ThreeBrokers) -> None:
    """The process with the other directory may have taken records that this one lacks: the next start finds it out."""
    late = three.others()[0]
    registered = await kill_twice(three, late)
    controller = cut_from_controller(three, late)
    starting = asyncio.create_task(late.start())
    await asyncio.sleep(2)
    await register_late(three, late, registered, "another")
    three.network.heal()
    with pytest.raises(Unavailable, match="has registered as broker"):
        await starting
    assert controller.node.image.brokers[late.node_id].incarnation == LATE
    await late.kill()
    await late.start()
    assert late.node.registration._is_known_directory is False
    known = controller.node.image.brokers[late.node_id]
    assert (known.incarnation, known.directory) == (late.node.incarnation, registered.directory)


@run_by(run_scenario)
async def test_starting_broker_replaces_a_controller_that_no_longer_writes(three: ThreeBrokers) -> None:
    late = three.others()[0]
    await late.kill()
    await wait_known(three.controller, late, three, live=False, seconds=10)
    others = isolate(three, late)
    for each in others:
        three.loop.freeze(each.process)
    starting = asyncio.create_task(late.start())
    await three.wait_until(lambda: starting.done() and late.node.cluster.is_controller, 3 * SESSION)
    for each in others:
        three.loop.resume(each.process)


@run_by(run_scenario)
async def test_undelivered_request_is_repeated_soon_after_a_cut_heals(three: ThreeBrokers) -> None:
    """No broker received the request, so that it does not count as possibly done."""
    asker = three.others()[0]
    cut_from_controller(three, asker)
    await three.wait_until(lambda: not asker.node.cluster.has_controller_contact, 30)
    asked = asyncio.create_task(asker.node.submit(CreateTopic("t")))
    await asyncio.sleep(10)
    assert not asked.done()
    three.network.heal()
    await three.wait_until(asked.done, 5)
    assert (await asked).name == "t"
