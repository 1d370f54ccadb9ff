"""Options of one run that a seed draws: shapes, sizes, and permitted faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tiered.cold.manifest import FAN
from tiered.config.settings import Settings
from tiered.metadata.log_writer import SNAPSHOT_SLOTS


@dataclass(frozen=True)
class SingleOptions:
    """Options that a seed draws; printed with a failing run."""

    seed: int
    topics: int
    partitions: int
    segment_bytes: int
    flush: str
    local_retention_bytes: int
    retention_bytes: int
    producers: int
    kills: bool
    power_cuts: bool
    lost_disks: bool
    full_disk: bool
    outages: bool
    worst_fault: float
    disk_errors: bool
    clean_stops: bool
    admin: bool
    manifest_fan: int
    snapshot_slots: int

    @classmethod
    def for_seed(cls, seed: int) -> SingleOptions:
        rng, late = random.Random(f"{seed}/options"), random.Random(f"{seed}/admin-options")
        return cls(
            seed=seed,
            topics=rng.randint(1, 2),
            partitions=rng.randint(1, 3),
            segment_bytes=rng.choice((1024, 2048, 8192)),
            flush=rng.choice(("none", "none", "ack")),
            local_retention_bytes=rng.choice((1, 4096, -2)),
            retention_bytes=rng.choice((-1, -1, 16384)),
            producers=rng.randint(2, 4),
            kills=rng.random() < 0.7,
            power_cuts=rng.random() < 0.5,
            lost_disks=rng.random() < 0.3,
            full_disk=rng.random() < 0.3,
            outages=rng.random() < 0.3,
            worst_fault=rng.choice((0.0, 0.03, 0.1)),
            disk_errors=random.Random(f"{seed}/bad-disk").random() < 0.25,
            clean_stops=random.Random(f"{seed}/clean-stops").random() < 0.5,
            admin=late.random() < 0.6,
            manifest_fan=late.choice((2, 4, FAN)),
            snapshot_slots=late.choice((3, 10, SNAPSHOT_SLOTS)),
        )

    def without_admin(self) -> SingleOptions:
        """Returns options without administration and with the sizes of a real broker, for the oldest recorded seeds."""
        return replace(self.without_clean_stops(), admin=False, manifest_fan=FAN, snapshot_slots=SNAPSHOT_SLOTS)

    def without_clean_stops(self) -> SingleOptions:
        """Returns options without clean stops, for the seeds that were recorded before clean stops."""
        return replace(self, clean_stops=False)

    @property
    def topic_configs(self) -> dict[str, str]:
        return {
            "internal.segment.bytes": str(self.segment_bytes),
            "segment.ms": "5000",
            "flush": self.flush,
            "local.retention.bytes": str(self.local_retention_bytes),
            "retention.bytes": str(self.retention_bytes),
            "retention.ms": "-1",
            "file.delete.delay.ms": "2000",
        }


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
