"""Shapes of a run beside the usual one: a cluster of one broker, whose disk and bucket bear the faults, a load of
groups that commit offsets, machines of two processes, and members of a consumer group. Some seeds draw the first three;
`python -m tests.sim --shape` gives one of them to every seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.sim.cluster.options import BROKERS, ClusterOptions
from tiered.cold.manifest import FAN
from tiered.metadata.log_writer import SNAPSHOT_SLOTS
from tiered.records.model import Codec

DRAWN = "drawn"
ONE_BROKER_SHARE, COMMITTERS_SHARE, MACHINES_SHARE = 0.12, 0.12, 0.12
"""Shares of seeds with one broker, with groups that commit offsets, and with machines of several processes."""
PROCESSES = 2
MACHINE_FAULTS = ("machine_dies", "process_dies", "freeze", "isolated")
"""Faults of machines, of which the processes of one share power, network and clock."""
MACHINE_FAULT_SHARE, MACHINE_LOST_SHARE = 0.6, 0.35
"""Share of runs with machines that have each of these faults, and share in which one machine is lost for good."""
PROCESS_CHANGES_SHARE = 0.5
"""Share of runs with machines in which these start with another number of processes."""
ALONE_SHARE = 0.7
"""Share of the runs of the second shape in which one broker coordinates the groups."""
FAULT_SHARES = {
    "kill": 0.7,
    "power": 0.5,
    "disk_lost": 0.3,
    "disk_full": 0.3,
    "bucket_away": 0.3,
    "disk_error": 0.25,
    "cut_short": 0.5,
}
"""Share of the runs of one broker with each kind of fault."""
GROUP_FAULTS = ("kill", "power", "disk_lost", "stop", "stop_disk_lost", "disk_full", "bucket_away")
CONSUMER_FAULTS = ("kill", "stop", "freeze", "one_way", "isolated", "reset", "power")
GROUPS, OFFSETS_PARTITIONS = 6, 3


def draw_options(seed: int) -> ClusterOptions:
    """Returns the options of a seed, with the shape that it draws."""
    rng = random.Random(f"{seed}/shape")
    is_alone, has_committers = rng.random() < ONE_BROKER_SHARE, rng.random() < COMMITTERS_SHARE
    drawn = ClusterOptions.for_seed(seed, 1 if is_alone else BROKERS)
    if is_alone:
        changes = _draw_one_broker(drawn)
        drawn = drawn.with_changes(**changes | {"troubles": (*drawn.troubles, *changes["troubles"])})
    elif random.Random(f"{seed}/has-machines").random() < MACHINES_SHARE:
        drawn = of_machines(drawn)
    if has_committers:
        drawn = drawn.with_changes(committers=GROUPS)
    return drawn


def of_one_broker(drawn: ClusterOptions) -> ClusterOptions:
    """Returns options of the same seed for a cluster of one broker."""
    made = ClusterOptions.for_seed(drawn.seed, 1, compacts=False)
    return made.with_changes(**_draw_one_broker(made))


def of_groups(drawn: ClusterOptions) -> ClusterOptions:
    """Returns options of the same seed for groups that commit offsets, and little else, for long and under long
    faults."""
    rng = random.Random(f"{drawn.seed}/groups-shape")
    made = ClusterOptions.for_seed(drawn.seed, 1 if rng.random() < ALONE_SHARE else BROKERS, compacts=False)
    return made.with_changes(
        topics=made.topics[:1], group_topics=1, senders=1, send_rate=1.0, readers=0, members=0, admin=False,
        admin_deletes=False,
        moves=False, joins=False, leaves=False, changes=(), deletes=False, rot=False, transactional_producers=0,
        copies=False, keyed_writers=0, rebuild=rng.random() < 0.3,
        committers=GROUPS, offsets_partitions=OFFSETS_PARTITIONS,
        troubles=GROUP_FAULTS, troublemakers=1, pause_seconds=rng.choice((4.0, 8.0)), chaos_seconds=100.0,
        full_seconds=20.0, outage_seconds=40.0,
    )  # fmt: skip


def of_consumers(drawn: ClusterOptions) -> ClusterOptions:
    """Returns options of the same seed for members of a consumer group (KIP-848), and little else, while coordinators
    die and lose contact."""
    rng = random.Random(f"{drawn.seed}/consumers-shape")
    made = ClusterOptions.for_seed(drawn.seed, BROKERS, compacts=False)
    return made.with_changes(
        topics=made.topics[:2], group_topics=2, senders=1, send_rate=1.0, readers=0, members=0, admin=False,
        admin_deletes=False,
        moves=False, joins=False, leaves=False, changes=(), deletes=False, rot=False, transactional_producers=0,
        copies=False, keyed_writers=0, rebuild=rng.random() < 0.2, consumers=rng.choice((2, 3, 4)),
        troubles=CONSUMER_FAULTS, troublemakers=rng.choice((1, 2)), chaos_seconds=40.0,
    )  # fmt: skip


def of_machines(drawn: ClusterOptions) -> ClusterOptions:
    """Returns these options for three machines of two processes. A machine that is lost for good leaves two replicas of
    each partition, which take records."""
    made = drawn if drawn.brokers == BROKERS else ClusterOptions.for_seed(drawn.seed)
    rng = random.Random(f"{made.seed}/machines")
    faults = tuple(kind for kind in MACHINE_FAULTS if rng.random() < MACHINE_FAULT_SHARE)
    changes: dict[str, Any] = {"processes": PROCESSES, "troubles": (*dict.fromkeys((*made.troubles, *faults)),)}
    if rng.random() < MACHINE_LOST_SHARE:
        changes |= {
            "machine_is_lost": True,
            "topics": tuple(replace(each, replicas=BROKERS, min_isr=2, own_min_isr=True) for each in made.topics),
            "compacted": made.compacted and replace(made.compacted, replicas=BROKERS, min_isr=2, own_min_isr=True),
            "changes": tuple(each for each in made.changes if each not in ("min_isr", "unclean")),
            "min_isr": 1,
            "admin": False,
            "moves": False,
            "returns_replicas": False,
            "joins": False,
            "leaves": False,
            "rebuild": False,
        }
    if random.Random(f"{made.seed}/process-counts").random() < PROCESS_CHANGES_SHARE:
        changes |= {"changes_processes": True, "joins": False, "leaves": False}
    return made.with_changes(**changes)


def _draw_one_broker(made: ClusterOptions) -> dict[str, Any]:
    """Draws the options of a cluster of one broker from a random stream of their own."""
    rng = random.Random(f"{made.seed}/one-broker")
    return {
        "troubles": tuple(kind for kind, share in FAULT_SHARES.items() if rng.random() < share),
        "admin": rng.random() < 0.6,
        "admin_deletes": True,
        "senders": rng.randint(2, 4),
        "send_rate": 4.0,
        "manifest_fan": rng.choice((2, 4, FAN)),
        "snapshot_slots": rng.choice((3, 10, SNAPSHOT_SLOTS)),
        "chaos_seconds": 40.0,
        "rebuild": True,
        "full_seconds": 5.0,
        "outage_seconds": 12.0,
        "delay_seconds": 30.0,
        "reply_seconds": 5.0,
        "batch_records": 5,
        "codecs": (Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.LZ4),
    }


SHAPES: dict[str, Callable[[ClusterOptions], ClusterOptions]] = {
    DRAWN: lambda drawn: drawn,
    "one-broker": of_one_broker,
    "groups": of_groups,
    "machines": of_machines,
    "consumers": of_consumers,
}
"""By name: what changes the options that a seed draws."""


def command_of(options: ClusterOptions) -> str:
    """Returns the command that runs these options again. Options that a test has changed are run as they were drawn."""
    drawn = draw_options(options.seed)
    shape = next((name for name, adjust in SHAPES.items() if adjust(drawn) == options), DRAWN)
    return f"make sim SEED={options.seed}" if shape == DRAWN else f"make sim SHAPE={shape} SEED={options.seed}"
