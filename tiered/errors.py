"""Every error there is: four families, and the one table of codes that peers may see.

`Refused` says no to a caller, in words that a caller may read. `Unavailable`, `Corrupt` and `Fenced` come from
below and say what to do next: try again, repair, or step down. Anything else is a bug and stops the broker.
"""

from __future__ import annotations

from enum import Enum


class Code(Enum):
    """Kafka's error codes: (number, may the client try again). Source: Kafka protocol guide, "Error Codes"."""

    UNKNOWN_SERVER_ERROR = (-1, False)
    NONE = (0, False)
    OFFSET_OUT_OF_RANGE = (1, False)
    CORRUPT_MESSAGE = (2, True)
    UNKNOWN_TOPIC_OR_PARTITION = (3, True)
    INVALID_FETCH_SIZE = (4, False)
    LEADER_NOT_AVAILABLE = (5, True)
    NOT_LEADER_OR_FOLLOWER = (6, True)
    REQUEST_TIMED_OUT = (7, True)
    BROKER_NOT_AVAILABLE = (8, False)
    REPLICA_NOT_AVAILABLE = (9, True)
    MESSAGE_TOO_LARGE = (10, False)
    NETWORK_EXCEPTION = (13, True)
    INVALID_TOPIC_EXCEPTION = (17, False)
    RECORD_LIST_TOO_LARGE = (18, False)
    NOT_ENOUGH_REPLICAS = (19, True)
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (20, True)
    INVALID_REQUIRED_ACKS = (21, False)
    INVALID_TIMESTAMP = (32, False)
    UNSUPPORTED_VERSION = (35, False)
    TOPIC_ALREADY_EXISTS = (36, False)
    INVALID_PARTITIONS = (37, False)
    INVALID_REPLICATION_FACTOR = (38, False)
    INVALID_REPLICA_ASSIGNMENT = (39, False)
    INVALID_CONFIG = (40, False)
    NOT_CONTROLLER = (41, True)
    INVALID_REQUEST = (42, False)
    UNSUPPORTED_FOR_MESSAGE_FORMAT = (43, False)
    POLICY_VIOLATION = (44, False)
    OUT_OF_ORDER_SEQUENCE_NUMBER = (45, False)
    DUPLICATE_SEQUENCE_NUMBER = (46, False)
    INVALID_PRODUCER_EPOCH = (47, False)
    KAFKA_STORAGE_ERROR = (56, True)
    UNKNOWN_PRODUCER_ID = (59, False)
    FENCED_LEADER_EPOCH = (74, True)
    UNKNOWN_LEADER_EPOCH = (75, True)
    UNSUPPORTED_COMPRESSION_TYPE = (76, False)
    STALE_BROKER_EPOCH = (77, False)
    OFFSET_NOT_AVAILABLE = (78, True)
    INVALID_RECORD = (87, False)
    THROTTLING_QUOTA_EXCEEDED = (89, True)
    UNKNOWN_TOPIC_ID = (100, True)
    DUPLICATE_BROKER_REGISTRATION = (101, False)
    BROKER_ID_NOT_REGISTERED = (102, True)
    INCONSISTENT_CLUSTER_ID = (104, False)

    @property
    def number(self) -> int:
        """The code as it stands on the wire."""
        return self.value[0]

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.value[1]


class Refused(Exception):
    """The answer is no. `code` is for programs, the text for people; both may leave the broker."""

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


class Unavailable(Exception):
    """A port could not do it now: the store, the disk or a peer. The same call may be made again unless `final`.
    `refused`: the other side answered, and said no (credentials, permissions, a bucket that is not there)."""

    def __init__(self, why: str, *, final: bool = False, refused: bool = False) -> None:
        super().__init__(why)
        self.final = final
        self.refused = refused


class Corrupt(Exception):
    """Bytes do not prove themselves. `where` names the file or object, `position` the byte."""

    def __init__(self, why: str, *, where: str = "", position: int = -1) -> None:
        place = f" where={where}" if where else ""
        place += f" position={position}" if position >= 0 else ""
        super().__init__(why + place)
        self.why = why
        self.where = where
        self.position = position


class Fenced(Exception):
    """A newer epoch or incarnation owns this: whoever gets it steps down and does not try again."""
