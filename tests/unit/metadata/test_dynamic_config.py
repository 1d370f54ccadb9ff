"""Tests of the settings in force on one broker."""

from __future__ import annotations

from tiered.config.processes import of_process
from tiered.config.settings import Settings
from tiered.metadata.changes import ALL_BROKERS, BrokerConfigChanged
from tiered.metadata.dynamic_config import DynamicBrokerConfig
from tiered.metadata.image import Image


def test_process_has_its_share_of_what_the_start_and_the_cluster_set() -> None:
    config = DynamicBrokerConfig(of_process(Settings(queued_max_requests=800), 1, 4, ""))
    assert (config.startup.queued_max_requests, config.current.queued_max_requests) == (800, 200)
    image = Image().apply([BrokerConfigChanged(ALL_BROKERS, {"queued.max.requests": "400"})])
    config.apply_image(image)
    assert (config.startup.queued_max_requests, config.current.queued_max_requests) == (800, 100)
    config.apply_image(image.apply([BrokerConfigChanged(ALL_BROKERS, {"queued.max.requests": None})]))
    assert config.current.queued_max_requests == 200
