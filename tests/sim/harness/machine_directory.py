"""The directory of a machine with several processes: one tree while its logs move, one for each process while they run.

`process-k` of the tree is the directory of process k, and the first process has the tree itself. A move between two
processes is one change of names, so both have to be in one tree. All moves are durable before any process runs again,
so a tree is taken apart only then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.sim.harness.durable_bytes import DurableBytes, Folder, NameChange


@dataclass(frozen=True)
class MachineDirectory:
    """The tree, and the number of boots of each part before it was joined."""

    whole: DurableBytes
    boots: Mapping[int, int]


def join_directories(parts: Mapping[int, DurableBytes]) -> MachineDirectory:
    """Returns the tree of a machine with these processes. A process without any file is not in the tree."""
    first = parts[0]
    for number, part in parts.items():
        if number and part.root.names:
            first.root.names[_name(number)] = first.root.durable[_name(number)] = part.root
    whole = DurableBytes(
        first.root,
        [each for part in parts.values() for each in part.journal],
        max(part.sequence for part in parts.values()),
        first.boot,
        first.inode,
        any(part.has_rotted for part in parts.values()),
    )
    return MachineDirectory(whole, {number: part.boot for number, part in parts.items()})


def split_directory(machine: MachineDirectory, whole: DurableBytes) -> dict[int, DurableBytes]:
    """Returns the directory of each process. `whole` is the tree as it is now, perhaps after power cuts."""
    roots = {0: whole.root}
    for number in machine.boots:
        if number:
            found = whole.root.names.pop(_name(number), None)
            whole.root.durable.pop(_name(number), None)
            roots[number] = found if isinstance(found, Folder) else Folder()
    folders = {number: set(_folders(root)) for number, root in roots.items()}
    journal = [each for each in whole.journal if not _names_process(each, whole.root)]
    parts: dict[int, DurableBytes] = {}
    for number, root in roots.items():
        own = [each for each in journal if each.touches(folders[number])]
        for other in roots:
            across = [each for each in own if other != number and each.touches(folders[other])]
            edited = [name for change in across for _, name, _ in change.edits]
            assert not across, f"moves are not durable: {edited}"
        cuts = whole.boot - machine.boots[0]
        boot = machine.boots[number] + cuts
        parts[number] = DurableBytes(root, own, whole.sequence, boot, whole.inode, whole.has_rotted)
    return parts


def _name(number: int) -> str:
    return f"process-{number}"


def _names_process(change: NameChange, root: Folder) -> bool:
    return any(folder is root and name.startswith(_name(0)[:-1]) for folder, name, _ in change.edits)


def _folders(folder: Folder) -> Iterator[Folder]:
    yield folder
    for node in {id(each): each for each in (*folder.names.values(), *folder.durable.values())}.values():
        if isinstance(node, Folder):
            yield from _folders(node)
