"""The quotas of one broker: their use, who was throttled, and the number of entities that metrics name."""

from __future__ import annotations

import math

import pytest

from tests.refusal import refuses
from tests.unit.hot.fixtures import FixedClock
from tiered.access.client_quotas import AHEAD_MAX, SHOWN_MAX, UNREPORTED_MAX, ClientQuotas
from tiered.config.settings import Settings
from tiered.errors import Code
from tiered.metadata.changes import ClientQuotaSet
from tiered.metadata.image import Image
from tiered.metrics import OTHERS, Metrics
from tiered.peers import QuotaUse

QUOTAS = (
    ClientQuotaSet((("client-id", None),), "producer_byte_rate", 1000.0),
    ClientQuotaSet((("user", "alice"),), "request_percentage", 1.0),
    ClientQuotaSet((("user", "alice"),), "controller_mutation_rate", 1.0),
    ClientQuotaSet((("ip", None),), "connection_creation_rate", 1.0),
)


class Site:
    """The quotas of a broker whose clock only a test moves, and its metrics."""

    def __init__(self, processes: int = 1) -> None:
        self.metrics, self.clock = Metrics(), FixedClock()
        self.quotas = ClientQuotas(Settings(processes=processes), self.clock, self.metrics)
        self.quotas.apply_image(Image().apply(QUOTAS))

    def count(self, quota: str, entity: str) -> float:
        """Returns how often an entity was throttled."""
        return self.metrics.counter("tiered_throttled_total", "", ("quota", "entity")).value(quota, entity)


def test_throttled_entities_have_counts_and_their_number_is_bounded() -> None:
    site = Site()
    for number in range(SHOWN_MAX + 50):
        limits = site.quotas.find_limits("bob", f"app-{number}")
        assert limits is not None and limits.produced is not None
        assert site.quotas.record(limits.produced, 10_000) == 0
        assert site.quotas.record(limits.produced, 5_000) == 5_000
        assert site.quotas.find_pause(limits.produced) == 5_000
    counts = [site.count("producer_byte_rate", f"client-id app-{number}") for number in range(SHOWN_MAX + 50)]
    assert counts == [0] * 50 + [1] * SHOWN_MAX, "those that were throttled last"
    assert site.count("producer_byte_rate", OTHERS) == 50, "the sum stays"


def test_entity_that_is_throttled_again_keeps_its_count() -> None:
    site = Site()
    for number in (*range(SHOWN_MAX), 0, SHOWN_MAX):
        limits = site.quotas.find_limits("bob", f"app-{number}")
        assert limits is not None and limits.produced is not None
        site.quotas.record(limits.produced, 15_000)
    shown = [site.count("producer_byte_rate", f"client-id app-{number}") for number in (0, 1, SHOWN_MAX)]
    assert (shown, site.count("producer_byte_rate", OTHERS)) == ([2, 0, 1], 1)


def test_long_client_ids_share_a_sensor_that_keeps_a_short_name() -> None:
    site = Site()
    one, other = (site.quotas.find_limits("bob", "a" * 255 + end) for end in ("b", "c" * 32_000))
    assert one == other and one is not None and one.produced is not None
    assert one.produced.client_id == "a" * 255


def test_time_of_requests_pauses_for_one_window_at_most() -> None:
    site = Site()
    limits = site.quotas.find_limits("alice", "app")
    assert limits is not None and limits.requests is not None
    assert site.quotas.record_request_time(limits.requests, 100_000_000) == 0, "a tenth of a second in ten"
    assert site.quotas.record_request_time(limits.requests, 1_000_000) == 100
    assert site.quotas.record_request_time(limits.requests, 900_000_000) == 1_000
    assert site.count("request_percentage", "user alice") == 2


def test_debt_of_partitions_refuses_strict_charges_only() -> None:
    site = Site()
    limits = site.quotas.find_limits("alice", "app")
    assert limits is not None and limits.mutations is not None
    assert site.quotas.charge_mutations(limits.mutations, 20, is_strict=True) == 0, "the bucket had eleven"
    assert site.quotas.find_mutation_pause(limits.mutations) == 9_000
    with refuses(Code.THROTTLING_QUOTA_EXCEEDED):
        site.quotas.charge_mutations(limits.mutations, 1, is_strict=True)
    assert site.quotas.charge_mutations(limits.mutations, 1, is_strict=False) == 10_000


def test_address_above_its_rate_is_refused_and_counted() -> None:
    site = Site()
    assert [site.quotas.admit_connection("10.0.0.1") for _ in range(12)] == [True] * 10 + [False] * 2
    assert site.count("connection_creation_rate", "ip 10.0.0.1") == 2
    assert site.quotas.admit_connection("10.0.0.2")


def test_refused_connections_keep_no_address_out() -> None:
    """Its tries never end. It is let in once those that were let in are older than the window of eleven seconds."""
    site = Site()
    assert all(site.quotas.admit_connection("10.0.0.1") for _ in range(10))
    for _ in range(10):
        site.clock.wall += 1_000
        assert not any(site.quotas.admit_connection("10.0.0.1") for _ in range(5))
    site.clock.wall += 1_000
    assert site.quotas.admit_connection("10.0.0.1")


def test_default_rate_is_that_of_a_network_of_ipv6() -> None:
    """A host owns its network. An address with a quota of its own counts alone."""
    site = Site()
    hosts = [f"2001:db8::{n:x}" for n in range(12)]
    assert [site.quotas.admit_connection(host) for host in hosts] == [True] * 10 + [False] * 2
    assert site.count("connection_creation_rate", "ip 2001:db8::/64") == 2
    assert site.quotas.admit_connection("2001:db8:0:1::1")
    own = ClientQuotaSet((("ip", "2001:db8::1"),), "connection_creation_rate", 1.0)
    site.quotas.apply_image(Image().apply((*QUOTAS, own)))
    assert [site.quotas.admit_connection("2001:db8::1") for _ in range(11)] == [True] * 10 + [False]


def machine_of_two() -> tuple[Site, Site]:
    """Returns the quotas of two processes of one machine."""
    return Site(processes=2), Site(processes=2)


def test_use_at_another_process_of_the_machine_counts_here() -> None:
    first, second = machine_of_two()
    bob, alice = (second.quotas.find_limits(user, "app") for user in ("bob", "alice"))
    assert bob is not None and bob.produced is not None and alice is not None and alice.mutations is not None
    assert first.quotas.record(bob.produced, 6_000) == 0
    assert second.quotas.record(bob.produced, 6_000) == 0, "within its quota, as far as this process knows"
    first.quotas.charge_mutations(alice.mutations, 30, is_strict=True)
    first.quotas.record_request_time(alice.requests, 5 * 10**8)
    for _ in range(10):
        assert first.quotas.admit_connection("10.0.0.7")
    second.quotas.count_reported(first.quotas.take_unreported())
    assert second.quotas.find_pause(bob.produced) == 2_000
    assert second.quotas.find_mutation_pause(alice.mutations) == 19_000
    assert second.quotas.find_pause(alice.requests) == 40_000
    assert not second.quotas.admit_connection("10.0.0.7") and second.quotas.admit_connection("10.0.0.8")
    assert first.quotas.take_unreported() == [], "each use is reported once"


def test_reported_use_is_not_reported_again() -> None:
    first, second = machine_of_two()
    limits = first.quotas.find_limits("bob", "app")
    assert limits is not None
    first.quotas.record(limits.produced, 100)
    first.quotas.record(limits.produced, 50)
    [use] = first.quotas.take_unreported()
    assert use == QuotaUse("producer_byte_rate", "", "app", 150, 1000.0)
    second.quotas.count_reported([use])
    assert second.quotas.take_unreported() == []


def test_single_process_collects_no_reports() -> None:
    site = Site()
    limits = site.quotas.find_limits("bob", "app")
    assert limits is not None
    site.quotas.record(limits.produced, 100)
    assert site.quotas.take_unreported() == []


def test_number_of_entities_that_wait_for_a_report_is_bounded() -> None:
    site, woken = Site(processes=2), list[bool]()
    site.quotas.on_use = woken.append
    for number in range(UNREPORTED_MAX + 5):
        limits = site.quotas.find_limits("bob", f"app-{number}")
        assert limits is not None
        site.quotas.record(limits.produced, 1)
    assert (len(site.quotas.take_unreported()), site.quotas.unreportable) == (UNREPORTED_MAX, 5)
    assert woken == [False] * UNREPORTED_MAX


def test_large_use_is_reported_without_delay() -> None:
    site, woken = Site(processes=2), list[bool]()
    site.quotas.on_use = woken.append
    limits = site.quotas.find_limits("bob", "app")
    assert limits is not None
    for size in (400, 100, 1, 1):
        site.quotas.record(limits.produced, size)
    assert woken == [False, True, True], "half a second of 1,000 bytes a second"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_report_of_no_number_changes_nothing(value: float) -> None:
    site = Site(processes=2)
    site.quotas.count_reported([QuotaUse("producer_byte_rate", "", "app", value, 1000.0)])
    site.quotas.count_reported([QuotaUse("no_such_quota", "", "app", 10**9, 1000.0)])
    limits = site.quotas.find_limits("bob", "app")
    assert limits is not None and limits.produced is not None
    assert site.quotas.record(limits.produced, 10_000) == 0


def test_bytes_counted_ahead_are_given_back_before_a_pause() -> None:
    site = Site()
    limits = site.quotas.find_limits("bob", "app")
    assert limits is not None and limits.produced is not None
    site.quotas.record(limits.produced, 4_000)
    rate = site.quotas.count_ahead(limits.produced)
    assert rate.spare == 100, "a hundredth of what ten seconds allow"
    rate.spare -= 60
    site.quotas.record(limits.produced, 10_940)
    assert site.quotas.find_pause(limits.produced) == 5_000, "15,000 bytes are used, of 10,000"
    assert rate.spare == 0


def test_nothing_is_counted_ahead_above_half_of_a_quota() -> None:
    site = Site()
    limits = site.quotas.find_limits("bob", "app")
    assert limits is not None and limits.produced is not None
    site.quotas.record(limits.produced, 5_000)
    assert site.quotas.count_ahead(limits.produced).spare == 0


def test_bytes_counted_ahead_are_few_under_a_large_quota() -> None:
    site = Site()
    site.quotas.apply_image(Image().apply([ClientQuotaSet((("client-id", None),), "producer_byte_rate", 1e12)]))
    limits = site.quotas.find_limits("bob", "app")
    assert limits is not None and limits.produced is not None
    assert site.quotas.count_ahead(limits.produced).spare == AHEAD_MAX
    assert site.quotas.count_ahead(limits.produced).spare == AHEAD_MAX, "once, until they are used"
    site.quotas.apply_image(Image().apply(QUOTAS))
    low = site.quotas.find_limits("bob", "app")
    assert low is not None and site.quotas.record(low.produced, 1_000) == 0, "a lower quota does not count them"
