"""The HTTP of a broker by its Kafka address, for the commands that ask by HTTP."""

from __future__ import annotations

from argparse import Namespace
from urllib.parse import urlsplit

from tiered.config.listeners import WILDCARDS
from tiered.errors import Code, Refused
from tiered_api.cli.reach import open_client
from tiered_api.kafka.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

DEFAULT_PORTS = {"http": 80, "https": 443}


async def find_http_of_brokers(args: Namespace) -> str:
    """Returns the URL of the HTTP of the first live broker that has one. Raises `Refused` if none has."""
    async with open_client(args) as client:
        found = await client.send(DescribeClusterRequest(), DescribeClusterResponse)
    for broker in sorted(found.brokers, key=lambda each: each.broker_id):
        if where := resolve_http(broker.http, broker.host):
            return where
    raise Refused(Code.INVALID_REQUEST, "no broker says where its HTTP is: give --http HOST:PORT")


def resolve_http(url: str, host: str) -> str:
    """Returns the URL to connect to, "" without one. A broker that is bound to all addresses is reached at the host of
    its Kafka listener."""
    parts = urlsplit(url)
    port = DEFAULT_PORTS.get(parts.scheme, 0) if parts.port is None else parts.port
    if not port:
        return ""
    name = host if (parts.hostname or "") in WILDCARDS else str(parts.hostname)
    return f"{parts.scheme}://[{name}]:{port}" if ":" in name else f"{parts.scheme}://{name}:{port}"
