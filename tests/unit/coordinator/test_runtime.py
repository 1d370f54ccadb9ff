"""The runtime with a shard of counters: decide, append, apply, commit, reply, in this order, for any shard."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from tests.scenario import run_by
from tests.unit.coordinator.counters import (
    FOLLOWER,
    LEADER,
    Add,
    CounterRig,
    CounterShard,
    Raised,
    Read,
    Runtime,
    WaitFor,
)
from tiered.coordinator import runtime
from tiered.coordinator.runtime import COMMIT_MS
from tiered.errors import Code, Refused

SECONDS = 10.0


@pytest.fixture
def rig() -> CounterRig:
    return CounterRig()


async def code_of(reply: asyncio.Future[int]) -> Code:
    with pytest.raises(Refused) as refused:
        await reply
    return refused.value.code


# -- persist before reply ---------------------------------------------------------------------------------------------


@run_by(CounterRig.run, "rig")
async def test_change_is_in_the_log_and_replicated_before_its_reply(*, rig: CounterRig) -> None:
    replica = await rig.lead()
    adding = rig.submit(Add("a", 2))
    await rig.settle()
    assert replica.log.end_offset == 1 and not adding.done()
    rig.replicate()
    assert await adding == 2


@run_by(CounterRig.run, "rig")
async def test_decision_sees_changes_that_are_not_committed_yet(*, rig: CounterRig) -> None:
    await rig.lead()
    replies = [rig.submit(Add("a", 2)), rig.submit(Add("a", 3))]
    await rig.settle()
    replies.append(rig.submit(Add("a", 4)))
    await rig.settle()
    rig.replicate()
    assert await asyncio.gather(*replies) == [2, 5, 9]


@run_by(CounterRig.run, "rig")
async def test_read_waits_for_the_changes_that_it_shows(*, rig: CounterRig) -> None:
    await rig.lead()
    rig.submit(Add("a", 2))
    in_turn = rig.submit(Read("a"))
    await rig.settle()
    later = rig.submit(Read("a"))
    await asyncio.sleep(1)
    assert not in_turn.done() and not later.done()
    rig.replicate()
    assert (await in_turn, await later) == (2, 2)


@run_by(CounterRig.run, "rig")
async def test_read_gets_its_reply_in_the_same_turn_if_nothing_waits(*, rig: CounterRig) -> None:
    await rig.lead()
    _, reply = rig.coordinator.submit(Read("a"))
    assert reply == 0


@run_by(CounterRig.run, "rig")
async def test_event_is_reported_once_its_change_is_committed(*, rig: CounterRig) -> None:
    await rig.lead()
    adding = rig.submit(Add("a", 2))
    await rig.settle()
    observer = rig.kind.observer
    assert (observer.requests, observer.events) == ([Add("a", 2)], [])
    rig.replicate()
    await adding
    assert observer.events == [Raised("a", 2)]


@run_by(CounterRig.run, "rig")
async def test_event_of_a_decision_without_change_is_reported_at_once(*, rig: CounterRig) -> None:
    await rig.lead()
    _, reply = rig.coordinator.submit(Add("a", 0))
    assert reply == 0 and rig.kind.observer.events == [Raised("a", 0)]


@run_by(CounterRig.run, "rig")
async def test_event_is_reported_if_its_caller_is_gone(*, rig: CounterRig) -> None:
    await rig.lead()
    adding = rig.submit(Add("a", 2))
    await rig.settle()
    adding.cancel()
    await rig.settle()
    rig.replicate()
    await rig.settle()
    assert rig.kind.observer.events == [Raised("a", 2)]


@run_by(CounterRig.run, "rig")
async def test_request_without_caller_is_decided_and_logged(*, rig: CounterRig) -> None:
    replica = await rig.lead()
    rig.coordinator.submit_unawaited(Add("a", 2))
    await rig.settle()
    assert replica.log.end_offset == 1 and rig.coordinator.shard.values == {"a": 2}


# -- replies at once --------------------------------------------------------------------------------------------------


@run_by(CounterRig.run, "rig")
async def test_reply_is_there_at_once_if_the_log_commits_on_append(*, rig: CounterRig) -> None:
    replica = await rig.lead([LEADER])
    _, earlier = rig.coordinator.submit(Add("a", 1))
    assert isinstance(earlier, asyncio.Future) and not earlier.done()
    coordinator = rig.host.find_committing("key")
    assert coordinator is rig.coordinator and coordinator.submit_now(Add("a", 2)) == 3
    assert replica.log.end_offset == 2 and earlier.result() == 1, "the log has both changes in their order"
    assert rig.kind.observer.events == [Raised("a", 1), Raised("a", 3)]
    _, earlier = rig.coordinator.submit(Add("a", 1))
    assert coordinator.submit_now(Read("a")) == 4 and replica.log.end_offset == 3, "what the reply shows is there"


@run_by(CounterRig.run, "rig")
async def test_change_without_caller_is_in_the_log_at_once_if_that_is_asked_for(*, rig: CounterRig) -> None:
    replica = await rig.lead([LEADER])
    rig.coordinator.submit_unawaited(Add("a", 2), at_once=True)
    assert replica.log.end_offset == 1


@run_by(CounterRig.run, "rig")
async def test_coordinator_whose_log_has_followers_replies_to_nothing_at_once(*, rig: CounterRig) -> None:
    await rig.lead()
    assert rig.host.find_committing("key") is None
    adding = rig.submit(Add("a", 2))
    await rig.settle()
    rig.replica.apply_isr((LEADER,), (LEADER, FOLLOWER), 1)
    assert rig.replica.commits_on_append and rig.host.find_committing("key") is None, "the first change waits"
    assert await adding == 2
    assert rig.host.find_committing("key") is not None
    rig.has_contact = False
    with pytest.raises(Refused) as refused:
        rig.host.find_committing("key")
    assert refused.value.code is Code.COORDINATOR_NOT_AVAILABLE, "another broker may coordinate by now"


@run_by(CounterRig.run, "rig")
async def test_append_that_fails_at_once_refuses_and_ends_the_coordinator(*, rig: CounterRig) -> None:
    await rig.lead([LEADER])
    coordinator = rig.coordinator
    assert coordinator.submit_now(Add("a", 1)) == 1
    rig.rig.brokers[LEADER].disk.capacity = 1
    with pytest.raises(Refused) as refused:
        coordinator.submit_now(Add("a", 2))
    assert refused.value.code is Code.NOT_COORDINATOR and not coordinator.commits_on_append
    assert rig.host.find_committing("key") is None


# -- deferred replies -------------------------------------------------------------------------------------------------


@run_by(CounterRig.run, "rig")
async def test_parked_request_gets_its_reply_once_a_later_change_is_committed(*, rig: CounterRig) -> None:
    await rig.lead()
    waiting = rig.submit(WaitFor("a", 5))
    adding = rig.submit(Add("a", 2))
    await rig.settle()
    rig.replicate()
    await adding
    assert not waiting.done()
    rig.submit(Add("a", 4))
    await rig.settle()
    assert not waiting.done(), "the change that it waits for is not committed"
    rig.replicate()
    assert await waiting == 6


@run_by(CounterRig.run, "rig")
async def test_parked_request_gets_its_reply_at_its_deadline(*, rig: CounterRig) -> None:
    await rig.lead()
    started = asyncio.get_running_loop().time()
    late, early = rig.submit(WaitFor("a", 5, 9_000)), rig.submit(WaitFor("a", 5, 2_000))
    assert await early == -1
    assert asyncio.get_running_loop().time() - started == pytest.approx(2, abs=0.01)
    assert await late == -1
    assert asyncio.get_running_loop().time() - started == pytest.approx(9, abs=0.01)


@run_by(CounterRig.run, "rig")
async def test_shard_forgets_the_parked_request_of_a_cancelled_caller(*, rig: CounterRig) -> None:
    await rig.lead()
    waiting = rig.submit(WaitFor("a", 5))
    await rig.settle()
    assert len(rig.coordinator.shard.parked) == 1
    waiting.cancel()
    await rig.settle()
    assert rig.coordinator.shard.parked == {}


@run_by(CounterRig.run, "rig")
async def test_parked_request_ends_with_the_time_of_its_caller(*, rig: CounterRig) -> None:
    await rig.lead()
    assert await code_of(rig.submit(WaitFor("a", 5), SECONDS)) is Code.REQUEST_TIMED_OUT
    assert rig.coordinator.shard.parked == {}


def test_request_beyond_the_bound_of_waiting_ones_is_refused(rig: CounterRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "PENDING_REQUESTS_MAX", 200)

    async def scenario() -> None:
        await rig.lead()
        coordinator = rig.coordinator
        tokens = [coordinator.submit(WaitFor("a", 5))[0] for _ in range(200)]
        assert await code_of(rig.submit(Read("a"))) is Code.COORDINATOR_NOT_AVAILABLE
        coordinator.cancel_request(tokens[0])
        assert await rig.submit(Read("a")) == 0
        for token in tokens:
            coordinator.cancel_request(token)

    rig.run(scenario)


# -- the end ----------------------------------------------------------------------------------------------------------


@run_by(CounterRig.run, "rig")
async def test_resignation_refuses_all_requests_that_wait(*, rig: CounterRig) -> None:
    await rig.lead()
    waiting = [rig.submit(WaitFor("a", 5)), rig.submit(Add("a", 2)), rig.submit(Read("a"))]
    await rig.settle()
    rig.resign()
    assert {await code_of(each) for each in waiting} == {Code.NOT_COORDINATOR}
    assert await code_of(rig.submit(Read("a"))) is Code.NOT_COORDINATOR


@run_by(CounterRig.run, "rig")
async def test_ended_runtime_takes_no_request(*, rig: CounterRig) -> None:
    replica = await rig.lead()
    coordinator = rig.coordinator
    rig.resign()
    with pytest.raises(Refused):
        coordinator.submit(Read("a"))
    coordinator.submit_unawaited(Add("a", 2))
    await rig.settle()
    assert coordinator.run_due() is None and replica.log.end_offset == 0


@run_by(CounterRig.run, "rig")
async def test_failed_append_refuses_all_requests_that_wait(*, rig: CounterRig) -> None:
    """The log takes no change of this turn, and the callers of earlier turns get the error too."""
    await rig.lead()
    waiting = [rig.submit(WaitFor("a", 5)), rig.submit(Add("a", 1))]
    await rig.settle()
    rig.rig.brokers[1].disk.capacity = 1
    waiting.append(rig.submit(Add("a", 2)))
    assert {await code_of(each) for each in waiting} == {Code.NOT_COORDINATOR}


@run_by(CounterRig.run, "rig")
async def test_state_after_a_failed_append_is_that_of_the_log(*, rig: CounterRig) -> None:
    await rig.lead()
    first = rig.submit(Add("a", 1))
    await rig.settle()
    rig.replicate()
    await first
    failed = rig.coordinator
    rig.rig.brokers[1].disk.capacity = 1
    assert await code_of(rig.submit(Add("a", 2))) is Code.NOT_COORDINATOR
    assert failed.shard.values == {"a": 3}, "the shard ran ahead of its log"
    rig.rig.brokers[1].disk.capacity = 1 << 40
    await asyncio.sleep(SECONDS)
    assert rig.coordinator is not failed
    assert await rig.submit(Read("a")) == 1


@run_by(CounterRig.run, "rig")
async def test_change_that_is_not_replicated_in_time_ends_the_coordinator(*, rig: CounterRig) -> None:
    await rig.lead()
    failed, adding = rig.coordinator, rig.submit(Add("a", 2))
    await asyncio.sleep(COMMIT_MS / 1000 - 0.1)
    assert not adding.done()
    assert await code_of(adding) is Code.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(Refused):
        failed.submit(Read("a"))


# -- deadlines --------------------------------------------------------------------------------------------------------


@run_by(CounterRig.run, "rig")
async def test_deadline_is_reported_only_if_it_is_earlier_than_known(*, rig: CounterRig) -> None:
    reported: list[int] = []
    runtime = Runtime(
        await rig.lead(), CounterShard(), rig.rig.clock, rig.kind.observer, lambda mono_ms, wall_ms: wall_ms,
        spawn=Coroutine.close, on_deadline_advanced=reported.append, on_failed=lambda _: None,
    )  # fmt: skip
    now_ms = runtime.now().mono_ms
    tokens = [runtime.submit(WaitFor("a", 5, timeout_ms))[0] for timeout_ms in (9_000, 20_000, 4_000, 4_000)]
    assert reported == [now_ms + 9_000, now_ms + 4_000]
    await asyncio.sleep(4)
    assert runtime.run_due() == now_ms + 9_000
    tokens += [runtime.submit(WaitFor("a", 5, timeout_ms))[0] for timeout_ms in (8_000, 1_000)]
    assert reported[2:] == [now_ms + 5_000]
    for token in tokens:
        runtime.cancel_request(token)
