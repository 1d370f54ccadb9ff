"""I30: the resources of brokers, at every check of a run and once no client sends requests.

At every check: bounds far above the load of a run. At rest: the resources of a broker are bounded by its replicas,
their segments, and the number of brokers, so that a leak shows.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.sim.cluster.world import SimHost
from tiered.broker.broker import Broker
from tiered_api.kafka.client.peers import IDLE_CONNECTIONS_MAX
from tiered_api.kafka.server.request_buffers import POOL_BYTES

if TYPE_CHECKING:
    from tests.sim.cluster.run import ClusterRun

BrokerLoad = dict[str, int]

LIMITS = {
    "tasks": 400,
    "pending": 100,
    "frame_bytes": 1 << 20,
    "unsent_bytes": 8 << 20,
    "kept_bytes": POOL_BYTES,
    "streams": 100,
    "files": 1_000,
}
"""Bounds at any moment. Frames of a run are small, and so is their share of the memory budget. Files are those that no
segment needs: a run that deletes nothing has hundreds of segments."""
IDLE_TASKS, TASKS_A_PEER, FEW_BROKERS = 71, 4, 4
"""Tasks at rest of one of a few brokers, and those for each broker more: a controller waits for each."""
IDLE_PENDING, PENDING_A_PEER = 12, 3
"""Pending requests while only brokers send any: of one of a few brokers, and those for each broker more. It may have
one fetch of metadata there, and two of records."""
STREAMS_A_PEER = 2 * (IDLE_CONNECTIONS_MAX + 3)
"""Streams in both directions: idle connections, and those on which a follower's fetch, a request of the controller, or
its reply waits."""
GARBAGE_NS = 5_000_000_000
FILES_A_SEGMENT = 5
FILES_A_REPLICA = 2
"""Files per replica, with checkpoints that are being written."""


def measure_loads(run: ClusterRun) -> Iterator[tuple[SimHost, Broker, BrokerLoad]]:
    """Returns the resources that each broker holds now."""
    tasks, streams = run.loop.count_tasks(), run.world.network.open_streams()
    for host, node in run.world.nodes():
        held = {"tasks": tasks[host.process], "streams": streams[host.name], "files": host.machine.disk.open_files}
        if host.server is not None:
            buffers = host.server.buffers
            held["pending"] = host.server.pending_requests
            held["frame_bytes"] = node.settings.queued_max_request_bytes - buffers.free_bytes
            held["kept_bytes"] = buffers.pooled_bytes
            held["unsent_bytes"] = host.server.unsent_bytes
        yield host, node, held


def idle_limits(run: ClusterRun, node: Broker) -> BrokerLoad:
    """Returns the limits of a broker that serves only other brokers."""
    more = max(0, len(run.world.hosts) - FEW_BROKERS)
    return {
        "tasks": IDLE_TASKS + TASKS_A_PEER * more,
        "pending": IDLE_PENDING + PENDING_A_PEER * more,
        "frame_bytes": 0,
        "kept_bytes": POOL_BYTES,
        "unsent_bytes": 0,
        "streams": STREAMS_A_PEER * max(1, len(run.world.hosts) - 1),  # the only broker asks itself
        "files": count_files_needed(node),
    }


def count_files_needed(node: Broker) -> int:
    """Returns the files that a broker may keep open for its segments and replicas."""
    logs = [held.log for held in node.hosted_replicas.list_replicas()]
    segments = sum(len(log.segments.closed()) + 1 for log in logs)
    return FILES_A_SEGMENT * segments + FILES_A_REPLICA * (len(logs) + 1)


def check_limits(run: ClusterRun) -> None:
    """Checks that no resource grows without bound."""
    for host, node, load in measure_loads(run):
        for name, held in load.items():
            run.high_load[name] = max(run.high_load.get(name, 0), held)
            if held > LIMITS[name] + (count_files_needed(node) if name == "files" else 0):
                run.findings.report("I30", f"{host.process} holds {held} {name}")


def is_idle(run: ClusterRun) -> bool:
    """True if each broker is back at the resources that it needs without clients. First frees, now and then, what the
    traceback of an error holds: a run does not collect garbage."""
    if not find_excess(run):
        return True
    if run.loop.now_ns >= run.collected_ns + GARBAGE_NS:
        run.collected_ns = run.loop.now_ns
        gc.collect()
    return not find_excess(run)


def find_excess(run: ClusterRun) -> list[str]:
    """Describes each resource above its limit."""
    found = []
    for host, node, load in measure_loads(run):
        allowed = idle_limits(run, node)
        for name, held in load.items():
            if held > allowed[name]:
                found.append(f"{host.process} holds {held} {name}, {allowed[name]} at rest")
    return found
