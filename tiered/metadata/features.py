"""Features of the cluster: versions of its protocols that an operator raises or lowers (KIP-584, KIP-1022).

A level of a feature tells clients what they may use. All brokers of one program version serve every level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TRANSACTION_VERSION = "transaction.version"


class FeatureLevels(NamedTuple):
    """The levels of one feature that this program serves, and the level of a new cluster."""

    lowest: int
    highest: int
    initial: int


FEATURES: dict[str, FeatureLevels] = {TRANSACTION_VERSION: FeatureLevels(0, 2, 2)}


def find_level(set_levels: Mapping[str, int], name: str) -> int:
    """Returns the level in force, given the levels that operators have set."""
    return set_levels.get(name, FEATURES[name].initial)
