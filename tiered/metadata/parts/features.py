"""The levels of features (KIP-584)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from tiered.metadata.changes import FeatureLevelSet
from tiered.value import value


@value
class FeaturesImage:
    """Levels of features that operators have set; the others are as in a new cluster. `epoch` counts the changes."""

    KINDS = (FeatureLevelSet,)

    levels: Mapping[str, int] = field(default_factory=dict)
    epoch: int = 0

    def apply(self, changes: Iterable[FeatureLevelSet]) -> FeaturesImage:
        """Returns the part after the changes."""
        levels, epoch = dict(self.levels), self.epoch
        for change in changes:
            levels[change.name] = change.level
            epoch += 1
        return FeaturesImage(levels, epoch)

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the part in a snapshot."""
        return {"features": self.levels, "features_epoch": self.epoch}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> FeaturesImage:
        """Returns the part of a snapshot."""
        return cls(body.get("features", {}), body.get("features_epoch", 0))
