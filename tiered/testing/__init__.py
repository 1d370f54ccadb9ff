"""Brokers inside a test suite: real ones, ready in milliseconds, with a clock to move and faults to order.

May import: http.server, kafka.server

    def test_orders_are_read(tiered_broker):
        tiered_broker.create_topic("orders")
        my_service.run(tiered_broker.bootstrap_servers)
        tiered_broker.wait_until(lambda: tiered_broker.committed("my-group", "orders") == 3)

The fixtures come with the package (an entry point of pytest). `cluster()` is the same without pytest. This package
stands above the servers: nothing of tiered/ or api/ imports it.

~ running_cluster `cluster` and `TieredCluster`: topics, facts, faults and the clock, for tests to call
~ in_process      one broker with its servers, on the loop of its cluster
~ movable_time    an event loop and a clock whose time a test moves
~ late_network    a network that delivers what clients send late
~ inherited_sockets  sockets of brokers, dropped by processes that a test forks
~ rest            requests to a broker over HTTP, by the standard library
~ pytest_plugin   the fixtures `tiered_broker` and `tiered_cluster`
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiered.testing.running_cluster import FactTimeout, Record, TieredCluster, cluster

__all__ = ["FactTimeout", "Record", "TieredCluster", "cluster"]


def __getattr__(name: str) -> Any:
    """Imports brokers when a test asks for them: pytest imports this package in every run (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tiered.testing import running_cluster

    return getattr(running_cluster, name)
