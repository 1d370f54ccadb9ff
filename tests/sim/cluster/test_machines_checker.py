"""Tests of the rule over machines (I35), each once kept and once broken."""

from __future__ import annotations

import pytest

from tests.sim.cluster.machines_checker import MachinesChecker
from tests.sim.harness.loop import PROCESS
from tests.unit.replication.test_leader_state import leader_state
from tiered.ids import TopicId
from tiered.metadata.changes import Change, PartitionChanged, TopicCreated
from tiered.metadata.image import Image

TOPIC = TopicId("AAAAAAAAAAAAAAAAAAAAAA")
MACHINES = {1: 1, 2: 2, 3: 3, 1001: 1, 1002: 2, 1003: 3}


def check(*changes: Change) -> list[str]:
    """Returns the findings in the image that these changes make."""
    found: list[str] = []
    image = Image()
    MachinesChecker(MACHINES, lambda rule, what: found.append(f"{rule}: {what}")).on_image(image, image.apply(changes))
    return found


def create(*replicas: int) -> Change:
    return TopicCreated("t", TOPIC, (replicas,), {}, 0)


def test_replicas_on_different_machines_are_no_finding() -> None:
    assert check(create(1, 1002, 3)) == []


def test_two_replicas_on_one_machine_are_reported() -> None:
    assert check(create(1, 2, 1001))[0] == "I35: t-0: replicas [1, 2, 1001] have a machine twice"


def test_unchanged_partition_is_not_looked_at_again() -> None:
    found: list[str] = []
    checker = MachinesChecker(MACHINES, lambda rule, what: found.append(rule))
    image = Image().apply((create(1, 1001), PartitionChanged(TOPIC, 0, 1, 1, (1, 1001), ())))
    checker.on_image(image, image)
    assert found == [] and checker.images == 1


@pytest.mark.parametrize(("isr", "expected"), [([1, 2], []), ([1, 1001], ["I35"])])
def test_high_watermark_moves_with_the_machines_of_the_isr(isr: list[int], expected: list[str]) -> None:
    found: list[str] = []
    token = PROCESS.set("b1.1")
    try:
        with MachinesChecker(MACHINES, lambda rule, what: found.append(rule)).watch():
            state = leader_state(isr, [1, 2, 1001])
            state.advance(20, 2)
            assert state.record_fetch(isr[1], 1, 20, log_end=20, now_ns=0, min_isr=2)
    finally:
        PROCESS.reset(token)
    assert found == expected
