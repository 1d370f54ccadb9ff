"""ApiVersions (API key 18)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, integer, message, string


@message(18, "0-4", "3+")
@dataclass(slots=True)
class ApiVersionsRequest(Message):
    client_software_name: str = string("3+")
    client_software_version: str = string("3+")


@dataclass(slots=True)
class ApiVersion:
    api_key: int = integer(FieldType.INT16)
    min_version: int = integer(FieldType.INT16)
    max_version: int = integer(FieldType.INT16)


@dataclass(slots=True)
class SupportedFeatureKey:
    name: str = string("3+")
    min_version: int = integer(FieldType.INT16, "3+")
    max_version: int = integer(FieldType.INT16, "3+")


@dataclass(slots=True)
class FinalizedFeatureKey:
    name: str = string("3+")
    max_version_level: int = integer(FieldType.INT16, "3+")
    min_version_level: int = integer(FieldType.INT16, "3+")


@message(18, "0-4", "3+")
@dataclass(slots=True)
class ApiVersionsResponse(Message):
    error_code: int = integer(FieldType.INT16)
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = integer(FieldType.INT32, "1+")
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", tag=0, tagged="3+")
    finalized_features_epoch: int = integer(FieldType.INT64, "3+", default=-1, tag=1, tagged="3+")
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", tag=2, tagged="3+")
    zk_migration_ready: bool = boolean("3+", tag=3, tagged="3+")
