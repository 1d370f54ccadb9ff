"""Decisions about levels of features (KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping

from tiered.controller.decision import ControllerResult
from tiered.controller.requests import FeatureUpdate, UpdateFeatures
from tiered.errors import Code, Refused
from tiered.metadata.changes import FeatureLevelSet
from tiered.metadata.effective_config import CLUSTER_FLUSH, FLUSH, FLUSH_BUCKET
from tiered.metadata.features import (
    CHAINS,
    CONSUMER_GROUPS,
    FEATURES,
    GROUP_VERSION,
    METADATA_VERSION,
    NAMES_SINCE,
    find_level,
)
from tiered.metadata.image import Image


def update_features(image: Image, request: UpdateFeatures) -> ControllerResult[None]:
    """Sets levels of features. Raises `Refused` if one of them cannot be set: then none is."""
    changes = []
    for update in request.updates:
        _check_update(image, update)
        if update.level != find_level(image.features, update.name):
            changes.append(FeatureLevelSet(update.name, update.level))
    return ControllerResult(() if request.validate_only else tuple(changes), None)


def check_brokers(image: Image, request: UpdateFeatures, supported: Mapping[str, int]) -> None:
    """Raises `Refused` if the request raises `tiered.metadata.version` above the level of a registered broker that has
    not stopped: that broker would stop at the first entry that it does not know.

    `supported` has the levels by incarnation. A missing one is 0: brokers of an earlier program tell no level.
    """
    present, highest = image.metadata_version, FEATURES[METADATA_VERSION].highest
    for update in request.updates:
        if update.name != METADATA_VERSION or not present < update.level <= highest:
            continue
        for broker in image.brokers.values():
            level = supported.get(broker.incarnation, 0)
            if broker.alive and level < update.level:
                what = f"broker {broker.node_id} supports level {level}, as far as it has told the controller"
                raise _refuse(update, f"{what}: upgrade its program, or unregister the broker if it is gone")


def check_settings(image: Image, edits: Mapping[str, str | None]) -> None:
    """Raises `Refused` if a setting is set that brokers of the level in force may not know, or to such a value."""
    if (newer := find_newer_name(image, edits, Code.INVALID_CONFIG)) is not None:
        raise newer
    for name in (FLUSH, CLUSTER_FLUSH):
        if edits.get(name) == FLUSH_BUCKET and image.metadata_version < CHAINS:
            raise _refuse_newer(f"{name}={FLUSH_BUCKET}", CHAINS, Code.INVALID_CONFIG)


def find_newer_name(image: Image, values: Mapping[str, object], code: Code) -> Refused | None:
    """Returns the refusal to set a setting or quota that brokers of the level in force may not know. None as a value
    removes it, which is never refused."""
    for name, value in values.items():
        level = NAMES_SINCE.get(name, 0)
        if value is not None and level > image.metadata_version:
            return _refuse_newer(name, level, code)
    return None


def _refuse_newer(what: str, level: int, code: Code) -> Refused:
    why = f"brokers of the earlier program do not know it: set it from {METADATA_VERSION}={level} on"
    return Refused(code, f"{what}: {why}")


def _check_update(image: Image, update: FeatureUpdate) -> None:
    levels = FEATURES.get(update.name)
    if levels is None:
        raise _refuse(update, "there is no such feature")
    if not levels.lowest <= update.level <= levels.highest:
        raise _refuse(update, f"its levels are {levels.lowest} to {levels.highest}")
    if update.name == GROUP_VERSION and image.metadata_version < CONSUMER_GROUPS:
        why = f"brokers of the earlier program do not know it: set it from {METADATA_VERSION}={CONSUMER_GROUPS} on"
        raise _refuse(update, why)
    present = find_level(image.features, update.name)
    if update.level < present and update.name == METADATA_VERSION:
        raise _refuse(update, f"it has level {present}, and the metadata has what brokers of a lower one refuse")
    if update.level < present and not update.downgrade:
        raise _refuse(update, f"it has level {present}, and a lower one needs the upgrade type of a downgrade")
    if update.level > present and update.downgrade:
        raise _refuse(update, f"it has level {present}, and a downgrade does not raise it")


def _refuse(update: FeatureUpdate, why: str) -> Refused:
    return Refused(Code.INVALID_UPDATE_VERSION, f"feature {update.name[:60]!r} cannot get level {update.level}: {why}")
