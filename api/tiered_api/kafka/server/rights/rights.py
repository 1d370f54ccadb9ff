"""The rights of the caller of one request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, TypeVar

from tiered.access.authorization import Authorization
from tiered.errors import Code
from tiered.ids import TopicId
from tiered.metadata.image import Image
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered.security.principal import Caller, Principal
from tiered.system.turns import Turns
from tiered_api.kafka.server.context.context import Call, KafkaContext, R

T = TypeVar("T")

REMEMBERED_MAX = 100
"""Most refusals of one request that the audit log gets."""


class Refusal(NamedTuple):
    """The error of a part of a request."""

    code: int
    why: str


TOPIC_REFUSED = Refusal(Code.TOPIC_AUTHORIZATION_FAILED.number, "Authorization failed.")
UNKNOWN_ID = Refusal(Code.UNKNOWN_TOPIC_ID.number, "there is no topic with this id")


class Rights:
    """The operations that one caller may carry out. `image` has the names of topics that requests name by id.

    Without `turns` a check of many resources makes no pause.
    """

    __slots__ = ("_authorization", "_denied", "_turns", "caller", "image")

    def __init__(self, authorization: Authorization, caller: Caller, image: Image, turns: Turns | None = None) -> None:
        self._authorization = authorization
        self._denied: list[tuple[Operation, ResourceType, str]] = []
        self._turns = turns
        self.caller = caller
        self.image = image

    def on_topic(self, operation: Operation, name: str) -> bool:
        """True if the caller may carry out an operation on a topic, which need not exist."""
        return self._is_allowed(operation, ResourceType.TOPIC, name)

    def on_topic_id(self, operation: Operation, topic_id: str) -> bool:
        """True if there is a topic with that id, on which the caller may carry out an operation."""
        topic = self.image.topics_by_id.get(TopicId(topic_id))
        return topic is not None and self.on_topic(operation, topic.name)

    def find_refusal(self, topic_id: str) -> Refusal:
        """Returns the error of a topic that `on_topic_id` refused. A topic that the caller may not describe looks like
        no topic."""
        topic = self.image.topics_by_id.get(TopicId(topic_id))
        is_shown = topic is not None and self._authorization.may_describe(self.caller, topic.name)
        return TOPIC_REFUSED if is_shown else UNKNOWN_ID

    def on_group(self, operation: Operation, name: str) -> bool:
        """True if the caller may carry out an operation on a group."""
        return self._is_allowed(operation, ResourceType.GROUP, name)

    def on_transactional_id(self, operation: Operation, name: str) -> bool:
        """True if the caller may carry out an operation on a transactional id."""
        return self._is_allowed(operation, ResourceType.TRANSACTIONAL_ID, name)

    def on_cluster(self, operation: Operation) -> bool:
        """True if the caller may carry out an operation on the cluster."""
        return self._is_allowed(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def on_user(self, operation: Operation, user: Principal) -> bool:
        """True if the caller may carry out an operation on the delegation tokens of a user."""
        return self._is_allowed(operation, ResourceType.USER, str(user))

    def on_token(self, operation: Operation, token_id: str) -> bool:
        """True if the caller may carry out an operation on a delegation token."""
        return self._is_allowed(operation, ResourceType.DELEGATION_TOKEN, token_id)

    def on_any_topic(self, operation: Operation) -> bool:
        """True if there may be a topic on which the caller may carry out an operation."""
        return self._authorization.is_allowed_anywhere(self.caller, operation, ResourceType.TOPIC)

    def on_every_topic(self, operation: Operation) -> bool:
        """True if the caller may carry out an operation on each topic, whatever its name is."""
        return self._authorization.is_allowed_everywhere(self.caller, operation, ResourceType.TOPIC)

    def may_create(self, topic: str) -> bool:
        """True if the caller may create a topic of that name."""
        is_creator = self._authorization.is_allowed_on_cluster(self.caller, Operation.CREATE)
        return is_creator or self.on_topic(Operation.CREATE, topic)

    def record_refusals(self) -> None:
        """Records what was refused since the rights were made in the audit log. A resource that the caller may not
        describe is left out: it is not named in lists, and a caller need not know of it."""
        for operation, kind, name in self._denied:
            if operation is not Operation.DESCRIBE:
                self._authorization.audit.record_refusal(self.caller, operation, kind, name)
        self._denied.clear()

    def _is_allowed(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        is_allowed = self._authorization.is_allowed(self.caller, operation, kind, name)
        if not is_allowed and len(self._denied) < REMEMBERED_MAX:
            self._denied.append((operation, kind, name))
        return is_allowed

    async def each_of(self, items: Sequence[T]) -> AsyncIterator[T]:
        """Yields the items one by one. Other requests run between pieces of them."""
        if self._turns is None:
            for each in items:
                yield each
        else:
            async for each in self._turns.each_of(items):
                yield each

    def mask(self, kind: ResourceType, name: str) -> int:
        """Returns the operations on a resource for the fields of authorized operations."""
        return self._authorization.allowed_operations(self.caller, kind, name)

    def cluster_mask(self) -> int:
        """Returns the operations on the cluster for the same fields; none if the caller may not describe it."""
        return self.mask(ResourceType.CLUSTER, CLUSTER_NAME) if self.on_cluster(Operation.DESCRIBE) else 0


def find_rights(context: KafkaContext, call: Call[R], turns: Turns | None = None) -> Rights | None:
    """Returns the rights of the caller; None if the caller may do everything."""
    authorization = context.broker.authorization
    if authorization.authorizer is None or authorization.authorizer.is_super(call.caller):
        return None
    return Rights(authorization, call.caller, context.broker.image, turns)
