"""TieredRotateSecret (API key 20007, ours): sets the next secret of the brokers, or shows the version that this broker
knows.

The broker draws the secret, and no reply has it.
"""

from __future__ import annotations

from tiered.controller.requests import RotateBrokerSecret
from tiered.errors import Refused
from tiered.security.broker_secrets import SECRET_BYTES
from tiered_api.kafka.protocol.messages.tiered_rotate_secret import (
    TieredRotateSecretRequest,
    TieredRotateSecretResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import clamp_timeout_ms
from tiered_api.kafka.server.context.mutation_charges import MutationCharges


async def handle(context: KafkaContext, call: Call[TieredRotateSecretRequest]) -> TieredRotateSecretResponse:
    """Returns once the secret is in the metadata log."""
    broker, request = context.broker, call.request
    if request.expected_version < 0:
        return TieredRotateSecretResponse(version=broker.secrets.newest_version)
    secret = broker.world.rng.stream("broker secret").randbytes(SECRET_BYTES).hex()
    try:
        version = await broker.submit(
            RotateBrokerSecret(request.expected_version, secret),
            clamp_timeout_ms(request.timeout_ms) / 1000,
            by=MutationCharges(context, call),
        )
    except Refused as refused:
        return TieredRotateSecretResponse(refused.code.number, refused.why, broker.secrets.newest_version)
    return TieredRotateSecretResponse(version=version)
