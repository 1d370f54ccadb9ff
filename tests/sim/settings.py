"""Settings of simulated brokers whose loops run often."""

from __future__ import annotations

from dataclasses import replace

from tiered.config.settings import Settings

SETTINGS = replace(
    Settings(),
    tiered_internal_configs_enable=True,
    log_retention_check_interval_ms=1000,
    remote_log_manager_task_interval_ms=1000,
    log_flush_offset_checkpoint_interval_ms=3000,
    log_flush_scheduler_interval_ms=1000,
    tiered_upload_max_lag_ms=5000,
    tiered_object_delete_delay_ms=2000,
    tiered_topic_delete_delay_ms=5000,
)
