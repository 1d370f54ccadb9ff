"""Errors as clients see them: an HTTP status, a code of Confluent's table and a sentence.

The code is the status, or the status x 100 + n. No text of an unexpected exception ever leaves the broker.
"""

from __future__ import annotations

from typing import Any

from tiered.errors import Code, Corrupt, Fenced, HttpRefused, Refused, Unavailable
from tiered.quotas.shares import PotRefused
from tiered_api.http.exchange.limits import Exhausted

MESSAGE_CHARACTERS = 500


class HttpError(Exception):
    """The end of a request. `headers` are sent beside the usual ones (`Allow` of a 405). `close` also closes the
    connection, because the bytes that follow may not be a request."""

    def __init__(
        self, error_code: int, message: str, headers: tuple[tuple[str, str], ...] = (), *, close: bool = False
    ) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message if len(message) <= MESSAGE_CHARACTERS else message[: MESSAGE_CHARACTERS - 3] + "..."
        self.headers = headers
        self.close = close

    def without_traceback(self) -> HttpError:
        """Returns the same error to keep: the traceback of a raised one keeps what was parsed."""
        return HttpError(self.error_code, self.message, self.headers, close=self.close)

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return self.error_code if self.error_code < 1000 else self.error_code // 100


class OverQuota(HttpError):
    """The client is over its quota for some milliseconds."""

    def __init__(self, pause_ms: int) -> None:
        self.seconds = max(1, -(-pause_ms // 1000))
        why = f"the client is over its quota: try again in {self.seconds} s"
        super().__init__(429, why, (("Retry-After", str(self.seconds)),))


BAD_REQUEST = 40002
NOT_AUTHENTICATED = 40101
NOT_AUTHORIZED = 40301
TOPIC_NOT_FOUND = 40401
PARTITION_NOT_FOUND = 40402
UNKNOWN_TOPIC_OR_PARTITION = 40403
CONSUMER_NOT_FOUND = 40403
LEADER_NOT_AVAILABLE = 40404
GROUP_NOT_FOUND = 40405
NAMESPACE_NOT_FOUND = 40406
TABLE_NOT_FOUND = 40407
FORMAT_MISMATCH = 40601
CONSUMER_EXISTS = 40902
ILLEGAL_STATE = 40903
KEY_IN_USE = 40904
KEY_SCHEMA_MISSING = 42201
VALUE_SCHEMA_MISSING = 42202
CONVERSION_FAILED = 42203
INVALID_CONSUMER = 42204
SCHEMA_UNREADABLE = 42205
INVALID_RECORD = 42206
INVALID_BATCH = 42208
KEY_REUSED = 42209
OFFSET_OUT_OF_RANGE = 41601
KAFKA_ERROR = 50002
KAFKA_RETRIABLE_ERROR = 50003
BROKER_NOT_AVAILABLE = 50302

CODES = {
    Code.TOPIC_AUTHORIZATION_FAILED: NOT_AUTHORIZED,
    Code.GROUP_AUTHORIZATION_FAILED: NOT_AUTHORIZED,
    Code.CLUSTER_AUTHORIZATION_FAILED: NOT_AUTHORIZED,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: NOT_AUTHORIZED,
    Code.UNKNOWN_TOPIC_OR_PARTITION: UNKNOWN_TOPIC_OR_PARTITION,
    Code.UNKNOWN_TOPIC_ID: UNKNOWN_TOPIC_OR_PARTITION,
    Code.LEADER_NOT_AVAILABLE: LEADER_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER: LEADER_NOT_AVAILABLE,
    Code.OFFSET_OUT_OF_RANGE: OFFSET_OUT_OF_RANGE,
    Code.MESSAGE_TOO_LARGE: 413,
    Code.RECORD_LIST_TOO_LARGE: 413,
    Code.THROTTLING_QUOTA_EXCEEDED: 429,
    Code.DUPLICATE_RESOURCE: KEY_REUSED,
    Code.CORRUPT_MESSAGE: BAD_REQUEST,
    Code.BROKER_NOT_AVAILABLE: BROKER_NOT_AVAILABLE,
    Code.UNKNOWN_SERVER_ERROR: KAFKA_ERROR,
}
"""Statuses by Kafka's code. All other codes become 50003 if they are retriable, else 40002."""


def refused_to_http_error(refused: Refused) -> HttpError:
    """Converts a refusal of the engine."""
    if isinstance(refused, PotRefused):
        return HttpError(429, refused.why, (("Retry-After", "10"),))
    if isinstance(refused, HttpRefused):
        return HttpError(refused.error_code, refused.why)
    code = CODES.get(refused.code)
    if code is None:
        code = KAFKA_RETRIABLE_ERROR if refused.code.retriable else BAD_REQUEST
    return HttpError(code, refused.why)


ICEBERG_ADDRESSES = "/iceberg/"
"""Addresses whose errors have the form of Iceberg's REST catalogue."""
ICEBERG_TYPES = {
    NAMESPACE_NOT_FOUND: "NoSuchNamespaceException",
    TABLE_NOT_FOUND: "NoSuchTableException",
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "NotFoundException",
    405: "UnsupportedOperationException",
    429: "TooManyRequestsException",
    503: "ServiceUnavailableException",
}
"""By code or status: the names of errors that Iceberg's clients know."""


def error_body(error: HttpError, target: str = "") -> dict[str, Any]:
    """Returns the body of an error in the form of the address that was asked for."""
    if not target.startswith(ICEBERG_ADDRESSES):
        return {"error_code": error.error_code, "message": error.message}
    kind = ICEBERG_TYPES.get(error.error_code) or ICEBERG_TYPES.get(error.status, "InternalServerError")
    message = f"the catalogue is read-only: {error.message}" if error.status == 405 else error.message
    return {"error": {"message": message, "type": kind, "code": error.status}}


EXPECTED_ERRORS = (HttpError, Refused, Unavailable, Corrupt, Fenced, Exhausted)
"""The errors that clients get a response for. Any other error is a bug, and only logged."""


def to_http_error(error: Exception) -> HttpError:
    """Converts one of `EXPECTED_ERRORS`."""
    match error:
        case HttpError():
            return error
        case Refused():
            return refused_to_http_error(error)
        case Unavailable():
            return HttpError(BROKER_NOT_AVAILABLE, "the store or the disk cannot do this now; see /healthz")
        case Corrupt():
            return HttpError(KAFKA_ERROR, f"stored data is corrupt: {error}")
        case Exhausted():
            return HttpError(503, "too much is in flight; try again later", (("Retry-After", "1"),))
    return HttpError(LEADER_NOT_AVAILABLE, "a newer owner has taken over")
