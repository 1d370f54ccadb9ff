"""An outage of the bucket as the brokers of the cluster see it. A broker that made no request does not know of it."""

from __future__ import annotations

from tiered_api.health.verdict import describe_bucket_away, find_bucket_away
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.overview.cluster import fetch_reports


async def find_outage(request: HttpRequest) -> str:
    """Returns the sentence about an outage; "" if no broker sees one, or the caller may not describe the cluster."""
    reports = await fetch_reports(request, request.context.broker.image)
    return next(describe_bucket_away(find_bucket_away(reports)), "")
