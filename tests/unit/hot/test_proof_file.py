"""Tests of the proof of the data directory: no process that dies loses what is proved, or claims what is not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import Op, SimDisk
from tests.sim.rig.old_proof import write_old_proof
from tests.unit.hot.fixtures import TOPIC_ID, append, batch, open_log
from tiered.durability.data_directory import ROOT, DataDirectory, DirectoryState
from tiered.errors import Corrupt, Unavailable
from tiered.hot.clean_shutdown import CleanLogEntry
from tiered.hot.proof_file import FILE, OLD_FILES, Proof, ProofFile, encode, load, parse, parse_old
from tiered.hot.synced_logs import SyncedLogs
from tiered.ids import TopicId, TopicPartition
from tiered.records.native import crc32c

AT, OTHER = TopicPartition("t", 0), TopicPartition("a-b.c", 7)
ROW = (AT, TopicId(TOPIC_ID))
WHOLE = Proof(("x", "y"), "boot=1 device=2", frozenset({ROW, (OTHER, TopicId("B" * 22))}))


def sealed(body: bytes) -> bytes:
    return b"%08x\n" % crc32c(body) + body


def old_synced(*incarnations: str) -> bytes:
    return sealed(orjson.dumps({"incarnations": incarnations, "logs": [["t", 0, TOPIC_ID]]}))


def test_proof_decodes_to_what_was_encoded_and_damage_is_refused() -> None:
    data = encode(WHOLE)
    assert parse(data) == WHOLE and parse(encode(Proof())) == Proof()
    for bad in (b"", bytes(len(data)), data[:-1], data.replace(b"x", b"z"), sealed(b"{}"), sealed(b"[]"), sealed(b"{")):
        with pytest.raises(Corrupt):
            parse(bad)


@pytest.mark.parametrize(
    ("boot", "synced", "incarnations"),
    [
        pytest.param(b"b\none two\n", old_synced("two"), ("two",), id="both name one"),
        pytest.param(b"b\none\n", old_synced("two"), (), id="no common one"),
        pytest.param(b"b\none\n", None, ("one",), id="the boot mark alone"),
        pytest.param(None, old_synced("two"), ("two",), id="the list alone"),
        pytest.param(b"b\n", old_synced("two"), ("two",), id="a boot mark that names none"),
    ],
)
def test_old_proof_counts_for_what_all_its_files_name(
    boot: bytes | None, synced: bytes | None, incarnations: tuple[str, ...]
) -> None:
    found = parse_old(boot, None, synced)
    assert found.incarnations == incarnations and found.boot == ("b" if boot is not None else "")
    assert found.synced == (frozenset({ROW}) if synced is not None else frozenset())


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"incarnations":1,"logs":[]}', b'{"incarnations":[],"logs":[1]}'])
def test_old_list_of_another_format_is_refused(body: bytes) -> None:
    with pytest.raises(Corrupt):
        parse_old(b"b\none\n", None, sealed(body))


@run_by(run_alone)
async def test_old_directory_is_read_once() -> None:
    disk = SimDisk(random.Random(1))
    await Life(disk).run()
    write_old_proof(disk)
    life = Life(disk.after_kill())
    found = await life.open()
    assert found.same_boot and found.clean and found.synced_logs == {ROW} and found.clean_entries.keys() == {AT}
    assert found.incarnations == ("me",)
    await life.directory.write_boot_mark("me")
    assert not set(OLD_FILES).intersection(life.disk.list(ROOT)) and FILE in life.disk.list(ROOT)


@run_by(run_alone)
async def test_removed_proof_does_not_come_back_with_a_write_in_progress() -> None:
    """The write began before the I/O error, and proves a page cache that may lack records now."""
    disk = SimDisk(random.Random(1))
    disk.make_dirs(ROOT)
    file = ProofFile(disk, ROOT, WHOLE)
    disk.sync_seconds = lambda: 0.001
    saving = asyncio.ensure_future(file.save())
    await asyncio.sleep(0)
    file.remove()
    with pytest.raises(Unavailable):
        await saving
    assert load(disk, ROOT) == Proof()
    await file.save()
    assert load(disk, ROOT) == WHOLE._replace(boot="")


class Life:
    """One process from its start to its clean stop. `claims` has what it has proved so far, and may prove next."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.directory = DataDirectory(disk)
        self.durable: set[str] = set()
        self.possible: set[str] = set()

    async def open(self) -> DirectoryState:
        return await self.directory.open("c", 1, "d")

    async def prove(self, claim: str, step: Coroutine[Any, Any, None]) -> None:
        self.possible.add(claim)
        await step
        self.durable.add(claim)

    async def run(self) -> None:
        await self.open()
        log = await open_log(self.disk)
        append(log, batch(0))
        await log.flush()
        entry = log.make_clean_entry(0, False)
        assert entry is not None
        rows = SyncedLogs(self.directory.proof_file, lambda tp: True)
        self.directory.set_proof(same_boot=False, incarnations=("me",))
        rows.add_row(ROW)
        await self.prove("synced", rows.save())
        await self.prove("boot", self.directory.write_boot_mark("me"))
        await self.prove("clean", self._stop(entry))

    async def _stop(self, entry: CleanLogEntry) -> None:
        await self.directory.mark_clean([(AT, entry)], "me")


def find_claims(state: DirectoryState) -> set[str]:
    """Returns what a start may believe if `me` was the last incarnation that ran."""
    ran = "me" in state.incarnations
    claims = {"boot": state.same_boot and ran, "synced": ROW in state.synced_logs and ran}
    claims["clean"] = state.clean and state.clean_incarnation == "me"
    assert AT in state.clean_entries or not claims["clean"], "entries without the mark would be void"
    return {each for each, holds in claims.items() if holds}


def cut_power(disk: SimDisk) -> SimDisk:
    return disk.crash_image(random.Random(7))


@pytest.mark.parametrize("die", [SimDisk.clone, cut_power], ids=["killed", "power cut"])
@run_by(run_alone)
async def test_process_that_dies_at_any_step_keeps_its_proofs(*, die: Callable[[SimDisk], SimDisk]) -> None:
    """The boot mark holds after a kill only. Each other proof holds once the step that writes it has returned."""
    left: list[tuple[SimDisk, set[str], set[str]]] = []
    disk = SimDisk(random.Random(1))
    life = Life(disk)

    def note(op: Op) -> None:
        left.append((die(disk), set(life.durable), set(life.possible)))

    disk.on_op = note
    await life.run()
    disk.on_op = None
    left.append((die(disk), life.durable, life.possible))
    believed: list[set[str]] = []
    for image, durable, possible in left:
        found = find_claims(await Life(image).open())
        lost_with_power = {"boot"} if die is cut_power else set[str]()
        assert durable - lost_with_power <= found <= possible - lost_with_power
        believed.append(found)
    assert len(left) > 20 and {"synced", "clean"} < believed[-1] | {"boot"} and believed[0] == set()
