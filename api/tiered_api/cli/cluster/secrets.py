"""`tiered cluster rotate-secret`: a new secret of the brokers, while the cluster runs.

A rotation has three steps. After each, the command waits until all brokers know it. The last one ends the secrets from
before.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from tiered.errors import Code, Refused, Unavailable
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_rows
from tiered_api.cli.progress import show_progress
from tiered_api.cli.reach import open_client
from tiered_api.cli.status import OK
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.protocol.messages.tiered_rotate_secret import (
    TieredRotateSecretRequest,
    TieredRotateSecretResponse,
)

STEPS = 3
POLL_SECONDS = 0.2


async def rotate_secret(args: Namespace) -> int:
    """Rotates the secret of the brokers."""
    async with open_client(args) as client:
        with show_progress(args, "rotate the secret") as shown:
            rows = await rotate(client, args.wait, lambda done: shown.report(done, STEPS, "steps"))
    print_rows(rows, args.format)
    return Exit.OK


async def rotate(
    client: KafkaClient, wait_seconds: float, on_step: Callable[[int], None] = lambda _: None
) -> list[Row]:
    """Rotates the secret. Raises `Unavailable` if a live broker does not learn of it in time."""
    nodes = await _find_brokers(client)
    version = await _ask(client, nodes[0], -1)
    for number in range(STEPS):
        on_step(number)
        version = await _ask(client, nodes[0], version)
        await _wait_until_known(client, nodes, version, wait_seconds)
    return [{"broker": node, "version": version, "status": OK} for node in nodes]


async def _find_brokers(client: KafkaClient) -> list[int]:
    await client.fetch_metadata([])
    return sorted(client.brokers)


async def _ask(client: KafkaClient, node: int, expected: int) -> int:
    """Sets the next secret, or shows the version that a broker knows for -1. Returns the version."""
    request = TieredRotateSecretRequest(expected, client.timeout_ms)
    got = await client.send(request, TieredRotateSecretResponse, node_id=node)
    if got.error_code:
        raise to_refused(got.error_code, "the secret is not rotated", got.error_message)
    return got.version


async def _wait_until_known(client: KafkaClient, nodes: list[int], version: int, seconds: float) -> None:
    """Waits until all brokers know a version. Raises `Unavailable` with those that do not."""
    deadline = client.clock.mono_ns() + int(seconds * 1e9)
    waiting = nodes
    while waiting:
        waiting = [node for node in waiting if not await _knows(client, node, version)]
        if waiting and client.clock.mono_ns() >= deadline:
            names = ", ".join(map(str, waiting))
            why = f"brokers {names} do not know secret {version} yet, so the older one still counts: run it again"
            raise Unavailable(why)
        if waiting:
            await client.clock.sleep(POLL_SECONDS)


async def _knows(client: KafkaClient, node: int, version: int) -> bool:
    try:
        return await _ask(client, node, -1) >= version
    except Unavailable:
        return False
    except Refused as refused:
        if refused.code is Code.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return False
