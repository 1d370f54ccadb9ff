"""UpdateFeatures (API key 57)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, integer, message, string


@dataclass(slots=True)
class FeatureUpdateKey:
    feature: str = string()
    max_version_level: int = integer(FieldType.INT16)
    allow_downgrade: bool = boolean("0")
    upgrade_type: int = integer(FieldType.INT8, "1+", default=1)


@message(57, "0-2", "0+")
@dataclass(slots=True)
class UpdateFeaturesRequest(Message):
    timeout_ms: int = integer(FieldType.INT32, default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean("1+")


@dataclass(slots=True)
class UpdatableFeatureResult:
    feature: str = string()
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")


@message(57, "0-2", "0+")
@dataclass(slots=True)
class UpdateFeaturesResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, "0-1")
