"""Whose a data directory is: what a command looks at before it runs brokers on it."""

from __future__ import annotations

import os
import re

from tiered.broker.data_directory import META_FILE, ROOT
from tiered.errors import Code, Refused
from tiered.system.local_disk import claim_directory

LOCK = ".lock"
EXPECTED_NAMES = re.compile(rf"{ROOT}|bucket|{re.escape(LOCK)}|broker-[0-9]+|lost\+found")
"""What stands in a data directory: of a broker, of a cluster, of the file system."""


def claim_data_directory(directory: str) -> None:
    """Makes the directory before anything is put there, and closes it to others."""
    claim_directory(directory, lambda name: EXPECTED_NAMES.fullmatch(name) is not None)


def broker_directory(cluster: str, node_id: int) -> str:
    """The directory of one broker of a cluster that `tiered up` runs in a directory."""
    return os.path.join(cluster, f"broker-{node_id}")


def refuse_broker_directory(directory: str) -> None:
    """Refuses to run a cluster where a single broker has run: its bucket is where that of the cluster would be, and a
    new broker 1 would take its place without its records."""
    if _has_broker(directory):
        why = f"{os.path.abspath(directory)} is the directory of a single broker (tiered serve)"
        raise Refused(Code.INVALID_CONFIG, f"{why}: take another --data-dir")


def refuse_cluster_directory(directory: str) -> None:
    """And the other way round."""
    if _has_broker(broker_directory(directory, 1)):
        why = f"{os.path.abspath(directory)} is the directory of a cluster (tiered up)"
        raise Refused(Code.INVALID_CONFIG, f"{why}: take another --data-dir")


def _has_broker(path: str) -> bool:
    return os.path.exists(os.path.join(path, ROOT, META_FILE))
