"""What brokers may hold in mid-run: each bound, once just kept and once just broken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.sim.cluster import resources
from tests.sim.cluster.observer import Broken, Findings
from tests.sim.cluster.resources import MOST
from tests.sim.cluster.run import run
from tests.sim.cluster.test_cluster_stored import peace


@pytest.mark.parametrize("name", MOST)
def test_i30_a_broker_holds_no_more_than_that(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load = {name: MOST[name]}
    of = cast(Any, SimpleNamespace(high_load={}, findings=Findings(lambda what: None)))
    monkeypatch.setattr(resources, "loads", lambda of: [(SimpleNamespace(process="b1"), None, load)])
    resources.sample(of)
    of.findings.check()
    load[name] += 1
    resources.sample(of)
    with pytest.raises(Broken, match=f"I30: b1 holds {load[name]} {name}"):
        of.findings.check()
    assert of.high_load == load


def test_i30_every_bound_is_of_something_that_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(1, peace).high_load.keys() == MOST.keys()
    monkeypatch.setitem(MOST, "tasks", 10)
    with pytest.raises(Broken, match="I30"):
        run(1, peace)
