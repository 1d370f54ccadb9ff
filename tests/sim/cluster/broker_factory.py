"""The broker that the simulator runs: the production broker, with sizes that cause many events in a short run."""

from __future__ import annotations

from tiered.broker.broker import Broker
from tiered.config.settings import Settings
from tiered.metrics import Metrics
from tiered.ports import World
from tiered_api.kafka.client.peers import KafkaPeers


def new_broker(settings: Settings, world: World, manifest_fan: int, snapshot_slots: int) -> Broker:
    """Returns a broker that has not started."""
    peers = KafkaPeers(world.net)
    return Broker(settings, world, Metrics(), peers=peers, manifest_fan=manifest_fan, snapshot_slots=snapshot_slots)
