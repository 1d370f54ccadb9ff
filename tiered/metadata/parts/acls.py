"""The ACLs of the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tiered.errors import Corrupt
from tiered.metadata.changes import AclAdded, AclRemoved
from tiered.security.acls import Acl, acl_from_texts
from tiered.value import value


@value
class AclsImage:
    """ACLs. Another object after each change of them."""

    KINDS = (AclAdded, AclRemoved)

    acls: frozenset[Acl] = frozenset()

    def apply(self, changes: Iterable[AclAdded | AclRemoved]) -> AclsImage:
        """Returns the part after the changes."""
        acls = set(self.acls)
        for change in changes:
            acl = _acl_from_texts(*(getattr(change, name) for name in Acl._fields))
            if isinstance(change, AclAdded):
                acls.add(acl)
            else:
                acls.discard(acl)
        return AclsImage(frozenset(acls))

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the part in a snapshot."""
        return {"acls": [list(each.to_texts()) for each in sorted(self.acls)]}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> AclsImage:
        """Returns the part of a snapshot."""
        return cls(frozenset(_acl_from_texts(*each) for each in body.get("acls", ())))


def _acl_from_texts(*texts: str) -> Acl:
    try:
        return acl_from_texts(*texts)
    except KeyError as error:
        raise Corrupt(f"an ACL of the metadata has the unknown word {error}") from None
