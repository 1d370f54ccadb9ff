"""The rights of callers on this broker: the authorizer with the ACLs of the image, if the settings name one."""

from __future__ import annotations

from collections.abc import Callable

from tiered.access.audit_log import AuditLog
from tiered.config.settings import STANDARD_AUTHORIZER, Settings
from tiered.metadata.image import Image
from tiered.security.acls import CLUSTER_NAME, EVERYTHING, SUPPORTED_MASKS, Acl, Operation, ResourceType
from tiered.security.administrators import parse_super_users
from tiered.security.authorizer import Authorizer
from tiered.security.principal import Caller


class Authorization:
    """Decides by the ACLs that are committed. Without an authorizer everybody may do everything."""

    def __init__(self, settings: Settings, audit: AuditLog) -> None:
        self.audit = audit
        self._super_users = parse_super_users(settings.super_users)
        self._is_open = settings.allow_everyone_if_no_acl_found
        self._acls: frozenset[Acl] = frozenset()
        self._on_change: list[Callable[[], object]] = []
        self.authorizer: Authorizer | None = None
        if settings.authorizer_class_name == STANDARD_AUTHORIZER:
            self.authorizer = self._make_authorizer()

    def subscribe(self, on_change: Callable[[], object]) -> None:
        """Calls a function after each change of rights: it forgets what was granted before."""
        self._on_change.append(on_change)

    def apply_image(self, image: Image) -> None:
        """Takes the ACLs of an image."""
        if image.acls is self._acls or image.acls == self._acls:
            return
        self._acls = image.acls
        if self.authorizer is not None:
            self.authorizer = self._make_authorizer()
            for on_change in self._on_change:
                on_change()

    def is_allowed(self, caller: Caller, operation: Operation, kind: ResourceType, name: str) -> bool:
        """True if the caller may carry out an operation on a resource."""
        return self.authorizer is None or self.authorizer.is_allowed(caller, operation, kind, name)

    def authorize(self, caller: Caller, operation: Operation, kind: ResourceType, name: str) -> bool:
        """True if the caller may carry out an operation on a resource. A refusal goes to the audit log."""
        is_allowed = self.is_allowed(caller, operation, kind, name)
        if not is_allowed:
            self.audit.record_refusal(caller, operation, kind, name)
        return is_allowed

    def may_describe(self, caller: Caller, topic: str) -> bool:
        """True if the caller may learn that a topic exists."""
        return self.is_allowed(caller, Operation.DESCRIBE, ResourceType.TOPIC, topic)

    def is_allowed_on_cluster(self, caller: Caller, operation: Operation) -> bool:
        """True if the caller may carry out an operation on the cluster."""
        return self.is_allowed(caller, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def is_allowed_anywhere(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        """True if there may be a resource of a type on which the caller may carry out an operation."""
        return self.authorizer is None or self.authorizer.is_allowed_anywhere(caller, operation, kind)

    def is_allowed_everywhere(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        """True if the caller may carry out an operation on each resource of a type."""
        return self.authorizer is None or self.authorizer.is_allowed_everywhere(caller, operation, kind)

    def allowed_operations(self, caller: Caller, kind: ResourceType, name: str) -> int:
        """Returns the mask of all operations that exist on a resource and that the caller may carry out."""
        allowed = EVERYTHING if self.authorizer is None else self.authorizer.allowed_operations(caller, kind, name)
        return allowed & SUPPORTED_MASKS[kind]

    def _make_authorizer(self) -> Authorizer:
        return Authorizer(self._acls, self._super_users, is_open=self._is_open)
