"""The documentation says what the code does: tables are generated, commands parse, links lead somewhere.

python -m tests.test_docs       writes the generated pages anew
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.mutants.mutants import PLANTS
from tests.sources import ROOT, modules
from tiered.config.kafka_aliases import LARGER_UNITS, SAME_MEANING, WITHOUT_EFFECT
from tiered.config.setting import Row, text_of
from tiered.config.settings import broker_rows, topic_rows
from tiered_api.cli.arguments import parser
from tiered_api.cli.broker.sources import variable
from tiered_api.cli.exits import Exit

SETTINGS = ROOT / "docs" / "SETTINGS.md"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]

HEAD = """\
# Settings

Generated from `tiered/config/settings.py` by `python -m tests.test_docs`. How they are given: [OPERATIONS.md](OPERATIONS.md).
"""


def settings_page() -> str:
    """The whole of docs/SETTINGS.md."""
    own = {name: row for name, row in broker_rows().items() if not row.topic_name}
    defaults = {row.topic_name: name for name, row in broker_rows().items() if row.topic_name}
    parts = [HEAD, "## Of a topic", "", "| Setting | Type | Default | Allowed | Broker's default | |"]
    parts += ["| --- | --- | --- | --- | --- | --- |"]
    parts += [_line(row, f"`{defaults[name]}`" if name in defaults else "") for name, row in topic_rows().items()]
    parts += ["", "## Of a broker", "", "| Setting | Type | Default | Allowed | Environment | |"]
    parts += ["| --- | --- | --- | --- | --- | --- |"]
    parts += [_line(row, f"`{variable(name)}`") for name, row in own.items()]
    parts += ["", "## Kafka's other names", "", "| Name | |", "| --- | --- |"]
    parts += [f"| `{other}` | `{name}` in a larger unit |" for other, (name, _) in LARGER_UNITS.items()]
    parts += [f"| `{other}` | `{name}` |" for other, name in SAME_MEANING.items()]
    parts += [f"| `{name}` | no effect: {why} |" for name, why in WITHOUT_EFFECT.items()]
    return "\n".join(parts) + "\n"


def _line(row: Row, last: str) -> str:
    default = text_of(row.default)
    shown = f"`{default}`" if default else ""
    return f"| `{row.name}` | {row.type_name} | {shown} | {row.allowed} | {last} | {row.sentence} |"


def commands(page: Path) -> Iterator[str]:
    """The lines of a page's shell blocks that call `tiered` or `make`, continued lines joined."""
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith(("tiered ", "make ")):
                yield line


def test_the_page_of_settings_is_the_tables() -> None:
    assert SETTINGS.read_text() == settings_page(), "run: python -m tests.test_docs"


SAID_ONCE = {
    "cleanup.policy": "only one value is allowed",
    "delete.retention.ms": "its sentence says that nothing is compacted",
    "min.cleanable.dirty.ratio": "likewise",
    "min.compaction.lag.ms": "likewise",
    "max.compaction.lag.ms": "likewise",
    "log.cleaner.delete.retention.ms": "likewise",
    "log.cleaner.min.cleanable.ratio": "likewise",
    "log.cleaner.min.compaction.lag.ms": "likewise",
    "log.cleaner.max.compaction.lag.ms": "likewise",
    "preallocate": "only one value is allowed",
    "log.preallocate": "only one value is allowed",
    "remote.log.copy.disable": "only one value is allowed",
    "remote.log.delete.on.disable": "only one value is allowed",
    "replica.alter.log.dirs.io.max.bytes.per.second": "its sentence says that it has no effect",
}
"""Settings that nothing reads, with the reason why that misleads nobody."""


@pytest.mark.parametrize("name", sorted({*broker_rows(), *topic_rows()} - SAID_ONCE.keys() - {"log.cleanup.policy"}))
def test_every_setting_is_read_by_something(name: str) -> None:
    """A setting that nothing reads is a promise that nobody keeps."""
    field = name.replace(".", "_")
    text = "\n".join(path.read_text() for path in modules().values())
    row = broker_rows().get(name)
    if row is not None and row.topic_name:
        field = row.topic_name.replace(".", "_")
    assert re.search(rf"\.{field}\b", text), name


@pytest.mark.parametrize(("page", "line"), [(page.name, line) for page in PAGES for line in commands(page)])
def test_commands_in_the_documentation_are_commands(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"{page}: {line}"
    else:
        parser().parse_args(words[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_exit_codes_are_documented() -> None:
    table = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "OPERATIONS.md").read_text(), re.MULTILINE)
    assert [int(code) for code in table] == [code.value for code in Exit]


def test_metrics_that_operators_are_told_of_exist() -> None:
    told = set(re.findall(r"`((?:tiered|kafka)_[a-z_]+)`", (ROOT / "docs" / "OPERATIONS.md").read_text()))
    text = "\n".join(path.read_text() for path in modules().values())
    assert told and all(f'"{name}"' in text for name in told), told


def acks() -> list[list[str]]:
    """The cells of the rows of the table of docs/GUARANTEES.md: acks, where the record is, what it survives, tests."""
    head, _, rest = (ROOT / "docs" / "GUARANTEES.md").read_text().partition("| --- | --- | --- | --- |\n")
    assert head.endswith("shown by |\n")
    rows = rest.partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


@pytest.mark.parametrize("row", acks(), ids=lambda row: row[0])
def test_what_an_ack_promises_is_shown_by_tests_and_plants_that_exist(row: list[str]) -> None:
    *_, survives, shown = row
    tests, _, plants = shown.partition("; plants ")
    named = re.findall(r"`([^`]+)`", tests)
    assert bool(named) == (survives != "nothing is promised")
    for each in named:
        path, _, function = each.partition("::")
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), each
    assert set(re.findall(r"`([^`]+)`", plants)) <= PLANTS.keys()


def test_the_readme_names_both_set_up_commands_and_the_licence_is_whole() -> None:
    readme = (ROOT / "README.md").read_text()
    start = readme.split("## Start")[1].split("## ")[0]
    assert re.findall(r"^make \w+", start, re.MULTILINE) == ["make demo", "make test"]
    assert "Apache License\n" in (ROOT / "LICENSE").read_text()


if __name__ == "__main__":
    SETTINGS.write_text(settings_page())
    sys.exit(0)
