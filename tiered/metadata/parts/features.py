"""The levels of features (KIP-584)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from tiered.errors import Corrupt
from tiered.metadata.changes import FeatureLevelSet
from tiered.metadata.features import FEATURES
from tiered.value import value


@value
class FeaturesImage:
    """Levels of features that operators have set; the others are as in a new cluster. `epoch` counts the changes.

    A level that this program does not serve is `Corrupt`: whatever depends on it would be skipped.
    """

    KINDS = (FeatureLevelSet,)

    levels: Mapping[str, int] = field(default_factory=dict)
    epoch: int = 0

    def apply(self, changes: Iterable[FeatureLevelSet]) -> FeaturesImage:
        """Returns the part after the changes."""
        levels, epoch = dict(self.levels), self.epoch
        for change in changes:
            _check_served(change.name, change.level)
            levels[change.name] = change.level
            epoch += 1
        return FeaturesImage(levels, epoch)

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the part in a snapshot."""
        return {"features": self.levels, "features_epoch": self.epoch}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> FeaturesImage:
        """Returns the part of a snapshot."""
        levels = body.get("features", {})
        for name, level in levels.items():
            _check_served(name, level)
        return cls(levels, body.get("features_epoch", 0))


def _check_served(name: str, level: int) -> None:
    known = FEATURES.get(name)
    if known is None or level > known.highest:
        serves = "does not know it" if known is None else f"serves {known.highest} at most"
        raise Corrupt(
            f"the cluster has {name}={level}, and this program {serves}: a newer program wrote it, start that one"
        )
