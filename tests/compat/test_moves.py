"""Tests of Kafka's own tools on three brokers of ours: they move partitions at a rate, list and cancel moves, and elect
leaders."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.serving import SECONDS, ServeProcess, run_tiered
from tests.peer.kafka import tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
THOROUGH = pytest.mark.skipif(os.environ.get("COMPAT") != "ours", reason="make compat runs it, of ours only")
confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

RATE = 2_000_000
COUNT, SIZE = 240, 50_000


class ThreeServed:
    """Three brokers of ours; each may be stopped and started again."""

    def __init__(self, directory: Path, stack: ExitStack, *settings: str) -> None:
        self._directory = directory
        self._stack = stack
        self._given = [word for each in settings for word in ("-c", each)]
        self.served = {node: self.start(node) for node in (1, 2, 3)}

    def start(self, node: int) -> ServeProcess:
        store = f"file://{self._directory / 'bucket'}"
        options = ("--store", store, "--node-id", str(node), *self._given)
        return self._stack.enter_context(ServeProcess(self._directory / f"b{node}", *options))


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Returns the address of one of three brokers."""
    with ExitStack() as stack:
        yield ThreeServed(tmp_path, stack).served[1].kafka


def throttle_settings(address: str) -> str:
    """Returns all settings of throttles."""
    told = run_tiered("topic", "describe", "t", "-c", "--brokers", address).stdout
    for node in ("1", "2", "3"):
        told += run_tiered(
            "cluster", "config", "list", "--node", node, "--filter", "throttled", "--brokers", address
        ).stdout
    return "\n".join(line for line in told.splitlines() if "throttled" in line)


@THOROUGH
def test_partitions_move_at_a_rate_that_is_removed_afterwards(address: str, tmp_path: Path) -> None:
    given = ("topic", "create", "t", "-p", "1", "-r", "2", "-c", "remote.storage.enable=false")
    made = run_tiered(*given, "--brokers", address)
    assert made.returncode == 0, made.stderr
    placed = run_tiered("cluster", "reassign", "t/0=1,2", "--throttle", "1000000", "--brokers", address)
    assert placed.returncode == 0, placed.stderr
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "acks": "all"})
    for number in range(COUNT):
        producer.produce("t", bytes([number]) * SIZE)
    assert producer.flush(30) == 0
    plan = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 3]}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    asked = ("--bootstrap-server", address, "--reassignment-json-file", str(tmp_path / "plan.json"))
    began = time.monotonic()
    told = tool("reassign-partitions", *asked, "--execute", "--throttle", str(RATE))
    assert f"throttle limit was set to {RATE}" in told
    while "is complete" not in (told := tool("reassign-partitions", *asked, "--verify", "--preserve-throttles")):
        assert time.monotonic() - began < 60, told
    assert time.monotonic() - began > COUNT * SIZE / RATE - 2
    assert str(RATE) in throttle_settings(address) and re.search(
        r"follower\S+replicas\s+0:3", throttle_settings(address)
    )
    assert "Clearing broker-level throttles" in tool("reassign-partitions", *asked, "--verify")
    left = throttle_settings(address)
    assert str(RATE) not in left and "0:3" not in left, left


class TwoPartitions:
    """Topic `t` with two partitions, each on two of three brokers; the first has records to copy."""

    def __init__(self, address: str) -> None:
        self._client = admin.AdminClient({"bootstrap.servers": address, "log_level": 0})
        sizes = ("-p", "2", "-r", "2", "-c", "remote.storage.enable=false")
        made = run_tiered("topic", "create", "t", *sizes, "--brokers", address)
        assert made.returncode == 0, made.stderr
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "acks": "all"})
        for _ in range(COUNT // 4):
            producer.produce("t", bytes(SIZE), partition=0)
        assert producer.flush(30) == 0

    def replicas_of(self) -> list[list[int]]:
        found = self._client.list_topics("t").topics["t"].partitions
        return [found[number].replicas for number in (0, 1)]

    def leader(self) -> int:
        """Returns the leader of the second partition."""
        return int(self._client.list_topics("t").topics["t"].partitions[1].leader)


@pytest.mark.skipif(os.environ.get("COMPAT") == "peer", reason="all brokers here are ours")
def test_move_is_listed_and_cancelled_and_a_leader_elected(tmp_path: Path) -> None:
    """One plan: the first partition has to be copied and waits at its rate. The other only gets another preferred
    leader, which leads once it is elected: `auto.leader.rebalance.enable` is off."""
    with ExitStack() as stack:
        address = ThreeServed(tmp_path, stack, "auto.leader.rebalance.enable=false").served[1].kafka
        topic, asked = TwoPartitions(address), ("--bootstrap-server", address)
        before = topic.replicas_of()
        stays, leaves = before[0]
        (comes,) = {1, 2, 3} - {stays, leaves}
        to = [[stays, comes], before[1][::-1]]
        plan = tmp_path / "plan.json"
        rows = [{"topic": "t", "partition": number, "replicas": each} for number, each in enumerate(to)]
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))
        by_plan = (*asked, "--reassignment-json-file", str(plan))

        told = tool("reassign-partitions", *by_plan, "--execute", "--throttle", "1000")
        assert "Successfully started partition reassignments for t-0,t-1" in told
        assert tool("reassign-partitions", *asked, "--list").splitlines() == [
            "Current partition reassignments:",
            f"t-0: replicas: {stays},{comes},{leaves}. adding: {comes}. removing: {leaves}.",
        ]
        assert topic.leader() == before[1][0], "who leads goes on"
        told = tool("leader-election", *asked, "--election-type", "preferred", "--topic", "t", "--partition", "1")
        assert "Successfully completed leader election (PREFERRED) for partitions t-1" in told
        assert topic.leader() == to[1][0]
        told = tool("reassign-partitions", *by_plan, "--cancel")
        assert "Successfully cancelled partition reassignment for: t-0\n" in told
        wait_until(lambda: topic.replicas_of() == [before[0], to[1]])
        given = ("--node", str(stays), "--filter", "throttled", "--brokers", address)
        told = run_tiered("cluster", "config", "list", *given).stdout
        assert "throttled.rate" in told and "1000" not in told


@THOROUGH
def test_leader_election_tool_elects_leaders(tmp_path: Path) -> None:
    """Nothing else elects them: `auto.leader.rebalance.enable` is off."""
    with ExitStack() as stack:
        brokers = ThreeServed(tmp_path, stack, "auto.leader.rebalance.enable=false")
        address = brokers.served[3].kafka
        client = admin.AdminClient({"bootstrap.servers": address, "log_level": 0})

        def has_leader() -> dict[int, int]:
            return {number: each.leader for number, each in client.list_topics("t").topics["t"].partitions.items()}

        def elect(kind: str, *which: str) -> str:
            return tool("leader-election", "--bootstrap-server", address, "--election-type", kind, *which)

        made = run_tiered("topic", "create", "t", "-p", "2", "-r", "2", "--brokers", address)
        assert made.returncode == 0, made.stderr
        for order in ("t/0=1,2", "t/1=1,3"), ("t/0=2,1", "t/1=3,1"):
            placed = run_tiered("cluster", "reassign", *order, "--brokers", address)
            assert placed.returncode == 0, placed.stderr
        assert has_leader() == {0: 1, 1: 1}, "who leads goes on"
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"partitions": [{"topic": "t", "partition": 0}]}))
        said = elect("preferred", "--path-to-json-file", str(plan))
        assert "Successfully completed leader election (PREFERRED) for partitions t-0" in said
        assert has_leader() == {0: 2, 1: 1}
        assert "partitions t-1" in elect("preferred", "--all-topic-partitions") and has_leader() == {0: 2, 1: 3}
        said = elect("unclean", "--topic", "t", "--partition", "0")
        assert "Valid replica already elected for partitions t-0" in said

        brokers.served[1].stop()
        wait_until(lambda: client.list_topics("t").topics["t"].partitions[0].isrs == [2])
        brokers.served[2].stop(signal.SIGKILL)
        brokers.start(1)
        wait_until(lambda: has_leader()[0] == -1)
        with pytest.raises(RuntimeError, match="PreferredLeaderNotAvailableException"):
            elect("preferred", "--topic", "t", "--partition", "0")
        said = elect("unclean", "--topic", "t", "--partition", "0")
        assert "Successfully completed leader election (UNCLEAN) for partitions t-0" in said
        assert has_leader() == {0: 1, 1: 3}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@THOROUGH
def test_broker_that_left_for_good_is_unregistered_by_the_tool(tmp_path: Path) -> None:
    with ExitStack() as stack:
        brokers = ThreeServed(tmp_path, stack)
        address = brokers.served[1].kafka
        made = run_tiered("topic", "create", "t", "-p", "2", "-r", "2", "--brokers", address)
        assert made.returncode == 0, made.stderr
        done = run_tiered("cluster", "decommission", "3", "--brokers", address)
        assert done.returncode == 0, done.stderr
        unregister = ("unregister", "--bootstrap-server", address, "--id", "3")
        with pytest.raises(RuntimeError, match="broker 3 is live: stop it first"):
            tool("cluster", *unregister)
        assert brokers.served[3].stop() == 0
        refused = run_tiered("cluster", "unregister", "2", "--brokers", address)
        assert (refused.returncode, refused.stdout) == (2, "") and "broker 2 is live: stop it first" in refused.stderr
        assert tool("cluster", *unregister) == "Broker 3 is no longer registered.\n"
        listed = run_tiered("cluster", "brokers", "--format", "json", "--brokers", address).stdout
        assert [json.loads(line)["id"] for line in listed.splitlines()] == [1, 2]
        brokers.served[3] = brokers.start(3)
        again = run_tiered("cluster", "config", "get", "cordoned.log.dirs", "--node", "3", "--brokers", address)
        assert (again.returncode, again.stdout) == (0, "\n"), "an id that is taken anew begins anew"
