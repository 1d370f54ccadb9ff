"""Losses of a broker: due until the metadata log has them, and too large while the bucket has more."""

from __future__ import annotations

import pytest

from tests.scenario import in_rig
from tests.unit.member_view import make_view
from tests.unit.replication.rig import TOPIC_ID, TP, ReplicationRig, append_batch
from tiered.durability.possible_losses import PossibleLosses
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.changes import LossReported, TopicCreated
from tiered.metadata.image import Image

EMPTY = Image().apply([TopicCreated(TP.topic, TOPIC_ID, ((1,),), {}, 0)], 0)


def reported(leader_epoch: int, from_offset: int) -> Image:
    """Returns an image that has this loss."""
    return EMPTY.apply([LossReported(TOPIC_ID, TP.partition, leader_epoch, from_offset, 0)], 1)


@pytest.mark.parametrize(
    ("image", "is_due"),
    [
        pytest.param(EMPTY, True, id="no loss is recorded"),
        pytest.param(reported(0, 0), True, id="the loss of an earlier epoch is recorded"),
        pytest.param(reported(1, 3), True, id="less is recorded"),
        pytest.param(reported(1, 2), False, id="the loss is recorded"),
        pytest.param(reported(1, 0), False, id="more is recorded"),
        pytest.param(Image(), False, id="the topic is deleted"),
        pytest.param(
            Image().apply([TopicCreated(TP.topic, TopicId("B" * 22), ((1,),), {}, 0)], 0),
            False,
            id="another topic has the name",
        ),
    ],
)
@in_rig(ReplicationRig)
async def test_loss_is_due_until_the_metadata_log_has_it(rig: ReplicationRig, *, image: Image, is_due: bool) -> None:
    earlier = await rig.brokers[1].lead(0, [1])
    append_batch(earlier, 0)
    append_batch(earlier, 1)
    replica = await rig.brokers[1].lead(1, [1])
    assert replica.epoch_start == 2
    losses = PossibleLosses(make_view(image))
    losses.add_unreported(replica)
    assert losses.report_due.is_set() and losses.has_any_to_report
    replica.admission.block_appends()
    losses.drop_recorded([replica])
    assert ([*losses.unreported] == [replica]) is is_due is replica.admission.has_unreported_loss


@in_rig(ReplicationRig)
async def test_loss_that_was_found_during_a_report_stays_due(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(1, [1])
    losses = PossibleLosses(make_view(reported(1, 0)))
    losses.add_unreported(replica)
    losses.drop_recorded([])
    assert [*losses.unreported] == [replica]


def test_suspicion_of_one_partition_ends() -> None:
    losses = PossibleLosses(make_view())
    other = TopicPartition("other", 0)
    losses.set_suspect_partitions([TP, other])
    losses.clear_suspect_partitions({TP})
    assert losses.suspect_partitions == {other}
