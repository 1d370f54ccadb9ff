"""The use of the bucket by day, in the whole cluster, and its cost by the operator's prices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from tiered.errors import Refused, Unavailable
from tiered.object_store.metered import VERBS
from tiered.object_store.store_usage import HOUR_MS, StoredUsage, VerbUsage
from tiered_api.http.exchange.context import INLINE_BYTES
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.overview.cluster import DESCRIBE_CLUSTER
from tiered_api.http.overview.prices import FIELDS, GIB, Prices, parse_prices
from tiered_api.http.overview.usage_log import UsageLog
from tiered_api.kafka.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

SETTING = "tiered.console.prices"
DAYS, DAYS_MAX = 8, 31
DAY_MS = 24 * HOUR_MS
FILE_BYTES_MAX = 1 << 16


class BrokerUsage(NamedTuple):
    """The hours of a broker: requests by verb, and stored bytes times hours. `problem` says why there are none."""

    node_id: int
    verbs: tuple[VerbUsage, ...] = ()
    stored: tuple[StoredUsage, ...] = ()
    problem: str = ""


async def get_costs(request: HttpRequest) -> web.StreamResponse:
    """Returns requests, bytes and stored bytes of the bucket by day (UTC), newest first, and what each day costs."""
    context = request.context
    days = request.query_integer("days", DAYS, 1, DAYS_MAX)
    prices, problem = await request.run_job(
        INLINE_BYTES + 1, read_prices, context.broker.settings.tiered_console_prices
    )
    context.service(UsageLog).look()
    today_ms = context.clock.wall_ms() // DAY_MS * DAY_MS
    from_ms = today_ms - (days - 1) * DAY_MS
    own, usage = context.broker.settings.node_id, context.broker.store_usage
    others = [node for node, each in sorted(context.broker.image.brokers.items()) if node != own]
    usages = [
        BrokerUsage(own, tuple(usage.list_verbs(from_ms)), tuple(usage.list_stored(from_ms))),
        *await asyncio.gather(*(_fetch_usage(request, node, from_ms) for node in others)),
    ]
    request.recheck()
    return json_response(
        {
            "prices": None if prices is None else {name: getattr(prices, name) for name in FIELDS},
            "problem": problem,
            "brokers": [describe_broker(each) for each in usages],
            "days": [sum_day(usages, today_ms - number * DAY_MS, prices) for number in range(days)],
        }
    )


def read_prices(place: str) -> tuple[Prices | None, str | None]:
    """Returns the prices of the file, or why there are none."""
    if not place:
        return None, f"no prices are set ({SETTING})"
    try:
        with Path(place).open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            return None, f"the file of prices {place} is larger than {FILE_BYTES_MAX >> 10} KiB"
        return parse_prices(text.decode(), place), None
    except OSError as fault:
        return None, f"the file of prices {place} cannot be read: {fault.strerror or fault}"
    except UnicodeDecodeError:
        return None, f"the file of prices {place} is not UTF-8"
    except Refused as refused:
        return None, refused.why


def describe_broker(usage: BrokerUsage) -> dict[str, Any]:
    """Returns since when a broker has counted. Pure."""
    first = min((hour for hour, *_ in (*usage.verbs, *usage.stored)), default=None)
    return {"node_id": usage.node_id, "since_ms": first, "problem": usage.problem or None}


def sum_day(usages: Iterable[BrokerUsage], day_ms: int, prices: Prices | None) -> dict[str, Any]:
    """Returns the sums of a day over all brokers, and what they cost if there are prices. A day on which no broker
    counted has no cost. Pure."""
    sums = {verb: [0, 0] for verb in VERBS}
    stored, is_counted = 0.0, False
    for usage in usages:
        for each in usage.verbs:
            if each.verb in sums and day_ms <= each.hour_ms < day_ms + DAY_MS:
                is_counted = True
                sums[each.verb][0] += each.requests
                sums[each.verb][1] += each.bytes
        stored += sum(byte_hours for hour_ms, byte_hours in usage.stored if day_ms <= hour_ms < day_ms + DAY_MS)
    if not is_counted:
        prices = None
    costs = None if prices is None else {verb: prices.of_verb(verb, *each) for verb, each in sums.items()}
    stored_cost = None if prices is None else prices.of_stored(stored)
    return {
        "day": f"{datetime.fromtimestamp(day_ms / 1000, UTC):%Y-%m-%d}",
        "classes": {
            verb: {"requests": requests, "bytes": moved, "cost": None if costs is None else costs[verb]}
            for verb, (requests, moved) in sums.items()
        },
        "stored_gib_hours": stored / GIB,
        "stored_cost": stored_cost,
        "cost": None if costs is None or stored_cost is None else sum(costs.values()) + stored_cost,
    }


async def _fetch_usage(request: HttpRequest, node: int, from_ms: int) -> BrokerUsage:
    """Returns the use by another broker. This broker asks for itself: it has checked the right on the cluster."""
    ask = DescribeClusterRequest(usage_from_ms=from_ms)
    try:
        got = await request.context.remote_brokers.send_request(node, ask, DescribeClusterResponse, DESCRIBE_CLUSTER)
    except (Unavailable, Refused) as fault:
        return BrokerUsage(node, problem=f"it does not reply: {fault}")
    if got.usage is None:
        return BrokerUsage(node, problem="it keeps no record: its program is older, or it has no HTTP listener")
    verbs = tuple(VerbUsage(each.hour_ms, each.verb, each.requests, each.bytes) for each in got.usage)
    return BrokerUsage(node, verbs, tuple(StoredUsage(each.hour_ms, each.byte_hours) for each in got.stored or ()))
