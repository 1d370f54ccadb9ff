"""The fixtures of `tiered.testing`, an entry point of pytest. Brokers are imported only by tests that ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tiered.testing.running_cluster import TieredCluster


@pytest.fixture
def tiered_broker() -> Iterator[TieredCluster]:
    """A broker for one test: empty at its begin, gone at its end."""
    from tiered.testing.running_cluster import cluster

    with cluster() as made:
        yield made


@pytest.fixture
def tiered_cluster() -> Iterator[TieredCluster]:
    """Three brokers for one test, with three copies of each topic."""
    from tiered.testing.running_cluster import cluster

    with cluster(3) as made:
        yield made
