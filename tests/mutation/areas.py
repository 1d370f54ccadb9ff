"""The areas of the catalogue: the mutants of each, and the tests and seeds that are to find them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutation.mutant import Mutant


@dataclass(frozen=True)
class Area:
    """`units` are quick tests, `scenarios` directed ones on the simulator, `shapes` those of runs with random seeds,
    `whole` tests of whole brokers."""

    mutants: tuple[Mutant, ...]
    units: tuple[str, ...]
    scenarios: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()

    def stage_of(self, test: str) -> str:
        """Returns the stage that a test belongs to, also where the test is of another area."""
        if test.startswith(("tests/unit/", *self.units)):
            return "units"
        return "scenarios" if test.startswith("tests/sim/") else "whole"


CATALOGUE = Path(__file__).with_name("catalogue")
SCENARIOS = "tests/sim/scenarios"


def _mutants(area: str) -> tuple[Mutant, ...]:
    rows: list[dict[str, Any]] = tomllib.loads((CATALOGUE / f"{area}.toml").read_text())["mutant"]
    return tuple(Mutant(**{**row, "first": tuple(row.get("first", ()))}) for row in rows)


_CLUSTERS = tuple(
    f"{SCENARIOS}/test_{name}.py"
    for name in (
        "fetches_of_followers", "judged_replicas", "manifests_ahead",
        "losses", "what_an_ack_survives", "start_behind_a_cut", "new_leaders", "new_leaders_offsets", "unclean_leaders",
        "elections", "gaining", "sim_moves", "replica_fetch", "follower_node", "nearest", "sim_rot", "bucket_away",
    )
)  # fmt: skip
_COPIES = ("tests/sim/scenarios/test_pipelined_producers.py", "tests/sim/cluster/test_once_failed.py")
_CONTROLLERS = tuple(
    f"{SCENARIOS}/test_{name}.py"
    for name in ("requests_of_brokers", "metadata_logs", "controllers", "cut_off", "reassignments")
)
_NODES = tuple(
    f"tests/sim/rig/test_sim_broker{name}.py" for name in ("", "_faults", "_races", "_topics", "_housekeeping")
)

_GROUPS = (
    "group_generations", "replicated_groups", "groups", "groups_bad_days", "lone_coordinators",
    "offsets_of_recreated_topics", "offsets_of_lost_records", "group_snapshots",
)  # fmt: skip
_DISKS = (
    f"{SCENARIOS}/test_damaged_starts.py", "tests/sim/harness/test_sim_disk.py",
    f"{SCENARIOS}/test_two_clusters.py",
)  # fmt: skip

_SECURITY_UNITS = (
    "tests/unit/security", "tests/unit/quotas", "tests/unit/kafka/test_rights.py",
    *(f"tests/unit/controller/test_{name}.py" for name in (
        "acls", "client_quotas", "delegation_tokens", "scram_credentials",
    )),
    *(f"tests/unit/access/test_{name}.py" for name in ("audit_log", "delegation_tokens", "client_quotas_tables")),
)  # fmt: skip
_SECURITY_WHOLE = tuple(
    f"tests/e2e/test_{name}.py"
    for name in (
        "kafka_login", "kafka_acls", "kafka_scram_users", "kafka_delegation_tokens", "kafka_client_quotas",
        "kafka_quotas_in_force", "kafka_connection_limits", "token_logins", "acting_brokers", "audit_topic",
        "http_acls", "http_quotas",
    )
)  # fmt: skip
AREAS = {
    "replication": Area(
        _mutants("replication"), ("tests/unit/replication", "tests/unit/upkeep", "tests/unit/hosting"),
        (*_CLUSTERS, *_COPIES), ("drawn",), _NODES,
    ),
    "wal": Area(
        _mutants("wal"), ("tests/unit/wal", "tests/unit/replication", "tests/unit/controller", "tests/unit/upkeep"),
        _CLUSTERS, ("drawn",), ("tests/e2e/test_flush_to_the_bucket.py",),
    ),
    "metadata": Area(
        _mutants("metadata"),
        ("tests/unit/metadata", "tests/unit/controller", "tests/unit/broker", "tests/unit/hosting"),
        (*_CONTROLLERS, *_CLUSTERS, *_COPIES), ("drawn",), _NODES,
    ),
    "groups": Area(
        _mutants("groups"),
        ("tests/unit/groups", "tests/unit/share", "tests/unit/coordinator", "tests/unit/controller"),
        tuple(f"{SCENARIOS}/test_{name}.py" for name in _GROUPS),
        ("groups", "drawn"),
        tuple(f"tests/e2e/test_kafka_{name}.py" for name in ("groups", "group_offsets", "coordinators_move")),
    ),
    "hot": Area(
        _mutants("hot"),
        ("tests/unit/hot", "tests/unit/producers"), (*_DISKS, *_CLUSTERS), ("one-broker", "drawn"), _NODES,
    ),
    "recovery": Area(
        _mutants("recovery"),
        tuple(f"tests/unit/{name}" for name in ("broker", "durability", "hot", "producers", "replication", "upkeep")),
        (*_DISKS, f"{SCENARIOS}/test_impostors.py", *_CLUSTERS, *_COPIES), ("one-broker", "drawn"),
        (*_NODES, "tests/sim/rig/test_sim_broker_offsets_noted.py"),
    ),
    "cold": Area(
        _mutants("cold"), ("tests/unit/cold", "tests/unit/object_store", "tests/unit/replication", "tests/unit/upkeep"),
        _CLUSTERS, ("one-broker", "drawn"), (*_NODES, "tests/e2e/test_cold.py"),
    ),
    "faces": Area(
        _mutants("faces"), ("tests/unit/kafka",), (f"{SCENARIOS}/test_kafka.py", *_CLUSTERS, *_COPIES), ("drawn",),
        tuple(f"tests/e2e/test_kafka_{name}.py" for name in ("produce", "fetch", "away")),
    ),
    "registry": Area(
        _mutants("registry"), ("tests/unit/registry",), (f"{SCENARIOS}/test_registry_races.py",),
        whole=("tests/e2e/test_registry.py", "tests/e2e/test_registry_cluster.py"),
    ),
    "security": Area(
        _mutants("security"), _SECURITY_UNITS,
        tuple(
            f"{SCENARIOS}/test_{name}.py"
            for name in ("rights_that_change", "quotas_that_change", "secret_rotation", "logins_in_pieces")
        ),
        whole=_SECURITY_WHOLE,
    ),
    "spark": Area(_mutants("spark"), ("tests/spark/test_plans.py",), whole=("tests/spark",)),
}  # fmt: skip


def mutants() -> dict[str, tuple[str, Mutant]]:
    """Returns area and mutant, by name."""
    return {mutant.name: (name, mutant) for name, area in AREAS.items() for mutant in area.mutants}
