"""Many members of one group in one process of their own. Reports when all partitions are spread evenly over them.

    python -m bench.peer.members ADDRESS TOPIC PARTITIONS MEMBERS

Prints a line `<what> <seconds>` for: all joined, one left, one more joined.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from confluent_kafka import Consumer, TopicPartition

TIMEOUT_SECONDS = 180.0
SETTINGS = {
    "group.id": "crowd", "partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 500,
    "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 2,
    "queued.max.messages.kbytes": 1024,
}  # fmt: skip


class BenchMember:
    """A consumer and the number of its partitions."""

    def __init__(self, address: str, topic: str) -> None:
        self.assigned = 0
        self.consumer = Consumer({**SETTINGS, "bootstrap.servers": address})
        self.consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned += len(partitions)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned -= len(partitions)


def wait_balanced(members: list[BenchMember], partitions: int) -> None:
    """Polls all members until each partition has one and no member has two more than another."""
    until = time.perf_counter() + TIMEOUT_SECONDS
    while True:
        for member in members:
            member.consumer.poll(0)
        assigned = [member.assigned for member in members]
        if sum(assigned) == partitions and max(assigned) - min(assigned) <= 1:
            return
        if time.perf_counter() > until:
            print(
                f"after {TIMEOUT_SECONDS:.0f} s {sum(assigned)} of {partitions} are held: {assigned}", file=sys.stderr
            )
            os._exit(1)
        time.sleep(0.005)


def main(address: str, topic: str, partitions: int, count: int) -> None:
    def report(what: str, started: float) -> None:
        print(f"{what} {time.perf_counter() - started:.3f}", flush=True)

    started = time.perf_counter()
    members = [BenchMember(address, topic) for _ in range(count)]
    wait_balanced(members, partitions)
    report("joined", started)

    started = time.perf_counter()
    leaving = threading.Thread(target=members.pop().consumer.close)
    leaving.start()
    wait_balanced(members, partitions)
    report("left", started)
    leaving.join()

    started = time.perf_counter()
    members.append(BenchMember(address, topic))
    wait_balanced(members, partitions)
    report("grown", started)
    os._exit(0)  # two hundred LeaveGroups would take minutes


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
