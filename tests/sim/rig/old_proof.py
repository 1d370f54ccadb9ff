"""A data directory whose proof is in the files of earlier versions, or lacks a part of it."""

from __future__ import annotations

import orjson

from tests.sim.harness.disk import SimDisk
from tiered.durability.data_directory import ROOT
from tiered.hot import clean_shutdown, proof_file
from tiered.records.native import crc32c


def write_old_proof(disk: SimDisk, *, clean: bool = True, synced: bool = True) -> None:
    """Replaces the proof with the older files, with entries of clean and synced logs or without."""
    proof = proof_file.load(disk, ROOT)
    disk.remove(f"{ROOT}/{proof_file.FILE}")
    incarnations = " ".join(proof.incarnations)
    _write(disk, proof_file.OLD_BOOT, f"{proof.boot}\n{incarnations}\n".encode())
    if clean:
        rows = b",".join(clean_shutdown.encode_log(tp, each) for tp, each in proof.clean.items())
        _write_sealed(disk, proof_file.OLD_CLEAN, b"[" + rows + b"]")
    if synced:
        logs = [[*tp, topic_id] for tp, topic_id in sorted(proof.synced)]
        _write_sealed(
            disk, proof_file.OLD_SYNCED, orjson.dumps({"incarnations": list(proof.incarnations), "logs": logs})
        )


def _write_sealed(disk: SimDisk, name: str, body: bytes) -> None:
    _write(disk, name, b"%08x\n" % crc32c(body) + body)


def _write(disk: SimDisk, name: str, data: bytes) -> None:
    disk.open(f"{ROOT}/{name}", create=True).append([data])
