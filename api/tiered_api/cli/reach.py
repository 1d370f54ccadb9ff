"""Access to a cluster: the bootstrap brokers, and a client that is closed at the end."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import AsyncIterator, Iterable
from urllib.parse import urlsplit

from tiered.errors import Code, Refused
from tiered.system.clock import SystemClock
from tiered_api.cli import encryption, login
from tiered_api.cli.client_settings import ClientSettings
from tiered_api.cli.client_sources import find_client_settings
from tiered_api.cli.output import print_error
from tiered_api.cli.parsing import is_number
from tiered_api.cli.profiles import HTTP
from tiered_api.cli.text.offset_range import NO_RESET
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.client.consumer import KafkaConsumer

DEFAULT_BROKERS = "127.0.0.1:9092"
DEFAULT_PORT = 9092
DEFAULT_TIMEOUT = "30"
RETRY_SECONDS = 15.0
MEMBER_WAIT_MS = 5000
"""Longest wait of a poll by a member of a group: its heartbeats use the same connection."""


@contextlib.asynccontextmanager
async def open_client(args: Namespace) -> AsyncIterator[KafkaClient]:
    """Opens a client of the cluster that the command line, the environment or a profile names. Errors say where the
    settings are from, unless they are options."""
    settings = find_client_settings(args)
    try:
        client = _make_client(settings)
    except Refused as refused:
        raise settings.explain(refused) from None
    try:
        yield client
    except Refused as refused:
        raise settings.explain_login(refused) from None
    finally:
        await client.close()


def _make_client(settings: ClientSettings) -> KafkaClient:
    source = settings.source("brokers")
    return KafkaClient(
        encryption.open_net(settings),
        SystemClock(),
        parse_addresses(settings.get("brokers", DEFAULT_BROKERS)),
        brokers_from="--brokers" if source is None or source.is_option else f"the brokers from {source.name}",
        login=login.find_login(settings),
        timeout=_seconds(settings.get("timeout", DEFAULT_TIMEOUT)),
        retry_seconds=RETRY_SECONDS,
    )


def check_settings(settings: ClientSettings) -> None:
    """Raises `Refused` for addresses or a timeout that cannot be used. A login may lack its password, which another
    source may have."""
    parse_addresses(settings.get("brokers", DEFAULT_BROKERS))
    _seconds(settings.get("timeout", DEFAULT_TIMEOUT))
    if address := settings.get(HTTP):
        _check_http_address(address)


def _check_http_address(text: str) -> None:
    """Raises `Refused` for a text that is no address of a broker's HTTP."""
    parts = urlsplit(text if "://" in text else f"//{text}")
    try:
        is_address = parts.scheme in ("", "http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port
        is_address = False
    if not is_address:
        raise Refused(Code.INVALID_REQUEST, f"{HTTP}={text}: it must be HOST:PORT of a broker's HTTP, or its URL")


def new_consumer(client: KafkaClient, args: Namespace) -> KafkaConsumer:
    """Returns a consumer with the options of the command line."""
    wait_ms = args.fetch_max_wait if args.group is None else min(args.fetch_max_wait, MEMBER_WAIT_MS)
    return KafkaConsumer(
        client,
        read_committed=args.read_committed,
        include_control=args.print_control_records,
        max_wait_ms=wait_ms,
        max_bytes=args.fetch_max_bytes,
        rack=args.rack,
        skips_deleted=args.offset != NO_RESET,
        warn=print_error,
    )


def parse_addresses(text: str) -> list[Address]:
    """Parses `host:port,host:port`; a host alone has port 9092."""
    out = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(DEFAULT_PORT)
        if not host or not is_number(port, 65535) or not int(port):
            raise Refused(Code.INVALID_REQUEST, f"brokers {part}: it must be HOST:PORT")
        out.append(Address(host.strip("[]"), int(port)))
    if not out:
        raise Refused(Code.INVALID_REQUEST, "brokers names no broker")
    return out


def parse_pairs(given: Iterable[str], option: str, separators: str = "=") -> list[tuple[str, str]]:
    """Splits `name=value` texts at their first separator."""
    out = []
    for text in given:
        at = next((i for i, letter in enumerate(text) if letter in separators), 0)
        if not at:
            raise Refused(Code.INVALID_REQUEST, f"{option} {text}: it must be NAME{separators[0]}VALUE")
        out.append((text[:at].strip(), text[at + 1 :]))
    return out


def parse_numbers(text: str, option: str) -> list[int]:
    """Parses `0,1,5-7` as numbers."""
    out: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not is_number(first) or (dash and not is_number(last)):
            raise Refused(Code.INVALID_REQUEST, f"{option} {text}: it must be numbers with commas between, or ranges")
        if dash and int(last) - int(first) > 100_000:
            raise Refused(Code.INVALID_REQUEST, f"{option} {text}: that range is too long")
        out += range(int(first), int(last) + 1) if dash else [int(first)]
    return list(dict.fromkeys(out))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise Refused(Code.INVALID_REQUEST, f"timeout={text}: it must be seconds, above 0 and at most 3600")
    return seconds
