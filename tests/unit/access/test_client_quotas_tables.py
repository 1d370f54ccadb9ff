"""Tests of what a broker counts against the quotas of clients."""

from __future__ import annotations

from tiered.access.client_quotas import ClientQuotas
from tiered.config.settings import Settings
from tiered.metrics import Metrics
from tiered.quotas.precedence import Limit
from tiered.quotas.sensors import SENSORS_MAX
from tiered.quotas.validation import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from tiered.system.clock import SystemClock


def test_many_client_ids_under_one_quota_end_no_pause_of_another() -> None:
    quotas = ClientQuotas(Settings(), SystemClock(), Metrics())
    reads = Limit(1.0, "alice", "", CONSUMER_BYTE_RATE)
    assert quotas.record(reads, 1_000_000) > 0
    for number in range(SENSORS_MAX):
        quotas.record(Limit(1e9, "", f"c{number}", PRODUCER_BYTE_RATE), 1)
    assert quotas.find_pause(reads) > 0
