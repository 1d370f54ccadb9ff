"""Settings of brokers that serve test suites, where those of a service would make a test wait."""

from __future__ import annotations

TICK_MS = "200"
QUICK = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # What has become due is done soon, and not with the next look of a broker that has days.
    "log.retention.check.interval.ms": TICK_MS,
    "log.cleaner.backoff.ms": TICK_MS,
    "remote.log.manager.task.interval.ms": TICK_MS,
    "tiered.internal.configs.enable": "true",
}
"""Values as text, by Kafka's names: those of `tiered.testing` and of `tiered serve --ephemeral`."""
