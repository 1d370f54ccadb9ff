"""Tests of the recovery after the loss of all disks, and of the objects that may be left in the bucket by then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.sim.cluster import rebuilding
from tests.sim.cluster.model_of_copies import ModelLoss
from tests.sim.cluster.rebuilding import find_moved_offsets
from tests.sim.cluster.test_cluster_model import make_cold
from tests.unit.cold.rig import PID, batch
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.changes import TopicDeleted
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import Loss, PartitionImage, TopicImage, TopicsImage
from tiered.metadata.topic_names import TRANSACTIONS_TOPIC

T, U = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("loss", "stable", "held_back"), [(Loss(1, 0, 0), 3, True), (Loss(1, 0, 0), 9, False), (None, 3, False)]
)
def test_open_transaction_holds_uploads_back_if_its_coordinator_lost_it(
    loss: Loss | None, stable: int, held_back: bool
) -> None:
    topic = TopicImage(TRANSACTIONS_TOPIC, TopicId("A" * 22), (PartitionImage((1,), loss=loss),), {}, 0)
    image = Image(topics_image=TopicsImage({TRANSACTIONS_TOPIC: topic}))
    replica = SimpleNamespace(last_stable_offset=stable, high_watermark=9)
    assert rebuilding.is_held_back(image, cast(Any, replica)) is held_back


@pytest.mark.parametrize(
    ("stable", "lost_from", "held_back"),
    [(3, (5,), True), (3, (9, 2, 4), True), (3, (3,), False), (3, (), False), (9, (9,), False)],
)
def test_open_transaction_holds_uploads_back_if_its_marker_is_lost(
    stable: int, lost_from: tuple[int, ...], held_back: bool
) -> None:
    """The records of the transaction are below the loss, and the marker was above."""
    replica = SimpleNamespace(last_stable_offset=stable, high_watermark=9)
    losses = [ModelLoss(0, each) for each in lost_from]
    assert rebuilding.is_held_back(Image(), cast(Any, replica), losses) is held_back


@pytest.mark.parametrize(
    ("was", "found", "wrong"),
    [
        ({T: 5, U: 7}, {T: 5, U: 7}, []),
        ({T: 5, U: 7}, {T: 5}, [U]),
        ({T: 5}, {T: 5, U: 7}, [U]),
        ({T: 5}, {T: 4}, [T]),
        ({T: 5}, {T: 6}, [T]),
        ({T: 5}, {T: 10}, [T]),
        ({T: 12}, {T: 12}, []),
        ({T: 12}, {T: 10}, []),
        ({T: 12}, {T: 11}, []),
        ({T: 14}, {T: 11}, []),
        ({T: 14}, {T: 12}, []),
        ({T: 14}, {T: 13}, [T]),
        ({T: 12}, {T: 9}, [T]),
        ({T: 12}, {}, [T]),
    ],
)
def test_i31_group_offset_is_the_same_or_cut_to_the_end(
    was: dict[TopicPartition, int], found: dict[TopicPartition, int], wrong: list[TopicPartition]
) -> None:
    """Both partitions end at 10, and grow to 12 during the recovery."""
    assert find_moved_offsets(was, found, {T: (10, 12), U: (10, 12)}) == wrong


@pytest.mark.parametrize("jumped", [False, True])
def test_i23_unnamed_objects_are_found_unless_a_clock_jumped(jumped: bool) -> None:
    kept, _, _ = make_cold()
    options = SimpleNamespace(troubles=("clock_jump",) if jumped else ())
    run = cast(Any, SimpleNamespace(model=kept.model, options=options))
    assert rebuilding._unnamed_objects(run) == []
    unnamed = kept.upload(20, batch(20))
    assert rebuilding._unnamed_objects(run) == [unnamed.key]
    kept.put_slot(1, TopicDeleted(PID.topic_id, 0))
    assert rebuilding._unnamed_objects(run) == ([] if jumped else [unnamed.key])
