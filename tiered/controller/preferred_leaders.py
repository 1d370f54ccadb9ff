"""The plan that returns leadership to preferred leaders. `balancer` carries it out.

A partition must be in the plan twice, with the balancer's pause between. So a broker that comes and goes moves no
leadership, and leaderships that return together take few entries of the metadata log.
"""

from __future__ import annotations

from tiered.config.settings import Settings
from tiered.controller.requests import ElectLeaders
from tiered.ids import TopicId
from tiered.metadata.image import Image

TopicIdPartition = tuple[TopicId, int]


def plan_preferred_leaders(image: Image) -> tuple[TopicIdPartition, ...]:
    """Returns partitions whose preferred leader is in sync, live and not stopping, but does not lead.

    A broker whose disk was full gets its leaderships back once the disk had room for some time.
    """
    electable = image.live_ids() - image.stopping_ids() - image.bad_disk_ids() - image.recovering_disk_ids()
    return tuple(
        (topic.topic_id, p)
        for topic in image.topics.values()
        for p, each in enumerate(topic.partitions)
        if each.leader != (first := each.replicas[0]) and first in each.isr and first in electable
    )


class PreferredLeaders:
    """Preferred leaders as a `BalancingPlan`: planned after every change and at an interval, as the settings allow."""

    on_success = "preferred leaders elected"
    on_refusal = "election of preferred leaders failed, is repeated"
    batch_max = 1_000
    repeats = True

    def is_needed(self, image: Image, settings: Settings) -> bool:
        """Always true: each change of the image may make a preferred leader electable."""
        return True

    def interval_seconds(self, settings: Settings) -> float | None:
        """Returns Kafka's interval between two checks."""
        return settings.leader_imbalance_check_interval_seconds

    def plan(self, image: Image, settings: Settings) -> tuple[TopicIdPartition, ...]:
        """Returns the partitions to elect; none if the operator switched this off."""
        return plan_preferred_leaders(image) if settings.auto_leader_rebalance_enable else ()

    def confirm(
        self, before: tuple[TopicIdPartition, ...], after: tuple[TopicIdPartition, ...]
    ) -> tuple[TopicIdPartition, ...]:
        """Returns the partitions that are in both plans."""
        seen = frozenset(before)
        return tuple(each for each in after if each in seen)

    def to_request(self, steps: tuple[TopicIdPartition, ...]) -> ElectLeaders:
        """Returns the request that elects the preferred leaders of these partitions."""
        return ElectLeaders(preferred=True, partitions=steps)
