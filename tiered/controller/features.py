"""Decisions about levels of features (KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping

from tiered.controller.decision import ControllerResult
from tiered.controller.requests import FeatureUpdate, UpdateFeatures
from tiered.errors import Code, Refused
from tiered.metadata.changes import FeatureLevelSet
from tiered.metadata.features import FEATURES, METADATA_VERSION, find_level
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


def _check_update(image: Image, update: FeatureUpdate) -> None:
    levels = FEATURES.get(update.name)
    if levels is None:
        raise _refuse(update, "there is no such feature")
    if not levels.lowest <= update.level <= levels.highest:
        raise _refuse(update, f"its levels are {levels.lowest} to {levels.highest}")
    present = find_level(image.features, update.name)
    if update.level < present and update.name == METADATA_VERSION:
        raise _refuse(update, f"it has level {present}, and the metadata has what brokers of a lower one refuse")
    if update.level < present and not update.downgrade:
        raise _refuse(update, f"it has level {present}, and a lower one needs the upgrade type of a downgrade")
    if update.level > present and update.downgrade:
        raise _refuse(update, f"it has level {present}, and a downgrade does not raise it")


def _refuse(update: FeatureUpdate, why: str) -> Refused:
    return Refused(Code.INVALID_UPDATE_VERSION, f"feature {update.name[:60]!r} cannot get level {update.level}: {why}")
