"""UpdateFeatures (API key 57): sets levels of features, such as `transaction.version` (KIP-584).

v0 only raises levels: Kafka 4 does not read its flag for downgrades. v1+ has the type of the update, and a check
without effect. v2+ has no results of single features. All updates of a request are made, or none.
"""

from __future__ import annotations

from tiered.controller.requests import FeatureUpdate, UpdateFeatures
from tiered.errors import Code, Refused
from tiered_api.kafka.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import clamp_timeout_ms
from tiered_api.kafka.server.context.mutation_charges import MutationCharges

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
UPGRADE_TYPES_FROM = 1


async def handle(context: KafkaContext, call: Call[UpdateFeaturesRequest]) -> UpdateFeaturesResponse:
    """Returns once the levels are in force."""
    request = call.request
    try:
        updates = tuple(_read_update(each, call.version) for each in request.feature_updates)
        seconds = clamp_timeout_ms(request.timeout_ms) / 1000
        await context.broker.submit(
            UpdateFeatures(updates, request.validate_only), seconds, by=MutationCharges(context, call)
        )
    except Refused as refused:
        return _make_response(request, refused.code, refused.why)
    return _make_response(request, Code.NONE, None)


def _read_update(requested: FeatureUpdateKey, version: int) -> FeatureUpdate:
    if version < UPGRADE_TYPES_FROM:
        return FeatureUpdate(requested.feature, requested.max_version_level)
    if requested.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise Refused(Code.INVALID_UPDATE_VERSION, f"there is no upgrade type {requested.upgrade_type}")
    return FeatureUpdate(requested.feature, requested.max_version_level, requested.upgrade_type != UPGRADE)


def _make_response(request: UpdateFeaturesRequest, code: Code, why: str | None) -> UpdateFeaturesResponse:
    results = [UpdatableFeatureResult(each.feature, error_message=None) for each in request.feature_updates]
    if code is not Code.NONE:
        results.clear()
    return UpdateFeaturesResponse(error_code=code.number, error_message=why, results=results)
