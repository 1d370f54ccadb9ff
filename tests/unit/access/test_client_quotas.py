"""The quotas of one broker: their use, who was throttled, and the number of entities that metrics name."""

from __future__ import annotations

from tests.refusal import refuses
from tests.unit.hot.fixtures import FixedClock
from tiered.access.client_quotas import SHOWN_MAX, ClientQuotas
from tiered.config.settings import Settings
from tiered.errors import Code
from tiered.metadata.changes import ClientQuotaSet
from tiered.metadata.image import Image
from tiered.metrics import OTHERS, Metrics

QUOTAS = (
    ClientQuotaSet((("client-id", None),), "producer_byte_rate", 1000.0),
    ClientQuotaSet((("user", "alice"),), "request_percentage", 1.0),
    ClientQuotaSet((("user", "alice"),), "controller_mutation_rate", 1.0),
    ClientQuotaSet((("ip", None),), "connection_creation_rate", 1.0),
)


class Site:
    """The quotas of a broker whose clock only a test moves, and its metrics."""

    def __init__(self) -> None:
        self.metrics, self.clock = Metrics(), FixedClock()
        self.quotas = ClientQuotas(Settings(), self.clock, self.metrics)
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
