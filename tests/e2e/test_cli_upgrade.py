"""Tests of `tiered cluster upgrade`: the levels of formats, and the step to the newest ones."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.serving import run_tiered
from tiered.metadata.features import FEATURES, HIGHEST_METADATA_VERSION, METADATA_VERSION, FeatureLevels
from tiered.testing import TieredCluster, cluster

NEWEST = HIGHEST_METADATA_VERSION


@pytest.fixture
def upgraded(monkeypatch: pytest.MonkeyPatch) -> Iterator[TieredCluster]:
    """Three brokers of this program in a cluster that the program before levels has made."""
    with monkeypatch.context() as earlier:
        earlier.setitem(FEATURES, METADATA_VERSION, FeatureLevels(0, 0, 0))
        brokers = cluster(3)
        made = brokers.__enter__()
    try:
        yield made
    finally:
        brokers.__exit__(None, None, None)


def upgrade(brokers: TieredCluster, *words: str) -> str:
    done = run_tiered("cluster", "upgrade", *words, "-X", f"brokers={brokers.bootstrap_servers}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_upgrade_is_finalized_when_all_brokers_support_it(upgraded: TieredCluster) -> None:
    before = upgrade(upgraded)
    assert before == upgrade(upgraded, "--status")
    assert f"writes level 0 and could write {NEWEST}: --finalize raises it" in before
    shown = json.loads(upgrade(upgraded, "--format", "json"))
    rows = [{"broker": number, "state": "live", "supports": NEWEST} for number in (1, 2, 3)]
    assert shown == {"level": 0, "supported": NEWEST, "brokers": rows}
    assert f"writes level {NEWEST}: there is nothing to finalize" in upgrade(upgraded, "--finalize")
    upgraded.wait_until(lambda: json.loads(upgrade(upgraded, "--format", "json"))["level"] == NEWEST)
    upgrade(upgraded, "--finalize")  # once more: nothing happens


def test_upgrade_is_refused_for_a_broker_that_is_away(upgraded: TieredCluster) -> None:
    """Its program may be the earlier one: the controller has not heard of it since that was replaced."""
    upgraded.kill(3)
    assert "brokers 3 did not say what they support" in upgrade(upgraded)
