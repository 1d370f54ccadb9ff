"""The areas of the catalogue: which mutants each has, and which tests and seeds are to find them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutation.mutant import Mutant


@dataclass(frozen=True)
class Area:
    """`units` are quick tests, `scenarios` directed ones on the simulator, `worlds` those of the random seeds, `whole`
    tests of whole brokers."""

    mutants: tuple[Mutant, ...]
    units: tuple[str, ...]
    scenarios: tuple[str, ...] = ()
    worlds: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


CATALOGUE = Path(__file__).with_name("catalogue")


def _mutants(area: str) -> tuple[Mutant, ...]:
    rows: list[dict[str, Any]] = tomllib.loads((CATALOGUE / f"{area}.toml").read_text())["mutant"]
    return tuple(Mutant(**{**row, "first": tuple(row.get("first", ()))}) for row in rows)


_CLUSTERS = tuple(
    f"tests/sim/test_sim_{name}.py"
    for name in (
        "losses", "what_an_ack_survives", "start_behind_a_cut", "new_leaders", "new_leaders_offsets", "unclean_leaders",
        "elections", "gaining", "moves", "replica_fetch", "follower_node", "nearest", "rot", "bucket_away",
    )
)  # fmt: skip
_COPIES = ("tests/sim/test_pipelined_producers.py", "tests/sim/cluster/test_once_failed.py")
_CONTROLLERS = tuple(f"tests/sim/test_{name}.py" for name in ("controllers", "cut_off", "reassignments"))
_NODES = tuple(f"tests/e2e/test_node{name}.py" for name in ("", "_faults", "_races", "_topics", "_housekeeping"))

AREAS = {
    "replication": Area(
        _mutants("replication"), ("tests/unit/replication",), (*_CLUSTERS, *_COPIES), ("cluster",), _NODES
    ),
    "metadata": Area(
        _mutants("metadata"), ("tests/unit/metadata", "tests/unit/test_committed.py", "tests/unit/test_doubts.py"),
        (*_CONTROLLERS, *_CLUSTERS, *_COPIES), ("cluster",), _NODES,
    ),
    "groups": Area(
        _mutants("groups"), ("tests/unit/groups", "tests/unit/metadata"),
        ("tests/sim/test_groups.py", "tests/sim/test_groups_bad_days.py", "tests/sim/test_sim_lone_coordinators.py"),
        ("groups", "cluster"),
        tuple(f"tests/e2e/test_kafka_{name}.py" for name in ("groups", "group_offsets", "coordinators_move")),
    ),
    "hot": Area(
        _mutants("hot"), ("tests/unit/hot",),
        ("tests/sim/test_sim_disk.py", "tests/sim/test_single_broker.py", *_CLUSTERS), ("single", "cluster"), _NODES,
    ),
    "recovery": Area(
        _mutants("recovery"),
        ("tests/unit/test_data_directory.py", "tests/unit/test_data_directory_at_a_start.py", "tests/unit/hot",
         "tests/unit/replication"),
        ("tests/sim/test_sim_disk.py", "tests/sim/test_single_broker.py", "tests/sim/test_sim_impostors.py",
         *_CLUSTERS, *_COPIES),
        ("single", "cluster"), (*_NODES, "tests/e2e/test_node_offsets_noted.py"),
    ),
    "cold": Area(
        _mutants("cold"), ("tests/unit/cold", "tests/unit/replication"),
        ("tests/sim/test_single_broker.py", *_CLUSTERS), ("single", "cluster"), (*_NODES, "tests/e2e/test_cold.py"),
    ),
    "faces": Area(
        _mutants("faces"), ("tests/unit/kafka",), ("tests/sim/test_sim_kafka.py", *_CLUSTERS, *_COPIES), ("cluster",),
        tuple(f"tests/e2e/test_kafka_{name}.py" for name in ("produce", "fetch", "away")),
    ),
    "spark": Area(_mutants("spark"), ("tests/spark/test_plans.py",), whole=("tests/spark",)),
}  # fmt: skip


def mutants() -> dict[str, tuple[str, Mutant]]:
    """Area and mutant, by name."""
    return {mutant.name: (name, mutant) for name, area in AREAS.items() for mutant in area.mutants}
