"""Tests of rules for readable sources that can be right or wrong: names, and the handling of errors.

Sizes are no such rule: a limit cuts a file at its line 400 instead of at its idea.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.look import BEGINNING
from tests.sources import ROOT, modules, nodes, tree

EMPTY_WORDS = {
    "manager",
    "helper",
    "helpers",
    "util",
    "utils",
    "common",
    "base",
    "impl",
    "service",
    "processor",
    "misc",
}
"""Words that name no thing: code without a place collects in such files."""

TEST_NAME_MAX = 70
"""Characters of the name of a test: subject, condition and outcome."""

OUTERMOST = {
    "tiered/broker/broker.py",
    "tiered/access/token_validator.py",
    "tiered/upkeep/log_cleaner.py",
    "tiered/system/readiness.py",
    "tiered/thread_pool.py",
    "api/tiered_api/http/server/server.py",
    "api/tiered_api/http/exchange/errors.py",
    "api/tiered_api/kafka/server/dispatch.py",
    "tests/fuzz/rounds.py",
    "tests/sim/__main__.py",
    "tests/sim/harness/loop.py",
}
"""Task boundaries, where an unknown error ends one task or reply instead of the broker: only these catch any error."""


def sources() -> list[Path]:
    """Returns every Python file of ours."""
    others = [path for folder in ("tests", "bench") for path in sorted((ROOT / folder).rglob("*.py"))]
    return [*modules().values(), *others]


def short(path: Path) -> str:
    """Returns a path as messages show it."""
    return str(path.relative_to(ROOT))


FOLDERS_OF_TEXT = ("tiered", "api", "spark", "tests", "bench", "docs", "infra")
CONFLICT = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)


def test_no_file_has_the_marks_of_a_merge() -> None:
    """Python and C with these marks fail at once. A page of the console with them is only shown so."""
    kinds = {".js", ".css", ".html", ".md", ".py", ".toml", ".txt", ".yaml", ".c", ".h", ".java", ".properties"}
    paths = [*ROOT.glob("*.*"), *(path for folder in FOLDERS_OF_TEXT for path in (ROOT / folder).rglob("*.*"))]
    assert not [short(path) for path in paths if path.suffix in kinds and CONFLICT.search(path.read_text())]


def test_names_name_things() -> None:
    for path in sources():
        names = [path.stem, *(node.name for node in nodes(path) if isinstance(node, ast.ClassDef))]
        for name in names:
            words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}
            assert not words & EMPTY_WORDS, f"{name} in {short(path)}"


def test_names_of_tests_are_short() -> None:
    found = [
        f"{short(path)}:{node.lineno} {node.name}"
        for path in sources()
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and len(node.name) > TEST_NAME_MAX
    ]
    assert not found


def test_sentences_of_docstrings_begin_with_a_plain_word() -> None:
    """A sentence that begins with a question word, or with Of, As or Until, names its subject late or never."""
    found = [
        f"{short(path)}:{node.lineno} {sentence:.40}"
        for path in sources()
        for node in nodes(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for sentence in BEGINNING.findall(inspect.cleandoc(node.value.value))
    ]
    assert not found


SHOWN_BY_OTHER_PARAMETERS = {"clients", "seeds", "stores", "values"}
"""Reasons for which a parameter of a test is `also`: another one of the same test stays."""
BESIDE_KAFKA = "kafka"
"""Reason of tests that ask Apache Kafka the same: what ours replies, tests without Kafka show."""


def also_marks(path: Path) -> Iterator[tuple[ast.Attribute, ast.Call | None]]:
    """Yields each use of the mark `also` in a file, with the call that names the showing."""
    calls = {id(node.func): node for node in nodes(path) if isinstance(node, ast.Call)}
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and node.attr == "also" and ast.unparse(node) == "pytest.mark.also":
            yield node, calls.get(id(node))


def marks_of_tests(path: Path) -> Iterator[tuple[str, list[ast.Call]]]:
    """Yields each test of a file with its own calls of the mark `also` and those of the file."""
    calls = [call for _, call in also_marks(path) if call is not None]
    of_file = [
        call
        for node in tree(path).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for call in calls
        if call in ast.walk(node.value)
    ]
    for test in nodes(path):
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test_"):
            yield test.name, [*of_file, *(call for call in calls if call in test.decorator_list)]


def test_what_make_test_leaves_out_names_what_shows_it() -> None:
    """A mark `also` names a test, a file of tests or a reason. The test is there, and `make test` runs it."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if "mark.also" not in path.read_text():
            continue
        whole = {id(call) for _, calls in marks_of_tests(path) for call in calls}
        for node, call in also_marks(path):
            named = [each.value if isinstance(each, ast.Constant) else None for each in call.args] if call else []
            if call and [*map(type, call.args)] == [ast.Name] and path == ROOT / "tests/seeds.py":
                continue
            if (
                len(named) != 1
                or not isinstance(named[0], str)
                or not is_shown(named[0], by_others=id(call) not in whole)
            ):
                found.append(f"{short(path)}:{node.lineno} {named}")
    assert found == []


def is_shown(named: str, *, by_others: bool) -> bool:
    """True if tests of this name are run by `make test`. `by_others` allows other parameters of the same test."""
    if named == BESIDE_KAFKA or (by_others and named in SHOWN_BY_OTHER_PARAMETERS):
        return True
    file, _, test = named.partition("::")
    if not file.startswith("tests/") or not (ROOT / file).is_file():
        return False
    marked = dict(marks_of_tests(ROOT / file))
    return not marked[test] if test in marked else not test and any(not each for each in marked.values())


def test_some_parameter_of_each_test_is_run() -> None:
    """Parameters that are all `also` leave no other one that shows the same."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if "mark.also" not in path.read_text():
            continue
        named = {
            ast.unparse(node.targets[0])
            for node in tree(path).body
            if isinstance(node, ast.Assign) and "pytest.mark.also" in ast.unparse(node.value)
        }
        for node in nodes(path):
            if isinstance(node, ast.List | ast.Tuple) and node.elts and all(is_also(each, named) for each in node.elts):
                found.append(f"{short(path)}:{node.lineno}")
    assert found == []


def is_also(case: ast.expr, named: set[str]) -> bool:
    """True for a parameter whose marks have `also`, or one of the names that a file gives it."""
    marks = [each.value for each in case.keywords if each.arg == "marks"] if isinstance(case, ast.Call) else []
    words = [ast.unparse(each) for mark in marks for each in ast.walk(mark) if isinstance(each, ast.expr)]
    return any(each == "pytest.mark.also" or each in named for each in words)


def test_file_of_tests_is_one_module_by_its_path() -> None:
    """Files of one name in two folders are two modules, and a file that another imports is not run twice."""
    assert __name__ == "tests.test_tidy"


def test_errors_are_caught_by_name() -> None:
    """A handler for everything also hides unknown bugs."""
    for path in sources():
        for node in nodes(path):
            if not isinstance(node, ast.ExceptHandler):
                continue
            where = f"{short(path)}:{node.lineno}"
            assert node.type is not None, f"bare except at {where}"
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            words = {each.id for each in caught if isinstance(each, ast.Name)}
            raises = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if "Exception" in words or ("BaseException" in words and not raises):
                assert short(path) in OUTERMOST, f"except {words} at {where}"


def test_queues_are_bounded_and_tasks_are_owned() -> None:
    """An unbounded queue is a memory leak that waits for a slow consumer."""
    for module in modules():
        for node in nodes(modules()[module]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "Queue":
                assert node.args or node.keywords, f"{module}:{node.lineno}: a queue without maxsize"


Owner = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
NAMES_OF_DATA = {"h1", "h2", "key_base64", "value_base64", "seg", "sub"}
NAMES_OF_DATA |= {"__consumer_offsets", "__transaction_state", "__share_group_state"}
"""Topics, fields and columns that no definition has for its name."""
OTHER_LANGUAGES = {"assert", "java", "null"}


@cache
def defined_names() -> set[str]:
    """Returns the names of all modules, classes, functions, constants, fields and attributes of the product."""
    names = {part for module in modules() for part in module.split(".")}
    for path in modules().values():
        for node in nodes(path):
            if isinstance(node, Owner):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            if isinstance(node, ast.Module | ast.ClassDef):
                bound = [part for each in node.body if isinstance(each, ast.Assign) for part in each.targets]
                bound += [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
                names |= {each.id for each in bound if isinstance(each, ast.Name)}
    return names


def stale_names(path: Path) -> Iterator[str]:
    """Yields the names in backticks in docstrings that neither the documented code nor any definition has."""
    lines = path.read_text().splitlines()
    parameters = {node.arg for node in nodes(path) if isinstance(node, ast.arg)}
    values = {node.value for node in nodes(path) if isinstance(node, ast.Constant)}
    known = defined_names() | parameters | values | NAMES_OF_DATA | OTHER_LANGUAGES
    for node in nodes(path):
        if isinstance(node, Owner) and (text := ast.get_docstring(node)):
            first = node.body[0]
            code = "\n".join(lines[node.lineno - 1 : first.lineno - 1] + lines[first.end_lineno : node.end_lineno])
            for name in re.findall(r"`([a-z_][a-z0-9_]*)`", text):
                if not re.search(rf"\b{name}\b", code) and name not in known:
                    yield f"{short(path)}:{node.lineno} {node.name}: `{name}`"


def test_turn_that_is_given_to_other_tasks_has_a_reason_in_place() -> None:
    """Long work runs in pieces of equal time (`each_of` of tiered/system/turns.py). Work that is in no loop over items,
    or that has pieces of its own, says beside its `sleep(0)` why nothing else lets other tasks run."""
    found = []
    for path in modules().values():
        lines = path.read_text().splitlines()
        found += [
            f"{short(path)}:{number} {line.strip()}"
            for number, line in enumerate(lines, 1)
            if "sleep(0)" in line and "  # " not in line and short(path) != "tiered/system/turns.py"
        ]
    assert not found, "use each_of, or say on the line why other tasks would not run"


def test_docstrings_name_what_is_there() -> None:
    """A docstring that keeps the old name of a parameter misleads its reader."""
    assert not [each for path in modules().values() for each in stale_names(path)]


def test_comments_have_no_open_tasks() -> None:
    """Open tasks belong into the README."""
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
    found = [
        f"{short(path)}:{number}"
        for path in sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert not found


def test_engine_raises_few_kinds_of_errors() -> None:
    """Four families (`tiered/errors.py`) tell a caller what to do next; a private error may pass inside one file."""
    public = [
        f"{module}.{node.name}"
        for module, path in modules().items()
        if module.startswith("tiered.") and module != "tiered.errors"
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "Exception" for base in node.bases)
        if not node.name.startswith("_")
    ]
    assert len(public) <= 2, public
