"""The quorum as Kafka's tools show it: the controller is the leader and the only voter, other brokers are observers.

The metadata log is in the bucket, so no majority of brokers confirms an entry. An entry in the bucket is committed.
"""

from __future__ import annotations

from tiered.controller.requests import Quorum, QuorumObserver
from tiered.metadata.image import Image


def describe_quorum(image: Image, now_ms: int) -> Quorum:
    """Returns the quorum of a committed image. The progress of observers is not in it."""
    observers = sorted(
        each.node_id for each in image.brokers.values() if each.live and each.node_id != image.controller
    )
    return Quorum(image.controller, image.controller_epoch, image.slot, now_ms, tuple(map(QuorumObserver, observers)))
