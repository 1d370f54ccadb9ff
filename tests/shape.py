"""Counts of what is large, and the counts of the last landed tree, which `make check` lets fall and not rise.

    python -m tests.shape            the counts beside the kept ones; those that fell are kept
    python -m tests.shape --check    fails if a count is above the kept one

Nothing asks for a cut: docs/internals/decisions/0005-sizes-are-a-report.md says why. A change that has a reason to add
a large file or class raises the count in tests/shape.json by hand, and its commit says the reason.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.look import Function, Measure, Source, largest, long_files, long_functions, sources
from tests.sources import PACKAGES, ROOT, modules

KEPT = ROOT / "tests" / "shape.json"
MANY_METHODS, FULL_FOLDER = 30, 25


def many_methods(found: Sequence[Source]) -> Measure:
    """Counts the methods of classes, those with two underscores too."""
    sizes = {
        f"{each.path} {node.name}": sum(isinstance(member, Function) for member in node.body)
        for each in found
        for node in ast.walk(each.tree)
        if isinstance(node, ast.ClassDef)
    }
    return largest("classes, methods", sizes, MANY_METHODS)


def full_folders(found: Sequence[Source]) -> Measure:
    return largest("folders, files", Counter(each.folder for each in found), FULL_FOLDER)


def nameless_tests(paths: Iterable[str], known: Iterable[str]) -> Measure:
    """Counts unit tests whose names have the name of no module in them.

    `tests/unit/quotas/test_quota_validation.py` is named after `tiered.quotas.validation`: only modules of a package
    that is named as the folder count.
    """
    stems: dict[str, set[tuple[str, ...]]] = {}
    for name in known:
        *packages, stem = name.split(".")
        for package in packages:
            stems.setdefault(package, set()).add(_words(stem))
    nameless = [path for path in paths if not _is_named(Path(path), stems)]
    return Measure("unit tests named after no module", len(nameless), nameless)


def _words(stem: str) -> tuple[str, ...]:
    return tuple(word.removesuffix("s") for word in stem.split("_"))


def _is_named(path: Path, stems: dict[str, set[tuple[str, ...]]]) -> bool:
    words = _words(path.stem.removeprefix("test_"))
    folder = "tiered" if path.parent.name == "unit" else path.parent.name
    parts = {words[start:end] for end in range(len(words) + 1) for start in range(end)}
    return not parts.isdisjoint(stems.get(folder, set()))


def measures() -> list[Measure]:
    """Returns what is counted: of the product, and of the names of its unit tests."""
    product = sources(*PACKAGES.values())
    unit = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests" / "unit").rglob("test_*.py"))]
    return [
        long_files(product),
        many_methods(product),
        long_functions(product),
        full_folders(product),
        nameless_tests(unit, [*modules(), *(f"bench.{path.stem}" for path in (ROOT / "bench").rglob("*.py"))]),
    ]


def read_kept() -> dict[str, float]:
    """Returns the counts of the last landed tree."""
    return dict(json.loads(KEPT.read_text()))


def grown(found: Sequence[Measure], kept: dict[str, float]) -> list[str]:
    """Returns what is more than it was, with the things to look at first."""
    return [
        f"{each.total:g} {each.name}, {kept.get(each.name, 0):g} before: {'; '.join(each.worst[:10])}"
        for each in found
        if each.total > kept.get(each.name, 0)
    ]


def fallen(found: Sequence[Measure], kept: dict[str, float]) -> dict[str, float]:
    """Returns the counts to keep: none rises."""
    return {each.name: min(each.total, kept.get(each.name, each.total)) for each in found}


def main() -> None:
    """Prints the counts, and keeps those that fell; with `--check` it keeps none, and fails if one grew."""
    found, kept = measures(), read_kept()
    if "--check" in sys.argv[1:]:
        more = grown(found, kept)
        sys.exit("\n".join([*more, "Each of them is one idea? Raise its count in tests/shape.json."]) if more else 0)
    for each in found:
        print(f"{each.total:g} {each.name} (kept: {kept.get(each.name, 0):g})")
    KEPT.write_text(json.dumps(fallen(found, kept), indent=2) + "\n")


if __name__ == "__main__":
    main()
