"""What a broker that cannot prove a log whole still has to tell of it."""

from __future__ import annotations

import pytest

from tiered.joining import may_lead
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import PartitionImage


@pytest.mark.parametrize(
    ("what", "now", "stays"),
    [
        ("it leads", PartitionImage((1, 2), leader=1, isr=(1,)), True),
        ("nobody leads yet, and it may again", PartitionImage((1, 2), leader=NO_LEADER, elr=(1,)), True),
        ("its log follows another one's now", PartitionImage((1, 2), leader=2, isr=(2,)), False),
        ("the topic is gone", None, False),
    ],
)
def test_a_log_stays_in_doubt_until_somebody_else_leads(what: str, now: PartitionImage | None, stays: bool) -> None:
    assert may_lead(now, 1) is stays, what
