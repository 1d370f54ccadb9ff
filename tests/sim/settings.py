"""Settings of simulated brokers whose loops run often, and of real ones with few internal logs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiered.config.settings import Settings

FEW_LOGS: dict[str, Any] = {
    "offsets_topic_num_partitions": 4,
    "transaction_state_log_num_partitions": 4,
    "share_coordinator_state_topic_num_partitions": 4,
}
"""Settings of brokers of tests: each of the usual 50 partitions is a log that they create, watch and close."""
FEW_LOGS_GIVEN = tuple(word for name, count in FEW_LOGS.items() for word in ("-c", f"{name.replace('_', '.')}={count}"))
"""The same as arguments of `tiered serve` and `tiered up`."""

SETTINGS = replace(
    Settings(),
    **FEW_LOGS,
    tiered_internal_configs_enable=True,
    log_retention_check_interval_ms=1000,
    remote_log_manager_task_interval_ms=1000,
    log_flush_offset_checkpoint_interval_ms=3000,
    log_flush_scheduler_interval_ms=1000,
    tiered_upload_max_lag_ms=5000,
    tiered_object_delete_delay_ms=2000,
    tiered_topic_delete_delay_ms=5000,
)
