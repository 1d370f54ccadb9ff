"""Kafka's admin requests to any broker, this one included, in the caller's name. So the rights, the quotas and the
audit log of an act are those of the Kafka protocol."""

from __future__ import annotations

from typing import TypeVar

from tiered.errors import Code, Unavailable
from tiered_api.http.exchange.errors import BAD_REQUEST, ILLEGAL_STATE, KAFKA_RETRIABLE_ERROR, HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.kafka.client.client import code_from_number, to_refused
from tiered_api.kafka.client.error_sentences import explain_error
from tiered_api.kafka.protocol.primitives import Malformed
from tiered_api.kafka.protocol.schema import Message

A = TypeVar("A", bound=Message)

CONFLICTS = frozenset((Code.NON_EMPTY_GROUP, Code.UNKNOWN_MEMBER_ID, Code.INVALID_TXN_STATE))
"""Refusals of the state in which a thing is, not of the request."""


async def send_as_caller(
    request: HttpRequest,
    message: Message,
    response_type: type[A],
    version: int,
    node_id: int | None = None,
    wait_seconds: float = 0,
) -> A:
    """Sends a request to a broker, without a number to this one, which passes changes on to the controller.
    `wait_seconds` is how long the broker may take. Raises `HttpError` 400 for a text that the Kafka protocol cannot
    carry, 503 if the broker does not reply: the act may have happened."""
    broker = request.context.broker.settings.node_id if node_id is None else node_id
    try:
        return await request.context.remote_brokers.send_request(
            broker, message, response_type, version, wait_seconds, request.caller
        )
    except Malformed as fault:
        raise HttpError(BAD_REQUEST, f"the Kafka protocol cannot carry this: {fault}") from None
    except Unavailable as fault:
        raise HttpError(KAFKA_RETRIABLE_ERROR, f"broker {broker} does not reply: {fault}") from None


def check_code(number: int, subject: str, message: str | None = None) -> None:
    """Raises the refusal with this number, if there is one: `HttpError` 409 for the state of a thing, else
    `Refused`."""
    if number:
        if code_from_number(number) in CONFLICTS:
            raise HttpError(ILLEGAL_STATE, f"{subject}: {explain_error(number, message)}")
        raise to_refused(number, subject, message)


def explain(number: int, message: str | None = None) -> str | None:
    """Returns the sentence of an error of a part of an act, None without an error."""
    return explain_error(number, message) if number else None
