"""The proof of what a start may believe of the data directory: one file for the whole broker (R1).

- `boot` proves that the page cache has everything written since, unless the machine went down.
- `synced` lists the logs that are whole at their fsynced end, also after a power cut (`synced_logs`).
- `clean` describes small logs at a clean stop; it is void without Kafka's own mark of one.

The directory may be an older copy, which an operator put back. So the proof names incarnations, and proves nothing
unless the last one that ran is among them: the metadata log has it. `boot` also names the directory's inode.

The file is replaced as a whole. A process that dies at any time leaves the proof of before or the new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from tiered.errors import Corrupt
from tiered.hot import checkpoints, clean_shutdown
from tiered.hot.clean_shutdown import CleanLogEntry
from tiered.ids import TopicId, TopicPartition
from tiered.ports import Disk
from tiered.records.native import crc32c

log = logging.getLogger(__name__)

FILE = "proof"
OLD_BOOT, OLD_CLEAN, OLD_SYNCED = OLD_FILES = (".boot", "clean-logs", "synced-logs")
"""Files of earlier versions with the parts of the proof. The first write removes them."""

CleanEntries = Mapping[TopicPartition, CleanLogEntry]
SyncedRow = tuple[TopicPartition, TopicId]
NO_ENTRIES: CleanEntries = MappingProxyType({})


class Proof(NamedTuple):
    """The content of the file. `boot` is "" if the page cache is not proved."""

    incarnations: tuple[str, ...] = ()
    boot: str = ""
    synced: frozenset[SyncedRow] = frozenset()
    clean: CleanEntries = NO_ENTRIES


def encode(proof: Proof, clean_rows: Iterable[bytes] = ()) -> bytes:
    """Encodes a CRC line, then one JSON object. Each row comes from `clean_shutdown.encode_log`."""
    fields = {
        "incarnations": proof.incarnations,
        "boot": proof.boot,
        "synced": [[*tp, topic_id] for tp, topic_id in sorted(proof.synced)],
        "clean": list(map(orjson.Fragment, clean_rows)),
    }
    body = orjson.dumps(fields)
    return b"%08x\n" % crc32c(body) + body


def parse(data: bytes, *, where: str = "") -> Proof:
    """Parses the output of `encode`. Raises `Corrupt` if the bytes are invalid."""
    return _parse_fields(_parse_json(data, where), where)


def _parse_json(data: bytes, where: str) -> Any:
    crc, _, body = data.partition(b"\n")
    if crc != b"%08x" % crc32c(body):
        raise Corrupt("CRC is wrong", where=where)
    try:
        return orjson.loads(body)
    except ValueError:
        raise Corrupt("body is not JSON", where=where) from None


def _parse_fields(fields: Mapping[str, Any], where: str) -> Proof:
    try:
        synced = frozenset((TopicPartition(topic, number), TopicId(id)) for topic, number, id in fields["synced"])
        clean = dict(map(clean_shutdown.decode_log, fields["clean"]))
        return Proof(tuple(map(str, fields["incarnations"])), str(fields["boot"]), synced, clean)
    except (KeyError, ValueError, TypeError) as error:
        raise Corrupt(f"proof has another format: {error}", where=where) from None


def parse_old(boot: bytes | None, clean: bytes | None, synced: bytes | None) -> Proof:
    """Returns the proof in the files of earlier versions. Two of them name incarnations: those count that both name.

    Raises `Corrupt` if one is damaged.
    """
    mark, _, named = (boot or b"").decode(errors="replace").partition("\n")
    marked, rows = named.split(), _parse_json(synced, OLD_SYNCED) if synced is not None else None
    try:
        listed = rows["incarnations"] if rows is not None else marked
        fields = {
            "incarnations": [each for each in marked or listed if each in listed],
            "boot": mark,
            "synced": rows["logs"] if rows is not None else [],
            "clean": _parse_json(clean, OLD_CLEAN) if clean is not None else [],
        }
    except (KeyError, TypeError):
        raise Corrupt("list of synced logs has another format", where=OLD_SYNCED) from None
    return _parse_fields(fields, "older proof")


def load(disk: Disk, directory: str) -> Proof:
    """Returns the proof in a directory; nothing is proved if it is absent or damaged."""
    try:
        data = checkpoints.load(disk, directory, FILE)
        if data is not None:
            return parse(data, where=FILE)
        return parse_old(*(checkpoints.load(disk, directory, name) for name in OLD_FILES))
    except Corrupt as error:
        log.warning("proof of the data directory is not used why=%s", error)
        return Proof()


class ProofFile:
    """The file, and what its next write says."""

    def __init__(self, disk: Disk, directory: str, proof: Proof | None = None) -> None:
        self.proof = proof or Proof()
        self._disk = disk
        self._directory = directory
        self._lock = asyncio.Lock()

    async def save(self, clean_rows: Iterable[bytes] = ()) -> None:
        """Writes the proof. Only a clean stop gives rows. Raises `Unavailable`."""
        async with self._lock:
            await checkpoints.save(self._disk, self._directory, FILE, encode(self.proof, clean_rows))
            self._remove(OLD_FILES)

    def remove(self) -> None:
        """Removes the proof after an I/O error: the next start believes only what was fsynced.

        A write that is in progress fails then: it may have begun before the error.
        """
        self.proof = self.proof._replace(boot="")
        self._remove((FILE, f"{FILE}.tmp", *OLD_FILES))

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._disk.remove(f"{self._directory}/{name}")
