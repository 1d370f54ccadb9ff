"""`python -m tests.sim.false_alarms [--hours 24] [--first-seed 1] [--jobs N]`: a loaded cluster of three brokers with
the default settings, in simulated time, an hour for each seed. Processes pause for a second, one or several at a time,
and some fsyncs take two. No broker may be fenced, and no controller replaced. Followers that leave an in-sync set are
counted apart: three slow fsyncs and two pauses within `replica.lag.time.max.ms` are a follower that lags."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from tests.sim.__main__ import without_logs_and_gc
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic
from tiered.errors import Refused

PAUSE_SECONDS = 1.0
PAUSE_EVERY_SECONDS = 6.0
"""Mean time between two pauses of the cluster."""
SHARE_OF_SEVERAL, SHARE_OF_ANOTHER_AFTER = 0.2, 0.3
"""Shares of the pauses that take two brokers at once, and after which another broker pauses at once."""
SLOW_SYNC_SHARE, SLOW_SYNC_SECONDS, SYNC_SECONDS = 0.02, 2.0, 0.005
WRITE_EVERY_SECONDS = 1.0
TOPICS = {"t": "none", "a": "ack"}
"""Topics by their `flush`, with a partition for each broker to lead."""
HOUR = 3600.0


class Facts(NamedTuple):
    """Epochs that rise by one with each new controller, each new leader, and each change of a partition."""

    controller: int
    leaders: int
    partitions: int


def read_facts(three: ThreeBrokers) -> Facts:
    image = three.newest_image()
    partitions = [each for name in TOPICS for each in image.topics[name].partitions]
    return Facts(
        image.controller_epoch,
        sum(each.leader_epoch for each in partitions),
        sum(each.partition_epoch for each in partitions),
    )


async def pause(three: ThreeBrokers, brokers: list[SimBroker]) -> None:
    """Freezes processes for as long as the pause takes."""
    for each in brokers:
        three.loop.freeze(each.process)
    await asyncio.sleep(PAUSE_SECONDS)
    for each in brokers:
        three.loop.resume(each.process)


async def pause_now_and_then(three: ThreeBrokers, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.expovariate(1 / PAUSE_EVERY_SECONDS))
        brokers = rng.sample(sorted(three.brokers.values(), key=lambda each: each.node_id), 3)
        count = 2 if rng.random() < SHARE_OF_SEVERAL else 1
        await pause(three, brokers[:count])
        if count == 1 and rng.random() < SHARE_OF_ANOTHER_AFTER:
            await pause(three, brokers[1:2])


async def write(three: ThreeBrokers, topic: str, number: int) -> None:
    while True:
        leader = three.brokers[three.newest_image().topics[topic].partitions[number].leader]
        if not three.loop.is_frozen(leader.process):
            with suppress(Refused):
                await leader.node.leader_replica(topic, number).append(batch([b"v" * 100]), timeout_ms=5_000)
        await asyncio.sleep(WRITE_EVERY_SECONDS)


async def run_loaded(three: ThreeBrokers, seconds: float, report: Callable[[Facts, Facts], None]) -> None:
    rng = random.Random(f"{three.loop.seed}/pauses")
    for name, flush in TOPICS.items():
        await three.controller.node.submit(
            CreateTopic(name, 3, 3, configs={"min.insync.replicas": "2", "flush": flush, "retention.bytes": "1000000"})
        )
    await asyncio.sleep(5)
    for each in three.brokers.values():
        each.machine.disk.sync_seconds = lambda: SLOW_SYNC_SECONDS if rng.random() < SLOW_SYNC_SHARE else SYNC_SECONDS
    before = read_facts(three)
    tasks = [asyncio.create_task(write(three, name, number)) for name in TOPICS for number in range(3)]
    tasks.append(asyncio.create_task(pause_now_and_then(three, rng)))
    await asyncio.sleep(seconds)
    after = read_facts(three)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in three.brokers.values():
        three.loop.resume(each.process)
    report(before, after)


def count_alarms(seed: int, seconds: float = HOUR) -> tuple[int, int]:
    """Returns how many controllers and leaders were replaced in a run of that seed, and how many other changes of
    in-sync sets there were."""
    found: list[tuple[int, int]] = []

    def report(before: Facts, after: Facts) -> None:
        controllers, leaders, changes = (new - old for old, new in zip(before, after, strict=True))
        found.append((controllers + leaders, max(0, changes - leaders)))

    scenario: Callable[[ThreeBrokers], Awaitable[None]] = partial(run_loaded, seconds=seconds, report=report)
    with without_logs_and_gc():
        run_scenario(scenario, seed)
    return found[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    alarms, left, seeds = 0, 0, range(args.first_seed, args.first_seed + args.hours)
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for seed, (replaced, changes) in zip(seeds, pool.imap(count_alarms, seeds), strict=True):
            alarms, left = alarms + replaced, left + changes
            print(f"seed {seed}: {replaced} false alarms, {changes} changes of in-sync sets in an hour", flush=True)
    print(f"{alarms} false alarms, {left} changes of in-sync sets in {args.hours} hours")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
