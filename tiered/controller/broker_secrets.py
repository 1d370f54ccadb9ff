"""The decision about a new secret of brokers."""

from __future__ import annotations

from tiered.controller.decision import ControllerResult
from tiered.controller.requests import RotateBrokerSecret
from tiered.errors import Code, Refused
from tiered.metadata.changes import BrokerSecretSet
from tiered.metadata.image import Image
from tiered.security.broker_secrets import SECRET_BYTES


def rotate_secret(image: Image, request: RotateBrokerSecret) -> ControllerResult[int]:
    """Sets the next secret, and returns its version. A request that was repeated, or that another one came before, is
    refused: it expects another version."""
    newest = image.broker_secrets[-1].version if image.broker_secrets else 0
    if request.expected != newest:
        why = f"the newest secret of the brokers has version {newest}, and not {request.expected}"
        raise Refused(Code.INVALID_UPDATE_VERSION, why)
    if len(request.secret) != 2 * SECRET_BYTES:
        raise Refused(Code.INVALID_REQUEST, f"a secret has {SECRET_BYTES} bytes")
    return ControllerResult((BrokerSecretSet(newest + 1, request.secret),), newest + 1)
