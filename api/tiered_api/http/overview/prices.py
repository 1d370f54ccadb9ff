"""The prices of the bucket, as an operator wrote them down (`tiered.console.prices`), and what usage costs. Pure.

The program knows no price: each store, region and contract has its own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from tiered.errors import Code, Refused
from tiered.object_store.metered import VERBS

GIB = 1 << 30
MONTH_HOURS = 730
"""Hours of a month of a GiB-month: 365 days by 12, as the bills of stores count."""
FIELDS = ("currency", "as_of", "source")
TABLES = ("per_1000_requests", "per_gib")
STORED = "per_gib_month"


class Prices(NamedTuple):
    """Prices in one currency: of 1,000 requests and of a GiB moved, by verb, and of a GiB stored for a month."""

    currency: str
    as_of: str
    source: str
    requests: Mapping[str, float]
    moved: Mapping[str, float]
    stored: float

    def of_verb(self, verb: str, requests: int, moved: int) -> float:
        """Returns what requests and their bytes cost."""
        return requests / 1000 * self.requests.get(verb, 0) + moved / GIB * self.moved.get(verb, 0)

    def of_stored(self, byte_hours: float) -> float:
        """Returns what stored bytes cost, given as bytes times hours."""
        return byte_hours / GIB / MONTH_HOURS * self.stored


def parse_prices(text: str, where: str) -> Prices:
    """Parses the file. Raises `Refused` with the place of a fault."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise _refuse(where, f"is no TOML: {fault}") from None
    if unknown := sorted(found.keys() - {*FIELDS, *TABLES, STORED}):
        raise _refuse(where, f"has an unknown field {unknown[0]!r}")
    for name in FIELDS:
        if not isinstance(found.get(name), str) or not found[name].strip():
            raise _refuse(where, f"lacks the text {name}")
    requests, moved = (_read_table(found.get(name, {}), name, where) for name in TABLES)
    currency, as_of, source = (found[name] for name in FIELDS)
    return Prices(currency, as_of, source, requests, moved, _read_price(found.get(STORED), STORED, where))


def _read_table(value: Any, name: str, where: str) -> dict[str, float]:
    if not isinstance(value, dict) or value.keys() - set(VERBS):
        raise _refuse(where, f"has a table {name} with other names than {', '.join(VERBS)}")
    return {verb: _read_price(price, f"{name}.{verb}", where) for verb, price in value.items()}


def _read_price(value: Any, name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise _refuse(where, f"has no price {name}: a number of at least 0")
    return float(value)


def _refuse(where: str, what: str) -> Refused:
    return Refused(Code.INVALID_CONFIG, f"the file of prices {where} {what}")
