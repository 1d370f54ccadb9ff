"""Logs on simulated disks, read past all brokers."""

from __future__ import annotations

from struct import Struct

from tests.sim.cluster.expiry import LogBatch
from tests.sim.harness.disk import SimDisk
from tests.sim.harness.durable_bytes import Folder, Inode
from tiered.ports import Buffer
from tiered.records.native import walk

_CRC = Struct(">I")
_CRC_AT = 17
LOG_DIR = "log"


def batches_of(data: Buffer, *, check_crc: bool = False) -> list[LogBatch]:
    """Returns the whole batches at the start of some log bytes, up to the first with a wrong CRC."""
    return [
        LogBatch(
            each.base_offset,
            each.last_offset,
            each.leader_epoch,
            _CRC.unpack_from(data, each.position + _CRC_AT)[0],
            each.size,
            each.max_timestamp,
        )
        for each in walk(data, check_crc=check_crc).batches
    ]


def read_disk_log(disk: SimDisk, directory: str) -> tuple[int, list[LogBatch]]:
    """Returns the start of the log in a partition's directory, and its valid batches: up to the first with a wrong CRC,
    or the first that does not follow the one before it. A first file without batches ends at its own offset."""
    folder = disk._find(f"{LOG_DIR}/{directory}")
    whole: list[LogBatch] = []
    if not isinstance(folder, Folder):
        return 0, whole
    logs = [(name, node) for name, node in sorted(folder.names.items()) if name.endswith(".log")]
    start = end = int(logs[0][0].partition(".")[0]) if logs else 0
    for _, node in logs:
        batches = batches_of(bytes(node.data), check_crc=True) if isinstance(node, Inode) else []
        if batches and batches[0].base != end:
            break
        whole += batches
        end = whole[-1].last + 1 if whole else start
    return start, whole
