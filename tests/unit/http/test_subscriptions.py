"""Tests of patterns of REST consumers: each is matched with new topics only, once for all consumers, and off the event
loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.scenario import run_alone, run_by
from tiered.system.clock import SystemClock
from tiered_api.http.consumers.subscriptions import JOB_STEPS, PatternCache
from tiered_api.http.exchange.limits import Exhausted


class Thread:
    """Does the work at once, and notes it."""

    def __init__(self, refuses: int = 0) -> None:
        self.jobs: list[tuple[int, int]] = []
        """(steps, names) of each job."""
        self.refuses = refuses
        self.at_once = self.most = 0

    async def work(self, steps: int, among: Callable[[list[str]], list[str]], names: list[str]) -> list[str]:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.refuses:
            self.refuses -= 1
            raise Exhausted("too much to do")
        self.jobs.append((steps, len(names)))
        return among(names)


def known(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 1)


@run_by(run_alone)
async def test_pattern_names_topics_in_order_and_no_internal_ones() -> None:
    matches = PatternCache(Thread().work, SystemClock()).get_matches("a.*|__.*")
    assert await matches.matching_names(known("b", "ac", "__a", "ab", "a")) == ("a", "ab", "ac")
    assert await matches.matching_names(known("b", "ac")) == ("ac",)
    assert await matches.matching_names(known()) == ()


@run_by(run_alone)
async def test_new_topic_is_matched_once_for_each_pattern() -> None:
    thread = Thread()
    patterns = PatternCache(thread.work, SystemClock())
    consumers = [patterns.get_matches(f".*-{number % 4}") for number in range(20)]
    before = known(*(f"topic-{number}" for number in range(500)))
    await asyncio.gather(*(each.matching_names(before) for each in consumers))
    assert sum(names for _, names in thread.jobs) == 4 * 500
    thread.jobs.clear()
    after = before | known("new-1")
    found = await asyncio.gather(*(each.matching_names(after) for each in consumers))
    assert [names for _, names in thread.jobs] == [1] * 4
    assert ["new-1" in names for names in found] == [number % 4 == 1 for number in range(20)]
    assert thread.most == 1, "patterns leave a thread to others"


@run_by(run_alone)
async def test_many_topics_are_matched_in_jobs_of_bounded_size() -> None:
    thread = Thread()
    names = known(*(f"{'x' * 240}{number:05}" for number in range(5_000)))
    matched = await PatternCache(thread.work, SystemClock()).get_matches(".*0.{9}").matching_names(names)
    assert matched == () and len(thread.jobs) > 5
    assert max(steps for steps, _ in thread.jobs) <= JOB_STEPS
    assert sum(count for _, count in thread.jobs) == 5_000


@run_by(run_alone)
async def test_refused_work_is_retried() -> None:
    thread = Thread(refuses=1)
    assert await PatternCache(thread.work, SystemClock()).get_matches("a").matching_names(known("a", "b")) == ("a",)
    assert thread.refuses == 0
