"""Tests of `tiered cluster reassign|rebalance|decommission|unthrottle` against three real brokers."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import COMMAND, SECONDS, ServeProcess, run_tiered

pytestmark = pytest.mark.slow
confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
NOTHING = " 0 replicas would be copied\n"
COUNT, SIZE = 120, 50_000
RATE = COUNT * SIZE // 8
"""A rate at which one partition is copied in four seconds."""
NOT_WAITED_FOR = RATE + 2**20
"""Bytes that pass without a pause: one second of the rate is saved up, and nothing follows the last fetch."""


def start_broker(stack: ExitStack, directory: Path, node: int) -> ServeProcess:
    """Starts one broker of the cluster whose bucket is in `directory`."""
    store = f"file://{directory / 'bucket'}"
    return stack.enter_context(ServeProcess(directory / f"b{node}", "--store", store, "--node-id", str(node)))


@pytest.fixture
def at(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Returns the options that name one of the brokers. Topic `t` has two partitions, each on two brokers."""
    with ExitStack() as stack:
        served = [start_broker(stack, tmp_path, node) for node in (1, 2, 3)]
        option = ("--brokers", served[0].kafka)
        made = run_tiered("topic", "create", "t", "-p", "2", "-r", "2", "-c", "remote.storage.enable=false", *option)
        assert made.returncode == 0, made.stderr
        producer = confluent_kafka.Producer({"bootstrap.servers": option[1], "acks": "all"})
        for number in range(COUNT):
            producer.produce("t", bytes(SIZE), partition=number % 2)
        assert producer.flush(SECONDS) == 0
        yield option


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class AdminView:
    """The cluster through one client: a process for each check costs more."""

    def __init__(self, address: str) -> None:
        self._admin = admin.AdminClient({"bootstrap.servers": address, "log_level": 0})

    def replicas_of(self, topic: str = "t") -> dict[int, list[int]]:
        found = self._admin.list_topics(topic, timeout=SECONDS).topics[topic]
        return {number: list(each.replicas) for number, each in found.partitions.items()}

    def leader(self, topic: str) -> int:
        """Returns the leader of the topic's only partition, -1 if it has none."""
        return int(self._admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions[0].leader)

    def rates(self) -> set[str]:
        """Returns the rates to which the brokers throttle replicas."""
        named = [admin.ConfigResource(admin.ConfigResource.Type.BROKER, node) for node in ("1", "2", "3")]
        told = [each.result(SECONDS) for one in named for each in self._admin.describe_configs([one]).values()]
        return {each[name].value for each in told for name in RATES}


def test_reassignment_keeps_its_rate_and_a_cordoned_broker_gets_nothing(at: tuple[str, str]) -> None:
    seen = AdminView(at[1])
    unlimited = seen.rates()
    began, before = time.monotonic(), seen.replicas_of()
    (other,) = {1, 2, 3} - {*before[0]}
    to = [before[0][0], other]
    asked = ("t/0=" + ",".join(map(str, to)), "--throttle", str(RATE), "--format", "json")
    done = run_tiered("cluster", "reassign", *asked, *at)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"partition": "t/0", "replicas": before[0], "to": to, "status": "OK"}
    assert time.monotonic() - began > (COUNT * SIZE / 2 - NOT_WAITED_FOR) / RATE
    assert seen.replicas_of()[0] == to and seen.rates() == unlimited

    (other,) = {1, 2, 3} - {*before[1]}
    command = [*COMMAND, "cluster", "reassign", f"t/1={before[1][0]},{other}", "--throttle", "1000", *at]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as moving:
        try:
            wait_until(lambda: len(seen.replicas_of()[1]) == 3)
            moving.send_signal(signal.SIGINT)
            _, said = moving.communicate(timeout=SECONDS)
        finally:
            moving.kill()
        assert moving.returncode == 130 and "`tiered cluster unthrottle` takes it away" in said
    assert "1000" in seen.rates()
    done = run_tiered("cluster", "reassign", "--cancel", "t/1", "--format", "json", *at)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"partition": "t/1", "replicas": before[1], "to": None, "status": "OK"}
    wait_until(lambda: seen.replicas_of()[1] == before[1])
    assert run_tiered("cluster", "unthrottle", *at).returncode == 0
    assert seen.rates() == unlimited

    done = run_tiered("cluster", "decommission", "2", *at)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "broker 2 has no replicas any more, gets no new ones, and may be stopped"
    assert run_tiered("topic", "create", "more", "-p", "6", *at).returncode == 0
    assert not any(2 in each for each in (*seen.replicas_of().values(), *seen.replicas_of("more").values()))
    said = run_tiered("cluster", "rebalance", *at).stdout
    assert said.startswith("cordoned.log.dirs keeps new replicas from broker 2\n") and said.endswith(NOTHING)
    refused = run_tiered("cluster", "decommission", "1", *at)
    assert refused.returncode != 0 and "would have too few brokers" in refused.stderr
    assert run_tiered("cluster", "config", "reset", "cordoned.log.dirs", "--node", "2", *at).returncode == 0
    said = run_tiered("cluster", "rebalance", *at).stdout
    assert "cordoned" not in said and not said.endswith(NOTHING), "nor is 1: it was refused"


def test_broker_with_the_only_copy_cannot_be_decommissioned(tmp_path: Path) -> None:
    """The command refuses while no other broker takes the copy, and while the broker with the copy is down. It succeeds
    once the copy can move."""
    with ExitStack() as stack:
        served = [start_broker(stack, tmp_path, node) for node in (1, 2, 3)]
        at = ("--brokers", served[0].kafka)
        assert run_tiered("topic", "create", "only", *at).returncode == 0
        served[0].produce("only", *range(COUNT))
        before = AdminView(at[1]).replicas_of("only")
        ((leaving,),) = before.values()
        others = sorted({1, 2, 3} - {leaving})
        at = ("--brokers", served[others[0] - 1].kafka)
        seen = AdminView(at[1])

        def refusal() -> str:
            """Returns the refusal. Nothing moves, and the broker may still get new replicas."""
            refused = run_tiered("cluster", "decommission", str(leaving), *at)
            assert refused.returncode != 0 and refused.stdout == ""
            assert seen.replicas_of("only") == before and run_tiered("cluster", "reassign", *at).stdout == ""
            told = run_tiered("cluster", "config", "list", "--node", str(leaving), "--filter", "cordoned", *at).stdout
            assert "*" not in told
            return refused.stderr

        cordon = ("cluster", "config", "set", "cordoned.log.dirs", "*", "--node")
        for node in others:
            assert run_tiered(*cordon, str(node), *at).returncode == 0
        assert "only/0 would have too few brokers: 0 others are live and take new ones" in refusal()
        assert served[leaving - 1].values("only") == [*range(COUNT)]
        for node in others:
            assert (
                run_tiered("cluster", "config", "reset", "cordoned.log.dirs", "--node", str(node), *at).returncode == 0
            )

        served[leaving - 1].stop(signal.SIGKILL)
        wait_until(lambda: seen.leader("only") == -1)
        said = refusal()
        assert f"only/0 has no leader to copy from: broker {leaving} may have the last copy" in said
        start_broker(stack, tmp_path, leaving)
        wait_until(lambda: seen.leader("only") == leaving)
        done = run_tiered("cluster", "decommission", str(leaving), *at)
        assert done.returncode == 0, done.stderr
        ((now,),) = seen.replicas_of("only").values()
        assert now in others and served[now - 1].values("only") == [*range(COUNT)]
