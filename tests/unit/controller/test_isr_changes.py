"""A broker that joins or leaves many ISRs is one line of the log."""

from __future__ import annotations

from tiered.controller.isr_changes import IsrChangeSummary
from tiered.ids import TopicPartition


def test_partitions_that_the_same_brokers_joined_and_left_are_one_line() -> None:
    changes = IsrChangeSummary()
    for number in range(50):
        changes.record(TopicPartition("t", number), {1, 2}, {1, 2, 3})
    changes.record(TopicPartition("u", 0), {1, 2, 3}, {1})
    changes.record(TopicPartition("u", 1), {1, 2}, {1, 3})
    changes.record(TopicPartition("u", 2), {1, 2, 3}, {1})
    changes.record(TopicPartition("u", 3), {1}, {1})
    assert [*changes.take_lines()] == [
        "ISR changed joined=3 partitions=50 first=t-0,t-1,t-2,t-3,t-4",
        "ISR changed left=2,3 partitions=u-0,u-2",
        "ISR changed joined=3 left=2 partitions=u-1",
    ]
    assert [*changes.take_lines()] == [], "told once"
