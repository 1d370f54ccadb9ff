"""The sources of this repository as the tests of the floors read them: files, syntax trees, and imports."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "tiered": ROOT / "tiered",
    "tiered_api": ROOT / "api/tiered_api",
    "pyspark_tiered": ROOT / "spark/pyspark_tiered",
}


class Import(NamedTuple):
    """A module that another one imports; `lazy` if that happens in a function, or for the type checker only."""

    module: str
    line: int
    lazy: bool


@cache
def modules() -> dict[str, Path]:
    """Returns every module of the three packages by its dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """Returns the syntax tree of a file."""
    return ast.parse(path.read_text(), filename=str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Returns all nodes of the syntax tree of a file."""
    return tuple(ast.walk(tree(path)))


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Returns the imports of a file; `from a import b` counts as `a.b` if that is a module."""
    lazy = {
        id(inner)
        for outer in nodes(path)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef) or _for_types(outer)
        for inner in ast.walk(outer)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [Import(name.name, node.lineno, id(node) in lazy) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}:{node.lineno}: relative import"
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                found.append(Import(whole if whole in modules() else node.module, node.lineno, id(node) in lazy))
    return tuple(found)


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
