"""Tests of the file of logs that another process of the machine gave to a data directory."""

from __future__ import annotations

import pytest

from tiered.controller.requests import AdoptedReplicas
from tiered.durability.adopted_logs import AdoptedLog, encode_adopted, group_by_giver, parse_adopted
from tiered.errors import Corrupt
from tiered.ids import TopicId, TopicPartition
from tiered.object_store.envelope import seal

LOGS = tuple(
    AdoptedLog(TopicPartition("a.b", p), TopicId("KsXw4YCkQ2eAy3Yb0rDb3A"), node, f"d{node}", "i")
    for p, node in ((0, 1), (1, 2001), (2, 1))
)


def test_logs_come_back_and_are_named_by_giver() -> None:
    assert parse_adopted(encode_adopted(LOGS), "log/adopted") == LOGS
    one, other = group_by_giver(LOGS)
    assert one == AdoptedReplicas(1, "d1", "i", ((LOGS[0].topic_id, 0), (LOGS[0].topic_id, 2)))
    assert (other.from_node, other.directory) == (2001, "d2001")


@pytest.mark.parametrize(
    "body",
    [{"version": 2, "logs": []}, {"logs": []}, {"version": 1, "logs": [["t", 0]]}, {"version": 1, "logs": 3}],
)
def test_file_of_another_form_is_not_guessed(body: dict[str, object]) -> None:
    with pytest.raises(Corrupt, match="put the file back"):
        parse_adopted(seal(body), "log/adopted")


def test_each_damaged_byte_of_the_file_is_found() -> None:
    whole = encode_adopted(LOGS)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        for data in (bytes(damaged), whole[:at]):
            with pytest.raises(Corrupt):
                parse_adopted(data, "log/adopted")
