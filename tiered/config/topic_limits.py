"""Limits of a broker on settings that the owners of topics choose: levels of compression, sizes of batches, and
settings for tests.

The limits apply to values that a request sets. A topic that has a higher value keeps it, and so does the default of a
broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tiered.config.settings import Settings, topic_rows
from tiered.errors import Code, Refused

LIMITS: dict[str, tuple[str, Callable[[Settings], int]]] = {
    "compression.gzip.level": (
        "tiered.compression.gzip.level.max",
        lambda settings: settings.tiered_compression_gzip_level_max,
    ),
    "compression.lz4.level": (
        "tiered.compression.lz4.level.max",
        lambda settings: settings.tiered_compression_lz4_level_max,
    ),
    "compression.zstd.level": (
        "tiered.compression.zstd.level.max",
        lambda settings: settings.tiered_compression_zstd_level_max,
    ),
    "max.message.bytes": ("tiered.max.message.bytes.max", lambda settings: settings.tiered_max_message_bytes_max),
}
"""Settings of topics, each with the setting of brokers that limits it."""
ALWAYS_ALLOWED = {"compression.lz4.level": 9}
"""Values that no limit concerns: level 9 of lz4 stands for its fast form."""


def check_topic_limits(configs: Mapping[str, str | None], settings: Settings) -> None:
    """Raises `Refused` with the first value above its limit (POLICY_VIOLATION), or for an internal setting that the
    brokers do not allow (INVALID_CONFIG).

    `configs` are values to set in their normal form, None for the default.
    """
    for name, text in configs.items():
        row = topic_rows().get(name)
        if row is not None and row.internal and text is not None and not settings.tiered_internal_configs_enable:
            raise Refused(
                Code.INVALID_CONFIG, f"{name}: it is for tests, and needs tiered.internal.configs.enable=true"
            )
    for name, (limit, read) in LIMITS.items():
        text, most = configs.get(name), read(settings)
        if text is None:
            continue
        if int(text) > most and int(text) != ALWAYS_ALLOWED.get(name):
            why = f"{limit} of the brokers is {most}: ask an administrator, or choose a lower value"
            raise Refused(Code.POLICY_VIOLATION, f"{name}={text}: {why}")
