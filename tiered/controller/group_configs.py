"""Decisions about settings of groups."""

from __future__ import annotations

from tiered.config.group_config import GroupConfig, check_group, find_group_row, group_rows
from tiered.config.settings import Settings
from tiered.controller.decision import ControllerResult
from tiered.controller.requests import AlterGroupConfigs
from tiered.errors import Code, Refused
from tiered.metadata.changes import GroupConfigChanged
from tiered.metadata.effective_config import apply_edits
from tiered.metadata.features import GROUP_CONFIGS, METADATA_VERSION
from tiered.metadata.image import Image

GROUPS_MAX = 10_000
"""Most groups with settings of their own: every broker keeps all of them in memory."""
NAME_BYTES_MAX = 1_024
"""Longest name of a group with settings, in bytes."""


def check_level(image: Image) -> None:
    """Raises `Refused` while brokers of an earlier program may be in the cluster: they do not know the request."""
    if image.metadata_version < GROUP_CONFIGS:
        why = "brokers of the earlier program do not know settings of groups"
        raise Refused(Code.INVALID_CONFIG, f"{why}: set them from {METADATA_VERSION}={GROUP_CONFIGS} on")


def alter_configs(image: Image, settings: Settings, request: AlterGroupConfigs) -> ControllerResult[dict[str, str]]:
    """Changes settings of a group: all edits or none. Raises `Refused` (INVALID_CONFIG) for the first that is wrong."""
    if not request.group or len(request.group.encode()) > NAME_BYTES_MAX:
        raise Refused(Code.INVALID_REQUEST, f"a group with settings needs a name of 1 to {NAME_BYTES_MAX} bytes")
    check_level(image)
    for name in request.configs:
        find_group_row(name)
    current, defaults = image.group_configs.get(request.group, {}), GroupConfig.of_broker(settings)
    edits = apply_edits(request.configs, current, current, group_rows(), replace=request.replace)
    change = GroupConfigChanged(request.group, edits)
    after = image.apply((change,)).group_configs
    own = dict(after.get(request.group, {}))
    check_group(GroupConfig.from_strings(own, defaults), settings, group_rows())
    if len(after) > max(GROUPS_MAX, len(image.group_configs)):
        raise Refused(Code.POLICY_VIOLATION, f"{GROUPS_MAX} groups have settings already")
    is_changed = own != current
    return ControllerResult((change,) if is_changed and not request.validate_only else (), own)
