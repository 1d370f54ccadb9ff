"""Access to a cluster: the bootstrap brokers, and a client that is closed at the end."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import AsyncIterator, Iterable, Sequence

from tiered.errors import Code, Refused
from tiered.system.clock import SystemClock
from tiered_api.cli import encryption, login
from tiered_api.cli.client_properties import find_option, read_client_properties
from tiered_api.cli.output import print_error
from tiered_api.cli.parsing import is_number
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.client.consumer import KafkaConsumer

DEFAULT_BROKERS = "127.0.0.1:9092"
DEFAULT_PORT = 9092
RETRY_SECONDS = 15.0
EXTRAS = ("brokers", "timeout", *encryption.EXTRAS, *login.EXTRAS)
MEMBER_WAIT_MS = 5000
"""Longest wait of a poll by a member of a group: its heartbeats use the same connection."""


@contextlib.asynccontextmanager
async def open_client(args: Namespace) -> AsyncIterator[KafkaClient]:
    """Opens a client of the cluster that the command line or the environment names."""
    extra = parse_extras(args.extra)
    properties = read_client_properties(args.command_config)
    brokers = parse_addresses(args.brokers or find_option("brokers", extra, properties) or DEFAULT_BROKERS)
    client = KafkaClient(
        encryption.open_net(extra, properties),
        SystemClock(),
        brokers,
        login=login.find_login(extra, properties),
        timeout=_seconds(extra.get("timeout") or properties.get("timeout", "30")),
        retry_seconds=RETRY_SECONDS,
    )
    try:
        yield client
    finally:
        await client.close()


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
        warn=print_error,
    )


def parse_extras(pairs: Sequence[str]) -> dict[str, str]:
    """Returns the options in `-X name=value`."""
    out = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in EXTRAS:
            raise Refused(Code.INVALID_REQUEST, f"-X {pair}: it must be one of {', '.join(EXTRAS)}, then = and a value")
        out[name] = value
    return out


def parse_addresses(text: str) -> list[Address]:
    """Parses `host:port,host:port`; a host alone has port 9092."""
    out = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(DEFAULT_PORT)
        if not host or not is_number(port, 65535) or not int(port):
            raise Refused(Code.INVALID_REQUEST, f"--brokers {part}: it must be HOST:PORT")
        out.append(Address(host.strip("[]"), int(port)))
    if not out:
        raise Refused(Code.INVALID_REQUEST, "--brokers names no broker")
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
        raise Refused(Code.INVALID_REQUEST, f"-X timeout={text}: it must be seconds, above 0 and at most 3600")
    return seconds
