"""All workloads, in the order of a run."""

from __future__ import annotations

from bench.peer import (
    cleaning,
    groups,
    handshakes,
    latency,
    lifecycle,
    replay,
    replicated,
    stateless,
    tenants,
    throughput,
    transactions,
)

WORKLOADS = (
    *throughput.WORKLOADS, *latency.WORKLOADS, *lifecycle.WORKLOADS, *groups.WORKLOADS, *replicated.WORKLOADS,
    *transactions.WORKLOADS, *cleaning.WORKLOADS, *replay.WORKLOADS, *handshakes.WORKLOADS, *tenants.WORKLOADS,
    *stateless.WORKLOADS,
)  # fmt: skip
TITLES = {each.name: each.title for each in WORKLOADS}
