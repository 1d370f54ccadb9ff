"""Tests of the operator's prices: the documented example, faults with their place, and sums by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources import ROOT
from tiered.errors import Refused
from tiered.object_store.store_usage import HOUR_MS, StoredUsage, VerbUsage
from tiered_api.http.overview.costs import DAY_MS, BrokerUsage, describe_broker, read_prices, sum_day
from tiered_api.http.overview.prices import GIB, MONTH_HOURS, Prices, parse_prices

EXAMPLE = ROOT / "infra" / "prices" / "s3-standard.toml"
HEAD = 'currency = "EUR"\nas_of = "today"\nsource = "a bill"\nper_gib_month = 0.02\n'
DAY = 20_000 * DAY_MS


def test_documented_example_is_read() -> None:
    prices, problem = read_prices(str(EXAMPLE))
    assert problem is None and prices is not None
    assert (prices.currency, prices.stored, prices.requests["put"]) == ("USD", 0.023, 0.005)
    assert prices.source.startswith("https://") and len(prices.as_of) == len("2026-01-31")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("currency = ", "is no TOML"),
        ("", "lacks the text currency"),
        (HEAD.replace("per_gib_month = 0.02\n", ""), "no price per_gib_month"),
        (HEAD.replace("0.02", "-1"), "no price per_gib_month"),
        (HEAD.replace("0.02", "nan"), "no price per_gib_month"),
        (HEAD.replace("0.02", "true"), "no price per_gib_month"),
        (HEAD + "[per_1000_requests]\nget = 'much'", "no price per_1000_requests.get"),
        (HEAD + "[per_1000_requests]\nhead = 1", "a table per_1000_requests with other names than get, list"),
        (HEAD + "per_gib = 3", "a table per_gib with other names"),
        (HEAD + "discount = 1", "an unknown field 'discount'"),
    ],
)
def test_fault_in_the_prices_is_named(text: str, words: str) -> None:
    with pytest.raises(Refused, match="the file of prices here") as refused:
        parse_prices(text, "here")
    assert words in refused.value.why


def test_file_of_prices_that_cannot_be_read_is_a_problem_in_words(tmp_path: Path) -> None:
    assert read_prices("") == (None, "no prices are set (tiered.console.prices)")
    (tmp_path / "latin").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b"#" * 100_000)
    for place, words in (("absent", "No such file"), (".", "directory"), ("latin", "UTF-8"), ("large", "larger")):
        prices, problem = read_prices(str(tmp_path / place))
        assert prices is None and problem is not None and words in problem


def test_day_is_the_sum_of_the_brokers_at_the_prices() -> None:
    prices = Prices("EUR", "today", "a bill", {"get": 0.5, "put": 5.0}, {"get": 0.1}, 0.73)
    hours = (DAY, DAY + 23 * HOUR_MS)
    usages = [
        BrokerUsage(1, tuple(VerbUsage(hour, "get", 1_000, GIB) for hour in hours), (StoredUsage(DAY, 3 * GIB),)),
        BrokerUsage(
            2,
            (
                VerbUsage(DAY, "put", 100, 7),
                VerbUsage(DAY, "of a later version", 1, 1),
                VerbUsage(DAY + DAY_MS, "put", 9, 9),
            ),
            (StoredUsage(DAY, GIB),),
        ),
        BrokerUsage(3, problem="away"),
    ]
    found = sum_day(usages, DAY, prices)
    assert found["day"] == "2024-10-04"
    assert found["classes"]["get"] == {"requests": 2_000, "bytes": 2 * GIB, "cost": pytest.approx(1.2)}
    assert found["classes"]["put"] == {"requests": 100, "bytes": 7, "cost": pytest.approx(0.5)}
    assert found["stored_gib_hours"] == 4 and found["stored_cost"] == pytest.approx(4 / MONTH_HOURS * 0.73)
    assert found["cost"] == pytest.approx(1.2 + 0.5 + 4 / MONTH_HOURS * 0.73)
    assert sum_day(usages, DAY - DAY_MS, prices)["cost"] is None, "nobody counted on that day"
    unpriced = sum_day(usages, DAY, None)
    assert unpriced["cost"] is unpriced["stored_cost"] is unpriced["classes"]["get"]["cost"] is None
    assert unpriced["classes"]["get"]["requests"] == 2_000
    assert [describe_broker(each)["since_ms"] for each in usages] == [DAY, DAY, None]
