"""Contents of a simulated disk: visible bytes and names, durable bytes and names, and the changes between them.

A file keeps its durable bytes and the ordered changes since the last sync; the names of all folders keep theirs in one
journal. A power cut draws an image. For each file a prefix of its changes survives, the next one may be torn, blocks of
the surviving ones may be missing, and the size may run ahead of the data. An interrupted truncation may leave zeros up
to the end of its first block: a file system can write these before the new size. For each folder a prefix of its
changes survives. A name is durable only when its folder was synced, however often the file was: POSIX promises no more.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

SECTOR = 512
BLOCK = 4096


class Write(NamedTuple):
    """Bytes at an offset; `None` data cuts or extends the file to that offset."""

    sequence: int
    offset: int
    data: bytes | None

    def apply(self, target: bytearray) -> None:
        _, offset, data = self
        if data is None:
            del target[offset:]
        if offset > len(target):
            target.extend(bytes(offset - len(target)))
        if data is not None:
            target[offset : offset + len(data)] = data


@dataclass
class Inode:
    """The content of one file, under any number of names."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write] = field(default_factory=list)

    def change(self, write: Write) -> None:
        write.apply(self.data)
        self.pending.append(write)

    def make_durable(self, sequence: int) -> None:
        """Makes durable what was written up to `sequence`."""
        while self.pending and self.pending[0].sequence <= sequence:
            self.pending.pop(0).apply(self.durable)

    def after_power_cut(self, rng: random.Random) -> Inode:
        image = bytearray(self.durable)
        keep = rng.choice((0, len(self.pending), rng.randint(0, len(self.pending))))
        for write in self.pending[:keep]:
            write.apply(image)
        if keep < len(self.pending):
            _tear(image, self.pending[keep], rng)
        if keep and rng.random() < 0.3:
            _lose_block(image, self.durable, rng)
        if self.pending and len(image) < len(self.data) and rng.random() < 0.3:
            image.extend(bytes(rng.randint(0, len(self.data) - len(image))))
        return Inode(bytearray(image), image)


def _tear(image: bytearray, write: Write, rng: random.Random) -> None:
    """Applies a part of the write that a power cut interrupted: whole sectors, or any number of bytes."""
    if write.data is None and rng.random() < 0.5:
        for at in range(write.offset, min(len(image), write.offset + -write.offset % BLOCK)):
            image[at] = 0
    if not write.data or rng.random() < 0.3:
        return
    length = rng.randint(0, len(write.data))
    if rng.random() < 0.5:
        length -= (write.offset + length) % SECTOR
    if length > 0:
        Write(0, write.offset, write.data[:length]).apply(image)


def _lose_block(image: bytearray, durable: bytearray, rng: random.Random) -> None:
    """Replaces a block that had not reached the disk although a later one had: by its earlier content, or zeros."""
    first = min(len(durable), len(image)) // BLOCK
    start = rng.randint(first, len(image) // BLOCK) * BLOCK
    lost = range(start, min(start + BLOCK, len(image)))
    for at in lost:
        image[at] = durable[at] if at < len(durable) else 0


@dataclass(eq=False)
class Folder:
    """Visible and durable names."""

    names: dict[str, Inode | Folder] = field(default_factory=dict)
    durable: dict[str, Inode | Folder] = field(default_factory=dict)


NameEdits = tuple[tuple[Folder, str, Inode | Folder | None], ...]
DurableNames = dict[int, dict[str, Inode | Folder]]


class NameChange(NamedTuple):
    """One atomic change of names: one or two (folder, name, node or None for a removed name)."""

    edits: NameEdits

    def touches(self, folders: Collection[Folder]) -> bool:
        return any(edit[0] in folders for edit in self.edits)

    def make_durable(self) -> None:
        for folder, name, node in self.edits:
            _set_name(folder.durable, name, node)


def _set_name(names: dict[str, Inode | Folder], name: str, node: Inode | Folder | None) -> None:
    names.pop(name, None)
    if node is not None:
        names[name] = node


@dataclass
class DurableBytes:
    """Disk contents that survive a process: the tree, its journal of names, and the number of changes."""

    root: Folder = field(default_factory=Folder)
    journal: list[NameChange] = field(default_factory=list)
    sequence: int = 0
    boot: int = 1
    inode: int = 1
    """The inode of the directories, the same for all: a copy has another one."""
    has_rotted: bool = False
    """True if a bit of any file was flipped."""

    def rename(self, edits: NameEdits) -> None:
        """Changes visible names, and notes the change in the journal."""
        self.journal.append(NameChange(edits))
        for folder, name, node in edits:
            _set_name(folder.names, name, node)

    def make_names_durable(self, folder: Folder) -> None:
        """Makes a folder's names durable; after a move between folders also the earlier changes of the other one."""
        needed, durable, waiting = {folder}, [], []
        for naming in reversed(self.journal):
            if naming.touches(needed):
                needed.update(touched for touched, _, _ in naming.edits)
                durable.append(naming)
            else:
                waiting.append(naming)
        for naming in reversed(durable):
            naming.make_durable()
        self.journal = waiting[::-1]

    def crash_image(self, rng: random.Random) -> DurableBytes:
        """Returns a separate copy as after a power cut at this moment; this disk goes on."""
        dead: list[Folder] = []
        lasting: DurableNames = {}
        for naming in self.journal:
            if naming.touches(dead) or rng.random() < 0.25:
                dead += [folder for folder, _, _ in naming.edits]
                continue
            for folder, name, node in naming.edits:
                _set_name(lasting.setdefault(id(folder), dict(folder.durable)), name, node)
        root = _crash_image_of(self.root, lasting, {}, rng)
        return DurableBytes(root, [], self.sequence, self.boot + 1, self.inode, self.has_rotted)


def count_bytes(folder: Folder) -> int:
    return sum(count_bytes(node) if isinstance(node, Folder) else len(node.data) for node in folder.names.values())


def _crash_image_of(
    folder: Folder,
    lasting: DurableNames,
    made: dict[int, Inode | Folder],
    rng: random.Random,
) -> Folder:
    """Returns the folder after a power cut, with its contents; a node with two names stays one node."""
    image = Folder()
    made[id(folder)] = image
    for name, node in lasting.get(id(folder), folder.durable).items():
        if id(node) not in made:
            made[id(node)] = (
                _crash_image_of(node, lasting, made, rng) if isinstance(node, Folder) else node.after_power_cut(rng)
            )
        image.names[name] = made[id(node)]
    image.durable = dict(image.names)
    return image
