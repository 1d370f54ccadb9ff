"""Tests of the resource limits of brokers during a run: each bound, once just kept and once just broken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.sim.cluster import resources
from tests.sim.cluster.observer import BrokenRules, Findings
from tests.sim.cluster.resources import LIMITS
from tests.sim.cluster.run import run
from tests.sim.cluster.test_cluster_stored import without_faults


@pytest.mark.parametrize("name", LIMITS)
def test_i30_resource_above_its_bound_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load = {name: LIMITS[name]}
    of = cast(Any, SimpleNamespace(high_load={}, findings=Findings(lambda what: None)))
    monkeypatch.setattr(resources, "measure_loads", lambda of: [(SimpleNamespace(process="b1"), None, load)])
    monkeypatch.setattr(resources, "count_files_needed", lambda node: 0)
    resources.check_limits(of)
    of.findings.raise_if_any()
    load[name] += 1
    resources.check_limits(of)
    with pytest.raises(BrokenRules, match=f"I30: b1 holds {load[name]} {name}"):
        of.findings.raise_if_any()
    assert of.high_load == load


def test_i30_open_files_of_many_segments_are_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    load = {"files": LIMITS["files"] + 300}
    of = cast(Any, SimpleNamespace(high_load={}, findings=Findings(lambda what: None)))
    monkeypatch.setattr(resources, "measure_loads", lambda of: [(SimpleNamespace(process="b1"), None, load)])
    monkeypatch.setattr(resources, "count_files_needed", lambda node: 300)
    resources.check_limits(of)
    of.findings.raise_if_any()
    load["files"] += 1
    resources.check_limits(of)
    with pytest.raises(BrokenRules, match="I30: b1 holds 1301 files"):
        of.findings.raise_if_any()


def test_i30_every_bound_has_a_measured_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(1, without_faults).high_load.keys() == LIMITS.keys()
    monkeypatch.setitem(LIMITS, "tasks", 10)
    with pytest.raises(BrokenRules, match="I30"):
        run(1, without_faults)
