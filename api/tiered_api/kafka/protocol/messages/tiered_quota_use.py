"""TieredQuotaUse (API key 20009, ours): a process of a machine reports to another one what clients used of their
quotas."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, data, double, integer, message, string


@dataclass(slots=True)
class QuotaUseData:
    key: str = string()
    user: str = string()
    client_id: str = string()
    value: float = double()
    bound: float = double()


@message(20009, "0", "0+")
@dataclass(slots=True)
class TieredQuotaUseRequest(Message):
    cluster_id: str = string()
    credential: bytes = data()
    uses: list[QuotaUseData] = array(QuotaUseData)


@message(20009, "0", "0+")
@dataclass(slots=True)
class TieredQuotaUseResponse(Message):
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
