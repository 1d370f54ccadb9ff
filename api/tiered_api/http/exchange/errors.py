"""What a caller sees when the answer is no: an HTTP status, a code of Confluent's table and a sentence.

The code is the status, or the status x 100 + n. No text of an unexpected exception ever leaves the broker.
"""

from __future__ import annotations

from tiered.errors import Code, Corrupt, Fenced, Refused, Unavailable
from tiered_api.http.exchange.limits import Exhausted

MESSAGE_CHARACTERS = 500


class HttpError(Exception):
    """Ends a request. `headers` go out beside the usual ones (`Allow` of a 405); `close` ends the connection too, for
    what follows on it may not be what it looks like."""

    def __init__(
        self, error_code: int, message: str, headers: tuple[tuple[str, str], ...] = (), *, close: bool = False
    ) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message if len(message) <= MESSAGE_CHARACTERS else message[: MESSAGE_CHARACTERS - 3] + "..."
        self.headers = headers
        self.close = close

    @property
    def status(self) -> int:
        """The HTTP status that the code belongs to."""
        return self.error_code if self.error_code < 1000 else self.error_code // 100


BAD_REQUEST = 40002
TOPIC_NOT_FOUND = 40401
PARTITION_NOT_FOUND = 40402
UNKNOWN_TOPIC_OR_PARTITION = 40403
CONSUMER_NOT_FOUND = 40403
LEADER_NOT_AVAILABLE = 40404
GROUP_NOT_FOUND = 40405
FORMAT_MISMATCH = 40601
CONSUMER_EXISTS = 40902
ILLEGAL_STATE = 40903
CONVERSION_FAILED = 42203
INVALID_CONSUMER = 42204
INVALID_RECORD = 42206
INVALID_BATCH = 42208
OFFSET_OUT_OF_RANGE = 41601
KAFKA_ERROR = 50002
KAFKA_RETRIABLE_ERROR = 50003
BROKER_NOT_AVAILABLE = 50302

CODES = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: UNKNOWN_TOPIC_OR_PARTITION,
    Code.UNKNOWN_TOPIC_ID: UNKNOWN_TOPIC_OR_PARTITION,
    Code.LEADER_NOT_AVAILABLE: LEADER_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER: LEADER_NOT_AVAILABLE,
    Code.OFFSET_OUT_OF_RANGE: OFFSET_OUT_OF_RANGE,
    Code.MESSAGE_TOO_LARGE: 413,
    Code.RECORD_LIST_TOO_LARGE: 413,
    Code.THROTTLING_QUOTA_EXCEEDED: 429,
    Code.CORRUPT_MESSAGE: BAD_REQUEST,
    Code.BROKER_NOT_AVAILABLE: BROKER_NOT_AVAILABLE,
    Code.UNKNOWN_SERVER_ERROR: KAFKA_ERROR,
}
"""Where Kafka's code alone decides. The rest: may be retried -> 50003, else the request is at fault -> 40002."""


def refused_to_http_error(refused: Refused) -> HttpError:
    """The engine's no, in HTTP's words."""
    code = CODES.get(refused.code)
    if code is None:
        code = KAFKA_RETRIABLE_ERROR if refused.code.retriable else BAD_REQUEST
    return HttpError(code, refused.why)


EXPECTED_ERRORS = (HttpError, Refused, Unavailable, Corrupt, Fenced, Exhausted)
"""The errors that have an answer. Anything else is a bug, and for the log only."""


def to_http_error(error: Exception) -> HttpError:
    """The answer to one of `NAMED`."""
    match error:
        case HttpError():
            return error
        case Refused():
            return refused_to_http_error(error)
        case Unavailable():
            return HttpError(BROKER_NOT_AVAILABLE, "the store or the disk cannot do this now; see /healthz")
        case Corrupt():
            return HttpError(KAFKA_ERROR, f"stored data does not prove itself: {error}")
        case Exhausted():
            return HttpError(503, "too much is in flight; try again later", (("Retry-After", "1"),))
    return HttpError(LEADER_NOT_AVAILABLE, "a newer owner has taken over")
