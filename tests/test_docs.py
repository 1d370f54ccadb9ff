"""Tests that the documentation agrees with the code: tables are generated, commands parse, links lead somewhere.

python -m tests.test_docs       writes the generated pages anew
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import states
from tests.look import BEGINNING
from tests.sim.mutants.mutants import MUTANTS
from tests.sources import ROOT, modules, tree
from tests.test_floors import packages, pure_files
from tiered.config.group_config import group_rows
from tiered.config.kafka_aliases import LARGER_UNITS, SAME_MEANING, WITHOUT_EFFECT
from tiered.config.setting import SettingRow, text_of
from tiered.config.settings import broker_rows, listed_topic_rows, topic_rows
from tiered_api.cli.arguments import parser
from tiered_api.cli.broker.sources import environment_variable
from tiered_api.cli.exits import Exit
from tiered_api.cli.parsing import Command, Parser
from tiered_api.http.server.rights import ROUTE_RULES
from tiered_api.http.server.routes import table
from tiered_api.kafka.server.rights.operations import API_RULES

SETTINGS = ROOT / "docs" / "reference" / "settings.md"
ACLS = ROOT / "docs" / "reference" / "acls.md"
INVARIANTS = ROOT / "docs" / "internals" / "invariants.md"
DESIGN = ROOT / "docs" / "internals" / "design.md"
STATES = ROOT / "docs" / "internals"
HEALTH = ROOT / "docs" / "reference" / "health-and-metrics.md"
FOLDERS = ("bench", "docs", "infra", "tests")
PAGES = [*sorted(ROOT.glob("*.md")), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]

HEAD = """\
# Settings

For operators and owners of topics: look up a setting, its default, and the values that it takes.

Generated from `tiered/config/` by `python -m tests.test_docs`. How they are given: [Operation](../how-to/operate.md).
"""


OF_MACHINE = """\
`Of` is for machines with several processes (`tiered.processes`): each process has an equal share of a number that is of
the machine, and every other setting as it is. Client quotas and `tiered.store.request.rate` are not shared out: the
processes count the use of a client together."""


OF_GROUP = """\
`kafka-configs.sh --entity-type groups`, or IncrementalAlterConfigs, sets them for one group, which need not exist. They
are in force with the next heartbeat of each member. The settings `group.consumer.min...` and `group.consumer.max...` of
the brokers are their bounds."""


def settings_page() -> str:
    """Returns the whole of docs/reference/settings.md."""
    own = {name: row for name, row in broker_rows().items() if not row.topic_name}
    defaults = {row.topic_name: name for name, row in broker_rows().items() if row.topic_name}
    parts = [HEAD, "## Of a topic", "", "| Setting | Type | Default | Allowed | Broker's default | |"]
    parts += ["| --- | --- | --- | --- | --- | --- |"]
    parts += [
        _line(row, f"`{defaults[name]}`" if name in defaults else "") for name, row in listed_topic_rows().items()
    ]
    parts += ["", "## Of a broker", "", OF_MACHINE, "", "| Setting | Type | Default | Allowed | Environment | Of | |"]
    parts += ["| --- | --- | --- | --- | --- | --- | --- |"]
    parts += [
        _line(row, f"`{environment_variable(name)}` | {'machine' if row.of_machine else 'process'}")
        for name, row in own.items()
    ]
    parts += ["", "## Of a group", "", OF_GROUP, "", "| Setting | Type | Default | Allowed | Broker's default | |"]
    parts += ["| --- | --- | --- | --- | --- | --- |"]
    parts += [_line(row, f"`group.{name}`") for name, row in group_rows().items()]
    parts += ["", "## Kafka's other names", "", "| Name | |", "| --- | --- |"]
    parts += [f"| `{other}` | `{name}` in a larger unit |" for other, (name, _) in LARGER_UNITS.items()]
    parts += [f"| `{other}` | `{name}` |" for other, name in SAME_MEANING.items()]
    parts += [f"| `{name}` | no effect: {why} |" for name, why in WITHOUT_EFFECT.items()]
    return "\n".join(parts) + "\n"


ACLS_HEAD = """\
# Rights of requests

For administrators: look up which right a request needs.

Generated from `tiered_api.kafka.server.rights.operations` and `tiered_api.http.server.rights` by
`python -m tests.test_docs`. How rights are granted: [Security](security.md#authorization).
"""


def acls_page() -> str:
    """Returns the whole of docs/reference/acls.md."""
    parts = [ACLS_HEAD, "## Kafka protocol", "", "| API | Rights | |", "| --- | --- | --- |"]
    for name, rule in API_RULES.items():
        needs = ", ".join(f"{need.operation.name} on {need.kind.name}" for need in rule.needs)
        parts.append(f"| {name} | {needs} | {rule.note} |")
    parts += ["", "## HTTP", "", "| Route | Rights | |", "| --- | --- | --- |"]
    for route in table().routes:
        found = ROUTE_RULES[route.operation]
        needs = ", ".join(f"{need.operation.name} on {need.kind.name}" for need in found.needs)
        parts.append(f"| `{route.method} {route.path}` | {needs} | {found.note} |")
    return "\n".join(parts) + "\n"


def _line(row: SettingRow, last: str) -> str:
    default = text_of(row.default)
    shown = f"`{default}`" if default else ""
    return f"| `{row.name}` | {row.type_name} | {shown} | {row.allowed_values} | {last} | {row.sentence} |"


def commands(page: Path) -> Iterator[str]:
    """Returns the lines of a page's shell blocks that call `tiered` or `make`, with continued lines joined."""
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith(("tiered ", "make ")):
                yield line


def test_page_of_rights_equals_the_tables() -> None:
    assert ACLS.read_text() == acls_page(), "run: python -m tests.test_docs"


def test_settings_page_equals_the_tables() -> None:
    assert SETTINGS.read_text() == settings_page(), "run: python -m tests.test_docs"


@pytest.mark.parametrize("name", states.pages())
def test_states_and_their_pictures_are_those_of_the_code(name: str) -> None:
    assert (STATES / name).read_text() == states.pages()[name], "run: python -m tests.test_docs"


SAID_ONCE = {
    "preallocate": "its sentence says that it is kept without effect",
    "log.preallocate": "brokers warn of it, and of topics with it",
    "replica.alter.log.dirs.io.max.bytes.per.second": "its sentence says that it has no effect",
}
"""Settings that no code reads, with the reason for which they mislead nobody."""


@cache
def words_after_dots() -> frozenset[str]:
    """Returns each name that the code reads as an attribute."""
    return frozenset(word for path in modules().values() for word in re.findall(r"\.(\w+)", path.read_text()))


@pytest.mark.parametrize("name", sorted({*broker_rows(), *topic_rows()} - SAID_ONCE.keys() - {"log.cleanup.policy"}))
def test_every_setting_is_read_by_the_code(name: str) -> None:
    """A setting that no code reads is a broken promise."""
    field = name.replace(".", "_")
    row = broker_rows().get(name)
    if row is not None and row.topic_name:
        field = row.topic_name.replace(".", "_")
    assert field in words_after_dots(), name


def first_command(line: str) -> list[str]:
    """Returns the words of a line of a shell, up to an operator that ends the command."""
    reader = shlex.shlex(line, posix=True, punctuation_chars="|;<>&")
    reader.whitespace_split = True
    return [*takewhile(lambda word: not word.startswith(("|", ";", "<", ">", "&")), reader)]


@pytest.mark.parametrize(("page", "line"), [(page.name, line) for page in PAGES for line in commands(page)])
def test_documented_commands_parse(page: str, line: str) -> None:
    words = first_command(line)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"{page}: {line}"
    else:
        parser().parse_args(words[1:])


def list_commands(parent: argparse.ArgumentParser, name: str = "tiered") -> Iterator[tuple[str, Command]]:
    """Yields each command of the command line: its words, and what runs it."""
    if isinstance(parent, Parser):
        parent.complete()
    below = {
        id(made): (f"{name} {verb}", made)
        for action in parent._actions
        if isinstance(action, argparse._SubParsersAction)
        for verb, made in reversed(action.choices.items())  # an alias comes after the name
    }
    for words, made in below.values():
        yield from list_commands(made, words)
    if not below:
        yield name, parent.get_default("command")


def test_every_command_is_on_a_page() -> None:
    pages = "\n".join(page.read_text() for page in PAGES)
    assert [words for words, _ in list_commands(parser()) if not re.search(rf"{words}\b", pages)] == []


def test_every_command_names_a_function_that_exists() -> None:
    """A command is imported when it runs, so nothing else would notice."""
    for words, (module, function) in list_commands(parser()):
        defined = [
            each.name
            for each in tree(modules()[module]).body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        assert function in defined, f"{words}: {module} has no function {function}"


def test_lines_of_prose_fit_into_120_characters() -> None:
    """Rows of tables, and what stands in a block of code, are as long as they are."""
    found = [
        f"{page.name}: {line[:60]}"
        for page in PAGES
        for line in re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL).splitlines()
        if len(line) > 120 and not line.startswith("|")
    ]
    assert not found


def test_sentences_of_pages_begin_with_a_plain_word() -> None:
    found = [f"{page.name}: {sentence:.60}" for page in PAGES for sentence in BEGINNING.findall(page.read_text())]
    assert not found


def prose(page: Path) -> str:
    """Returns a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yields the file and the anchor of each link of a page to a file of the repository."""
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", prose(page)):
        if not target.startswith("https://"):
            yield (page.parent / target).resolve() if target else page, anchor


@cache
def anchors(page: Path) -> set[str]:
    """Returns the anchors of the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_a_target(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {target.name} has no heading for #{anchor}"


DOCS = sorted((ROOT / "docs").rglob("*.md"))
INDEX = ROOT / "docs" / "index.md"


def test_every_page_is_two_clicks_from_the_index() -> None:
    first = {target for target, _ in links(INDEX)}
    second = {target for page in first if page.suffix == ".md" for target, _ in links(page)}
    assert set(DOCS) - {INDEX} <= first | second


def test_site_has_every_page_in_its_navigation() -> None:
    """MkDocs is not among the tools of the tests; `make docs` checks all links in its way."""
    listed = re.findall(r"^ +- (?:\w+: )?([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted({*listed}) and {page.relative_to(ROOT / "docs").as_posix() for page in DOCS} == {
        each for each in listed if not each.startswith("repository/")
    }


@pytest.mark.parametrize(
    "page",
    [page for page in DOCS if page.parent.name != "decisions"],
    ids=lambda page: page.name,
)
def test_first_line_of_a_page_says_who_it_is_for(page: Path) -> None:
    _, first, *_ = page.read_text().split("\n\n")
    assert re.match(r"For [^.:]+: ", first), f"{page.name}: {first:.60}"


MARK = re.compile(r"<!-- (run|not run): (.+?) -->")


def marks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yields each block of a shell or of Python on a page, with the kind and the text of its mark. A mark before the
    block wins over the one below the title of the page. A block without any has empty ones."""
    text = page.read_text()
    of_page = re.match(rf"# .+\n{MARK.pattern}\n", text)
    for mark, block in re.findall(r"(?:^(<!-- .+? -->)\n)?^```(?:sh|python)\n(.*?)^```", text, re.M | re.S):
        found = MARK.fullmatch(mark) or of_page
        yield (block, found[1], found[2]) if found else (block, "", "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_are_run_by_a_test_or_say_why_not(page: Path) -> None:
    """A page says it in its head for all its blocks, or before a block: `run: FILE` or `not run: REASON`."""
    for block, kind, text in marks(page):
        assert kind, f"{page.name}: a block without a mark: {block:.60}"
        if kind == "run":
            test = ROOT / text
            assert test.is_file() and page.name in test.read_text(), f"{page.name}: {text}"


RIGHTS_OF_S3 = {
    "abort_multipart_upload": "AbortMultipartUpload",
    "complete_multipart_upload": "PutObject",
    "create_multipart_upload": "PutObject",
    "delete_objects": "DeleteObject",
    "get_object": "GetObject",
    "head_object": "GetObject",
    "list_multipart_uploads": "ListBucketMultipartUploads",
    "list_objects_v2": "ListBucket",
    "put_object": "PutObject",
    "upload_part": "PutObject",
}
"""The right that each request to S3 needs."""


def test_policy_of_the_bucket_has_the_rights_of_all_requests() -> None:
    page = (ROOT / "docs" / "how-to" / "set-up-a-bucket.md").read_text()
    (policy,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    given = {action for each in json.loads(policy)["Statement"] for action in each["Action"]}
    calls = set(re.findall(r"client\.(\w+_\w+)", modules()["tiered.object_store.s3"].read_text()))
    assert {f"s3:{RIGHTS_OF_S3[call]}" for call in calls} == given


def test_exit_codes_are_documented() -> None:
    table = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "how-to" / "operate.md").read_text(), re.MULTILINE)
    assert [int(code) for code in table] == [code.value for code in Exit]


def test_documented_metrics_exist() -> None:
    told = set(re.findall(r"`((?:tiered|kafka)_[a-z_]+)`", HEALTH.read_text()))
    text = "\n".join(path.read_text() for path in modules().values())
    assert told and all(f'"{name}"' in text for name in told), told


def test_names_of_metrics_say_what_they_count() -> None:
    text = "\n".join(path.read_text() for path in modules().values())
    made = set(re.findall(r"metrics\.(counter|gauge|histogram)\(\s*\"(\w+)\"", text))
    assert made
    for kind, name in made:
        assert name.startswith(("tiered_", "kafka_", "process_")), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(ms|millis|milliseconds|kb|mb|kib|mib)(_total)?$", name), f"{name}: seconds and bytes"


MAPS = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "internals" / "design.md",
    ROOT / "docs" / "internals" / "glossary.md",
    ROOT / "tests" / "README.md",
    *sorted((ROOT / "docs" / "internals" / "decisions").glob("*.md")),
]
"""Pages that lead a reader to files by their paths from the root."""


@pytest.mark.parametrize("page", MAPS, ids=lambda page: page.name)
def test_files_and_names_of_a_page_exist(page: Path) -> None:
    """The pages have `path`, or `path` and behind it a `name` that stands in that file, perhaps in parentheses."""
    for path, name in re.findall(
        r"`((?:api|bench|docs|infra|spark|tests|tiered)/[\w./-]+)`(?:\s+\(?`([\w.]+)`)?", page.read_text()
    ):
        assert (ROOT / path).exists(), f"{page.name}: {path}"
        for word in name.split(".") if name else ():
            assert re.search(rf"\b{word}\b", (ROOT / path).read_text()), f"{page.name}: no {word} in {path}"


def test_page_of_the_tests_has_each_of_their_folders() -> None:
    page = (ROOT / "tests" / "README.md").read_text()
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tests").glob("*/*.py")}
    assert folders and not [folder for folder in sorted(folders) if f"`{folder}/" not in page]


@pytest.mark.parametrize("package", [name for name in packages() if name.startswith("tiered.")])
def test_table_of_packages_says_what_each_map_says(package: str) -> None:
    """The table of docs/internals/design.md is the first map that a reader sees."""
    said = re.search(r"^May import: (.+)$", ast.get_docstring(tree(modules()[package])) or "", re.MULTILINE)
    row = re.search(rf"^\| `{package.replace('.', '/')}` \| [^|]+ \| (.+) \|$", DESIGN.read_text(), re.MULTILINE)
    assert row and said and row[1] == said[1], (
        f"docs/internals/design.md has no row for {package}, or another `May import`"
    )


def acks() -> list[list[str]]:
    """Returns the cells of the rows of the table of docs/concepts/guarantees.md: acks, where the record is, what it
    survives, tests."""
    head, _, rest = (ROOT / "docs" / "concepts" / "guarantees.md").read_text().partition("| --- | --- | --- | --- |\n")
    assert head.endswith("shown by |\n")
    rows = rest.partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


@pytest.mark.parametrize("row", acks(), ids=lambda row: row[0])
def test_tests_and_mutants_of_the_ack_table_exist(row: list[str]) -> None:
    *_, survives, shown = row
    tests, _, mutants = shown.partition("; mutants ")
    named = re.findall(r"`([^`]+)`", tests)
    assert bool(named) == (survives != "nothing is promised")
    for each in named:
        path, _, function = each.partition("::")
        assert re.search(rf"^(async )?def {function}\(", (ROOT / path).read_text(), re.MULTILINE), each
    assert set(re.findall(r"`([^`]+)`", mutants)) <= MUTANTS.keys()


RULE = re.compile(r"\b([RMI])(\d{1,2})(?:(?:-| to )\1(\d{1,2}))?\b")
"""A rule number, or a range of them."""
SPOKEN = {"COMMENT", "STRING", "FSTRING_MIDDLE"}
"""Python tokens with text for a reader: the name of a variable is no citation."""


class Rule(NamedTuple):
    """One section of docs/internals/invariants.md, by its parts."""

    kept_by: str
    shown_by: str


def rules() -> dict[str, Rule]:
    """Returns every rule of docs/internals/invariants.md by its number or name."""
    sections = re.findall(r"^### (\w+) .*?\n(.*?)(?=^##|\Z)", INVARIANTS.read_text(), re.MULTILINE | re.DOTALL)
    found = {}
    for number, body in sections:
        assert number not in found, f"{number} is defined twice"
        parts = dict(re.findall(r"^\*\*([A-Z][a-z ]+)\.\*\*\s(.*?)(?=^\*\*|\Z)", body, re.MULTILINE | re.DOTALL))
        assert list(parts) == ["Rule", "Why", "Kept by", "Shown by"], f"{number} has the parts {list(parts)}"
        found[number] = Rule(parts["Kept by"], parts["Shown by"])
    return found


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Returns (path, text for readers) of all code, tests and docs that may cite a rule."""
    return tuple(_read_texts())


def _read_texts() -> Iterator[tuple[str, str]]:
    folders = ("api", "bench", "docs", "infra", "spark", "tests", "tiered")
    kinds = {".c", ".h", ".java", ".md", ".py", ".pyi", ".sh", ".toml", ".txt", ".yml"}
    paths = [*ROOT.glob("*.md"), *(path for folder in folders for path in sorted((ROOT / folder).rglob("*.*")))]
    for path in paths:
        if path.suffix in kinds and "node_modules" not in path.parts:
            text = path.read_text(errors="replace")
            if path.suffix == ".py" and RULE.search(text):
                tokens = tokenize.generate_tokens(StringIO(text).readline)
                text = "\n".join(each.string for each in tokens if tokenize.tok_name[each.type] in SPOKEN)
            yield str(path.relative_to(ROOT)), text


def find_citations() -> dict[str, str]:
    """Returns every cited rule number with one file that cites it; of a range all numbers."""
    return {number: path for path, text in texts() for number in _numbers(text)}


def red_rules() -> set[str]:
    """Returns the names of rules that checkers of the simulator report: first arguments of `Finding`, `report` and
    `_report`."""
    calls = [
        (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""), node.args[0])
        for path in sorted((ROOT / "tests" / "sim").rglob("*.py"))
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and node.args
    ]
    told = [each for name, first in calls if name in ("Finding", "report", "_report") for each in ast.walk(first)]
    words = {each.value for each in told if isinstance(each, ast.Constant)}
    return {word for word in words if isinstance(word, str) and re.fullmatch(r"[A-Z]+\d*", word)}


def test_cited_rules_are_defined() -> None:
    assert red_rules() >= {"I30", "R4", "ID", "MOVED"}, "rules of the simulator are not found any more"
    homes = find_citations() | dict.fromkeys(red_rules(), "tests/sim")
    assert not {number: path for number, path in homes.items() if number not in rules()}


def test_defined_rules_are_cited_by_code_or_tests() -> None:
    """A rule that no file cites has lost its code, or its number."""
    homes = {number for path, text in texts() if not path.startswith("docs") for number in _numbers(text)}
    assert not rules().keys() - homes - red_rules()


def _numbers(text: str) -> set[str]:
    ranges = [(family, int(first), int(last or first)) for family, first, last in RULE.findall(text)]
    return {f"{family}{number}" for family, first, last in ranges for number in range(first, last + 1)}


@pytest.mark.parametrize("number", sorted(rules()))
def test_rule_names_tests_that_exist(number: str) -> None:
    shown, _, mutants = rules()[number].shown_by.partition("mutant")
    named = [each for each in re.findall(r"`([^`]+)`", shown) if each.startswith("tests/")]
    assert any("/test_" in each or each.startswith(("tests/transcripts/", "tests/hostile")) for each in named), number
    for each in named:
        path, _, function = each.partition("::")
        assert (ROOT / path).exists(), f"{number}: {path}"
        if function:
            assert re.search(rf"^(async )?def {function}\(", (ROOT / path).read_text(), re.MULTILINE), (
                f"{number}: {each}"
            )
    bugs = re.findall(r"`([^`]+)`", mutants.partition(".")[0])
    assert bool(bugs) == bool(mutants) and set(bugs) <= MUTANTS.keys(), f"{number}: {bugs}"


def test_every_mutant_is_named_by_a_rule() -> None:
    named = {name for rule in rules().values() for name in re.findall(r"`(\w+)`", rule.shown_by)}
    assert MUTANTS.keys() - named == set()


@pytest.mark.parametrize("number", sorted(rules()))
def test_rule_names_the_files_that_keep_it(number: str) -> None:
    """Checks `path` (pure: `name`, `name`): the file exists, is pure if the rule says so, and has these names."""
    for path, said in re.findall(r"`([a-z_/]+\.py)`(?:\s\(([^)]*)\))?", rules()[number].kept_by):
        assert (ROOT / path).exists(), f"{number}: {path}"
        module = next(name for name, known in modules().items() if known == ROOT / path)
        if module.startswith("tiered."):
            assert said.startswith("pure") == (module in pure_files()), f"{number}: {path} is pure, or is not"
        for name in re.findall(r"`(\w+)`", said):
            assert re.search(rf"\b(def|class) {name}\b", (ROOT / path).read_text()), f"{number}: {path} has no {name}"


@pytest.mark.parametrize("number", sorted(number for number in rules() if RULE.fullmatch(number)))
def test_file_that_keeps_a_rule_names_it(number: str) -> None:
    """A reader of a file has to see which rule a change may break: in its docstring, or in its line of the map."""
    for path in re.findall(r"`((?:api|spark|tiered)/[\w/]+\.py)`", rules()[number].kept_by):
        file = ROOT / path
        package = ast.get_docstring(tree(file.parent / "__init__.py")) or ""
        line = re.search(rf"^[~ ] {file.stem} .*$", package, re.MULTILINE)
        said = _numbers((ast.get_docstring(tree(file)) or "") + (line[0] if line else ""))
        assert number in said, f"{path} and {number}"


def test_figures_of_the_readme_are_on_the_page_of_figures() -> None:
    """Each row of the README has our figure and Kafka's, as they stand beside each other on the page."""
    readme = (ROOT / "README.md").read_text().split("## Three figures")[1].split("## ")[0]
    rows = re.findall(r"^\| [^|]+ \| ([\d.,]+)\S* ?\S* \| ([\d.,]+)\S* ?\S* \|$", readme, re.MULTILINE)
    page = (ROOT / "docs" / "PERFORMANCE.md").read_text()
    other = [row for row in rows if f"| {row[0]} | {row[1]} |" not in page]
    assert len(rows) == 3 and not other, "README.md, Three figures: take those of docs/PERFORMANCE.md"


def test_readme_names_both_set_up_commands_and_the_licence_is_whole() -> None:
    readme = (ROOT / "README.md").read_text()
    start = readme.split("## Demo and tests")[1].split("## ")[0]
    assert re.findall(r"^make \w+", start, re.MULTILINE) == ["make demo", "make test"]
    assert "Apache License\n" in (ROOT / "LICENSE").read_text()


if __name__ == "__main__":
    SETTINGS.write_text(settings_page())
    ACLS.write_text(acls_page())
    for made, content in states.pages().items():
        (STATES / made).write_text(content)
    sys.exit(0)
