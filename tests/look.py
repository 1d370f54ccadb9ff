"""A report on the shape of the sources. It fails nothing: docs/internals/decisions/0005-sizes-are-a-report.md says why.

    python -m tests.look                     the report
    python -m tests.look --counts            its counts alone, as JSON
    python -m tests.look --before FILE       the report, with the counts of FILE beside today's

Each measure has a count and the worst of what it counts. A rising count is a question to the author, not an error.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.sources import PACKAGES, ROOT, imports, modules, tree

SHOWN = 10
LONG_FILE, LONG_FUNCTION, MANY_ARGUMENTS, FULL_FOLDER = 400, 60, 8, 20
OPENINGS = ("Who", "Whoever", "What", "Whether", "Of", "As", "Until")
METAPHORS = {
    word: re.compile(rf"\b{pattern}\b", re.IGNORECASE)
    for word, pattern in {
        "reign": r"reign(s|ed|ing)?",
        "heir": r"heirs?",
        "twin": r"twins?",
        "born": r"born",
        "owe": r"ow(e|es|ed|ing)",
        "wish": r"wish(es|ed|ing)?",
        "hear": r"hear(s|d|ing)?",
        "doubt": r"doubt(s|ed|ing|ful)?",
        "patience": r"patien(ce|t|tly)",
        "story": r"stor(y|ies)",
        "plant": r"plant(s|ed|ing)?",
        "stranger": r"strangers?",
    }.items()
}
"""Words for which docs/internals/glossary.md has a term of Kafka, Raft or S3, or a plain one."""
WIRE_NAMES = {"TieredHeardRequest", "TieredHeardResponse", "tiered_heard", "heard_ms_ago", "IsrWish", "wishes"}
"""Names in messages between brokers, or made of such names: they stay."""
METAPHOR = re.compile("|".join(pattern.pattern.replace(r"\b", "") for pattern in METAPHORS.values()), re.IGNORECASE)
BEGINNING = re.compile(rf"(?:\A|[.!?:]\s+|^[-*] +|\n\n *)((?:{'|'.join(OPENINGS)}) [^.]*)", re.MULTILINE)
"""The beginning of a sentence with one of the words, in a text, a paragraph or an item of a list."""
PARTICIPLES = {
    *("begun", "born", "bound", "broken", "brought", "built", "caught", "chosen", "drawn", "driven", "fed", "found"),
    *(
        "given",
        "gone",
        "got",
        "grown",
        "heard",
        "held",
        "hidden",
        "kept",
        "known",
        "laid",
        "led",
        "left",
        "lent",
        "lost",
    ),
    *("made", "meant", "met", "paid", "rotten", "said", "seen", "sent", "shown", "sought", "spent", "spoken", "spoilt"),
    *("stood", "taken", "taught", "thrown", "told", "understood", "woken", "won", "worn", "written"),
}
VERBS_TOO = {"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed"}
"""Words that end like participles and are none."""


class Measure(NamedTuple):
    """One line of the report: a count, and the counted things, the worst first."""

    name: str
    total: float
    worst: Sequence[str] = ()


class Source(NamedTuple):
    """One file of Python."""

    path: str
    lines: int
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


def sources(*folders: Path) -> list[Source]:
    """Returns all Python files below these folders."""
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return [Source(str(path.relative_to(ROOT)), len(path.read_text().splitlines()), tree(path)) for path in paths]


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(found: Sequence[Source]) -> Iterator[tuple[Source, Function]]:
    """Yields every function and method."""
    for each in found:
        for node in ast.walk(each.tree):
            if isinstance(node, Function):
                yield each, node


def docstrings(found: Sequence[Source]) -> Iterator[str]:
    """Yields the texts of modules, classes and functions, and those below a constant or a field."""
    for each in found:
        for node in ast.walk(each.tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield node.value.value


def largest(name: str, sizes: Mapping[str, int], limit: int) -> Measure:
    """Counts the sizes above the limit, and names the largest."""
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return Measure(
        f"{name} over {limit}",
        sum(size > limit for size in sizes.values()),
        [f"{size:5} {what}" for what, size in ordered[:SHOWN]],
    )


def long_files(found: Sequence[Source]) -> Measure:
    return largest("files, lines", {each.path: each.lines for each in found}, LONG_FILE)


def long_functions(found: Sequence[Source]) -> Measure:
    sizes = {
        f"{each.path}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for each, node in functions(found)
    }
    return largest("functions, lines", sizes, LONG_FUNCTION)


def wide_constructors(found: Sequence[Source]) -> Measure:
    """Measures `__init__` alone: a dataclass or named tuple with many fields is a value."""
    sizes = {}
    for each in found:
        for owner in (node for node in ast.walk(each.tree) if isinstance(node, ast.ClassDef)):
            for node in owner.body:
                if isinstance(node, Function) and node.name == "__init__":
                    given = node.args
                    sizes[f"{each.path} {owner.name}"] = len(given.posonlyargs + given.args + given.kwonlyargs) - 1
    return largest("constructors, arguments", sizes, MANY_ARGUMENTS)


def full_folders(found: Sequence[Source]) -> Measure:
    return largest("folders, files", Counter(each.folder for each in found), FULL_FOLDER)


def classes_twice(found: Sequence[Source]) -> Measure:
    """Finds public names of classes that stand in more than one file. Kafka chose the names of its messages."""
    homes: dict[str, list[str]] = defaultdict(list)
    for each in (source for source in found if not source.folder.endswith("/messages")):
        for node in each.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(each.path)
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    return Measure(
        "class names that stand twice", len(twice), [f"{name}: {', '.join(twice[name])}" for name in sorted(twice)]
    )


def participles(found: Sequence[Source]) -> Measure:
    """Counts functions whose whole name is a participle, properties too: a value is a noun."""
    names = Counter(node.name.strip("_") for _, node in functions(found) if is_participle(node.name.strip("_")))
    return Measure(
        "functions named by a participle",
        names.total(),
        [f"{many:5} {name}" for name, many in names.most_common(SHOWN)],
    )


def is_participle(word: str) -> bool:
    """True if a name is one word that is a participle and no imperative."""
    return (
        "_" not in word and word not in VERBS_TOO and (word in PARTICIPLES or bool(re.fullmatch(r"[a-z]{2,}ed", word)))
    )


def openings(found: Sequence[Source]) -> Measure:
    """Counts docstrings that begin with a word that begins no plain sentence."""
    words = Counter(first[0] for text in docstrings(found) if (first := re.findall(r"^\s*(\w+)", text)))
    counts = {word: words[word] for word in OPENINGS}
    return Measure(f"docstrings that begin with {', '.join(OPENINGS)}", sum(counts.values()), _by_word(counts))


def sentence_openings(found: Sequence[Source]) -> Measure:
    """Counts sentences of docstrings and of docs that begin with such a word."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "infra").rglob("*.md")]
    texts = [(each.path, text) for each in found for text in docstrings([each])]
    texts += [(str(page.relative_to(ROOT)), page.read_text()) for page in sorted(pages)]
    begun = [f"{path}: {sentence:.80}" for path, text in texts for sentence in BEGINNING.findall(text)]
    return Measure(f"sentences that begin with {', '.join(OPENINGS)}", len(begun), begun[:SHOWN])


def metaphors_in_names(found: Sequence[Source]) -> Measure:
    """Counts files, classes, functions, parameters and attributes that have one of the words in their names."""
    names: set[tuple[str, str]] = set()
    for each in found:
        names.add((each.path.rpartition("/")[2].removesuffix(".py"), each.path))
        for node in ast.walk(each.tree):
            name = getattr(node, "name", None) or getattr(node, "arg", None) or getattr(node, "attr", None)
            if isinstance(name, str):
                names.add((name, each.path))
    found_names = sorted(
        f"{path} {name}"
        for name, path in names
        if name not in WIRE_NAMES and any(METAPHOR.fullmatch(word) for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name))
    )
    return Measure("metaphors in names", len(found_names), found_names[:SHOWN])


def metaphors(found: Sequence[Source]) -> Measure:
    """Counts the words in docstrings."""
    counts = dict.fromkeys(METAPHORS, 0)
    for text in docstrings(found):
        for word, pattern in METAPHORS.items():
            counts[word] += len(pattern.findall(text))
    return Measure("metaphors in docstrings", sum(counts.values()), _by_word(counts))


def _by_word(counts: Mapping[str, int]) -> list[str]:
    return [f"{many:5} {word}" for word, many in sorted(counts.items(), key=lambda item: -item[1])]


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Returns groups of names that reach each other (strongly connected components), the largest first."""
    reach = {name: _reached(graph, name) for name in graph}
    found = {
        tuple(sorted(other for other in reach[name] if name in reach.get(other, ())))
        for name in graph
        if name in reach[name]
    }
    return sorted(([*each] for each in found if len(each) > 1), key=lambda each: (-len(each), each))


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = [*graph[start]]
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += graph.get(name, ())
    return seen


def import_circles() -> list[Measure]:
    """Counts circles of modules and of packages. Imports for types alone count, and those inside functions."""
    known = modules()
    graph = {
        name: {each.module for each in imports(path) if each.module in known} - {name} for name, path in known.items()
    }
    packages: dict[str, set[str]] = defaultdict(set)
    for name, others in graph.items():
        packages[_package(name)] |= {_package(other) for other in others} - {_package(name)}
    return [
        Measure(f"import circles of {what}", len(found), [f"{len(each):5} {', '.join(each)}" for each in found[:SHOWN]])
        for what, found in (("modules", circles(graph)), ("packages", circles(packages)))
    ]


def _package(module: str) -> str:
    path = modules()[module]
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def callbacks(found: Sequence[Source]) -> Measure:
    """Counts callable parameters and lambdas in the wiring of a broker: another file calls back by them."""
    counts: Counter[str] = Counter()
    for each in found:
        for node in ast.walk(each.tree):
            said = node.annotation if isinstance(node, ast.arg) else None
            counts[each.path] += isinstance(node, ast.Lambda) or (said is not None and "Callable" in ast.unparse(said))
    return Measure(
        "callbacks and lambdas of the broker",
        counts.total(),
        [f"{many:5} {path}" for path, many in counts.most_common(SHOWN)],
    )


def name_lengths(found: Sequence[Source]) -> Measure:
    """Measures the names of tests, `test_` included."""
    names = sorted({node.name for _, node in functions(found) if node.name.startswith("test_")}, key=len)
    return Measure(
        "median length of test names",
        statistics.median(map(len, names)),
        [f"{len(each):5} {each}" for each in names[: -SHOWN - 1 : -1]],
    )


def measures() -> Iterator[Measure]:
    """Yields the whole report. Sizes and names of tests count apart from those of the product."""
    product = sources(*PACKAGES.values())
    tests = sources(ROOT / "tests", ROOT / "bench")
    rooms = ("access", "broker", "coordination", "durability", "hosting", "upkeep")
    wiring = sources(*(ROOT / "tiered" / room for room in rooms))
    yield Measure("packages", len({each.folder for each in product}))
    for measure in (long_files, long_functions, wide_constructors, full_folders):
        yield measure(product)
    for measure in (long_files, long_functions, full_folders):
        found = measure(tests)
        yield found._replace(name=f"tests: {found.name}")
    for measure in (classes_twice, participles, openings, sentence_openings, metaphors, metaphors_in_names):
        yield measure(product)
    for measure in (openings, metaphors, metaphors_in_names):
        found = measure(tests)
        yield found._replace(name=f"tests: {found.name}")
    yield from import_circles()
    yield callbacks(wiring)
    yield name_lengths(tests)


def report(found: Sequence[Measure], before: Mapping[str, float]) -> str:
    """Returns the measures as text, with the counts of `before` in brackets."""
    lines = []
    for each in found:
        earlier = f" (before: {before[each.name]:g})" if each.name in before else ""
        lines += [f"{each.total:g} {each.name}{earlier}", *(f"    {what}" for what in each.worst)]
    return "\n".join(lines)


def main() -> None:
    """Prints the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.look", description="The shape of the sources.")
    parser.add_argument("--counts", action="store_true", help="the counts alone, as JSON")
    parser.add_argument("--before", type=Path, help="a file that --counts wrote")
    given = parser.parse_args()
    found = [*measures()]
    if given.counts:
        print(json.dumps({each.name: each.total for each in found}, indent=2))
    else:
        print(report(found, json.loads(given.before.read_text()) if given.before else {}))


if __name__ == "__main__":
    main()
