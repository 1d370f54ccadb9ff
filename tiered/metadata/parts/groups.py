"""The settings of groups. Members and offsets of groups are not here: their coordinators have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from tiered.metadata.changes import GroupConfigChanged
from tiered.metadata.stored_configs import merge_configs
from tiered.value import value


@value
class GroupConfigsImage:
    """Settings that differ from the broker's, by group. A group without any has no entry."""

    KINDS = (GroupConfigChanged,)

    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def apply(self, changes: Iterable[GroupConfigChanged]) -> GroupConfigsImage:
        """Returns the part after the changes."""
        configs = dict(self.configs)
        for change in changes:
            kept = merge_configs(configs.pop(change.group, {}), change.configs)
            if kept:
                configs[change.group] = kept
        return GroupConfigsImage(configs)

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the part in a snapshot."""
        return {"group_configs": {group: dict(configs) for group, configs in self.configs.items()}}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> GroupConfigsImage:
        """Returns the part of a snapshot."""
        return cls({group: dict(configs) for group, configs in body.get("group_configs", {}).items()})
