"""The owner of a data directory: commands check it before they run brokers on the directory."""

from __future__ import annotations

import os
import re

from tiered.cold.disk_cache import FOLDER
from tiered.durability.data_directory import META_FILE, ROOT
from tiered.errors import Code, Refused
from tiered.system.local_disk import claim_directory

LOCK = ".lock"
MACHINE_LOCK = ".machine.lock"
EXPECTED_NAMES = re.compile(
    rf"{ROOT}|{FOLDER}|bucket|{re.escape(LOCK)}|{re.escape(MACHINE_LOCK)}|broker-[0-9]+|process-[0-9]+|lost\+found"
)
"""Names in a data directory: those of a broker, of a cluster, and of the file system."""


def claim_data_directory(directory: str) -> None:
    """Creates the directory before any file is written to it, without access for other users."""
    claim_directory(directory, lambda name: EXPECTED_NAMES.fullmatch(name) is not None)


def broker_directory(cluster: str, node_id: int) -> str:
    """Returns the directory of one broker of a cluster that `tiered up` runs in a directory."""
    return os.path.join(cluster, f"broker-{node_id}")


def refuse_broker_directory(directory: str) -> None:
    """Refuses to run a cluster in the directory of a single broker. The cluster would use the same place for its
    bucket, and its broker 1 would start without the records of the single broker."""
    if _has_broker(directory):
        why = f"{os.path.abspath(directory)} is the directory of a single broker (tiered serve)"
        raise Refused(Code.INVALID_CONFIG, f"{why}: take another --data-dir")


def refuse_cluster_directory(directory: str) -> None:
    """Refuses to run a single broker in the directory of a cluster."""
    if _has_broker(broker_directory(directory, 1)):
        why = f"{os.path.abspath(directory)} is the directory of a cluster (tiered up)"
        raise Refused(Code.INVALID_CONFIG, f"{why}: take another --data-dir")


def _has_broker(path: str) -> bool:
    return os.path.exists(os.path.join(path, ROOT, META_FILE))
