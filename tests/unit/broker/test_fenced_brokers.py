"""Tests of what a broker says of the brokers that the controller has fenced."""

from __future__ import annotations

from tests.unit.controller.test_partition_health import WHOLE, cluster
from tests.unit.hot.fixtures import FixedClock
from tests.unit.member_view import make_view
from tiered.broker.fenced_brokers import LISTED_MAX, FencedBrokers
from tiered.config.settings import Settings
from tiered.metadata.changes import BrokerFenced, BrokerRegistered, BrokerUnfenced
from tiered.time_text import format_time


def test_fenced_broker_is_named_with_its_time_and_the_act() -> None:
    before = cluster(WHOLE)
    view, clock = make_view(before, Settings(node_id=1)), FixedClock()
    brokers = FencedBrokers(view, clock)
    [known] = brokers.describe()
    assert known.startswith("broker 3 is fenced: it does not answer"), "fenced before the start of this one"
    view.loader.image = before.apply([BrokerFenced(2, "i2")], 1)
    brokers.on_image(before, view.image)
    first, _ = brokers.describe()
    assert first.startswith(f"broker 2 is fenced since {format_time(clock.wall_ms())}: it does not answer")
    assert "see if its process runs" in first and "kill" in first
    assert (brokers.find_since_ms(2), brokers.find_since_ms(3)) == (clock.wall_ms(), -1)
    again = view.image.apply([BrokerUnfenced(2, "i2")], 2)
    brokers.on_image(view.image, again)
    view.loader.image = again.apply([BrokerFenced(1, "i1")], 3)
    assert list(brokers.describe()) == [known], "this broker knows itself that it is fenced"


def test_long_list_of_fenced_brokers_is_cut() -> None:
    ids = range(10, 13 + LISTED_MAX)
    changes = [
        change for node in ids for change in (BrokerRegistered(node, "i", "d", "", "", 0), BrokerFenced(node, "i"))
    ]
    *_, last = FencedBrokers(make_view(cluster(WHOLE).apply(changes, 1)), FixedClock()).describe()
    assert last == "and 4 more brokers are fenced"
