"""Tests of the broker's log: it has one line for an event, and not one for each partition of it."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from tests.seeds import first_seeds
from tests.sim.scenarios.three import QUIET, ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic
from tiered.errors import Refused
from tiered.log_limiter import INTERVAL_SECONDS_MAX

PARTITIONS = 40
OUTAGE_SECONDS = 4 * INTERVAL_SECONDS_MAX


def is_all_in_sync(three: ThreeBrokers) -> bool:
    topic = three.controller.node.image.topics.get("t")
    return topic is not None and all(len(each.isr) == 3 for each in topic.partitions)


@pytest.mark.parametrize("seed", first_seeds(1, of=3))
def test_restart_of_a_broker_with_many_partitions_is_a_few_lines(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tiered")

    async def scenario(three: ThreeBrokers) -> None:
        await three.controller.node.submit(CreateTopic("t", PARTITIONS, 3))
        await three.wait_until(lambda: is_all_in_sync(three), 20)
        away = three.others()[0]
        await away.kill()
        await three.wait_until(lambda: not is_all_in_sync(three), 20)
        began = len(caplog.records)
        await away.start()
        await three.wait_until(lambda: is_all_in_sync(three), 20)
        await asyncio.sleep(5)
        lines.extend(each.getMessage() for each in caplog.records[began:])
        assert "NOT_LEADER_OR_FOLLOWER" not in caplog.text, "a leader that is not ready yet is no news"

    lines: list[str] = []
    run_scenario(scenario, seed)
    joined = [re.search(r"joined=\d( left=\S+)? partitions=(\d+) first=", line) for line in lines]
    assert sum(int(found[2]) for found in joined if found) >= PARTITIONS // 2
    assert sum("ISR changed" in line for line in lines) <= 10, "of two leaders, in one or two seconds"


def test_long_outage_of_the_bucket_is_logged_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(three: ThreeBrokers) -> None:
        for each in three.brokers.values():
            each.machine.faults.outage = True
        caplog.clear()
        with pytest.raises(Refused):
            await three.controller.node.submit(CreateTopic("never"), timeout=OUTAGE_SECONDS)
        for each in three.brokers.values():
            each.machine.faults.outage = False

    run_scenario(scenario, **QUIET)
    lines = [each.getMessage() for each in caplog.records]
    for words, brokers in (("metadata write not confirmed", 1), ("confirms nothing in time here either", 2)):
        some = [line for line in lines if words in line]
        assert 8 * brokers <= len(some) <= 15 * brokers, (words, len(some))
        found = re.search(r"seconds=(\d+)", some[-1])
        assert found and OUTAGE_SECONDS - INTERVAL_SECONDS_MAX <= int(found[1]) <= OUTAGE_SECONDS, some[-1]
    assert len(lines) <= 75, "of three brokers in 40 minutes"
