"""The rights on subjects, which are rights on topics: no resource of its own, so no ACL of a cluster changes.

A subject `TOPIC-key` or `TOPIC-value` takes the rights on its topic: a producer of the topic registers its schemas.
The rights on the topic `_schemas` are rights on all subjects, and the only ones for subjects of other names. DESCRIBE,
which READ and WRITE imply, reads schemas; WRITE registers, DELETE deletes, DESCRIBE_CONFIGS and ALTER_CONFIGS are for
levels and modes.
"""

from __future__ import annotations

from tiered.registry.subjects import topic_of
from tiered.security.acls import Operation, ResourceType
from tiered_api.http.exchange.request import HttpRequest

ALL_SUBJECTS = "_schemas"
"""The topic whose rights hold for all subjects, and for levels and modes of all."""


def may(request: HttpRequest, operation: Operation, subject: str) -> bool:
    """True if the caller may carry out an operation on a subject."""
    topic = topic_of(subject)
    return request.may(operation, ResourceType.TOPIC, ALL_SUBJECTS) or (
        bool(topic) and request.may(operation, ResourceType.TOPIC, topic)
    )


def require(request: HttpRequest, operation: Operation, subject: str) -> None:
    """Raises `HttpError` 403 if the caller may not carry out an operation on a subject."""
    request.require_login()
    if not may(request, operation, subject):
        request.require(operation, ResourceType.TOPIC, topic_of(subject) or ALL_SUBJECTS)
