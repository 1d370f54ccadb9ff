"""Tests of Kafka Streams: a global table and the changelog of a store are compacted topics. After cleans on the disk or
in the bucket, an application that starts again without its own state has both tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import ClientRecord, DriverClient
from tests.compat.clients import ALL, DRIVERS, KINDS, compile_java
from tests.compat.compacted import (
    WholeTopic,
    places,
    read_topic,
    running,
    soon_cleaned,
    wait_for,
    write_until_cleaned,
)
from tests.compat.conftest import Clients

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not ALL, reason="make compat runs it: Kafka Streams, which starts twice"),
]
CUSTOMERS = ("ann", "bob", "eve")
PRICES = {"bolt": 3, "nut": 5, "saw": 70}
LAST_PRICES = {"bolt": 4, "nut": 6, "saw": None}


class Totals:
    """The application, the expected sums of its customers, and the number of its orders."""

    def __init__(self, broker: CompatBroker, client: DriverClient, name: str, configs: dict[str, str]) -> None:
        self.sums = dict.fromkeys(CUSTOMERS, 0)
        self.orders = 0
        self._broker = broker
        self._client = client
        self._name = name
        self._configs = configs
        self.topics = {part: f"{name}-{part}" for part in ("orders", "prices", "sums", "totals-changelog")}

    def command(self, directory: Path) -> list[str]:
        directory.mkdir()
        login = [] if self._broker.login is None else [str(self._broker.login.write_properties(directory / "login"))]
        changelog = ",".join(f"{key}={value}" for key, value in self._configs.items())
        topics = [self.topics[part] for part in ("orders", "prices", "sums")]
        java = compile_java(DRIVERS / "streams" / "Totals.java", DRIVERS / "streams" / "pom.xml", "Totals")
        return [*java, self._broker.address, self._name, *topics, str(directory / "state"), changelog, *login]

    def set_prices(self, prices: dict[str, int] | dict[str, int | None]) -> None:
        values = {product: None if price is None else b"%d" % price for product, price in prices.items()}
        self._client.send(
            self.topics["prices"], [ClientRecord(value, product.encode()) for product, value in values.items()]
        )

    def order(self, prices: dict[str, int]) -> None:
        """Orders each product for each customer, and waits for the sums."""
        records = [ClientRecord(product.encode(), each.encode()) for each in CUSTOMERS for product in prices]
        self._client.send(self.topics["orders"], records)
        self.orders += len(records)
        for each in CUSTOMERS:
            self.sums[each] += sum(prices.values())
        wait_for(lambda: self._read_sums().end >= self.orders, lambda: f"{self._read_sums()} of {self.orders}")
        found = self._read_sums()
        assert found.end == self.orders
        assert found.state == {name.encode(): b"%d" % total for name, total in self.sums.items()}

    def _read_sums(self) -> WholeTopic:
        return read_topic(self._client, self.topics["sums"])


@pytest.mark.parametrize("place", places())
def test_application_that_lost_its_state_has_its_tables(
    place: str, broker: CompatBroker, admin: DriverClient, clients: Clients, name: str, tmp_path: Path
) -> None:
    configs = soon_cleaned(broker, place)
    app = Totals(broker, clients(KINDS[0]), name, configs)
    for part in ("orders", "prices", "sums"):
        admin.ask("create", topic=app.topics[part], configs=configs if part == "prices" else {})

    def one_round(number: int) -> None:
        app.set_prices(PRICES)
        app.order(PRICES)

    app.set_prices(PRICES)
    cleaned = [app.topics["prices"], app.topics["totals-changelog"]]
    with running(app.command(tmp_path / "first"), ends_with_stdin=True):
        write_until_cleaned(clients(KINDS[0]), cleaned, one_round)
    app.set_prices(LAST_PRICES)
    bought = {product: price for product, price in LAST_PRICES.items() if price is not None}
    with running(app.command(tmp_path / "second"), ends_with_stdin=True):
        app.order(bought)
    table = read_topic(clients(KINDS[0]), app.topics["prices"]).state
    assert {key: value for key, value in table.items() if value} == {b"bolt": b"4", b"nut": b"6"}
    changelog = read_topic(clients(KINDS[0]), app.topics["totals-changelog"]).state
    assert {key: int.from_bytes(value or b"", "big") for key, value in changelog.items()} == {
        each.encode(): total for each, total in app.sums.items()
    }
