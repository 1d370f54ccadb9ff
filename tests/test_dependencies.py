"""Tests of dependencies: ranges above known holes, locked versions within them, and hashes for each."""

from __future__ import annotations

import re
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.dependencies import FOLDER, SETS, Pin, Verdict, applicable, conclusion, pins, project, ranges, verdict
from tests.sources import ROOT

MENDED = {
    "aiohttp": "3.14.3",  # CVE-2026-69244
    "flask": "3.1.3",  # CVE-2026-27205
    "flask-cors": "6.0.0",  # CVE-2024-6839
    "kafka-python": "3.0.0",  # CVE-2026-10143
    "orjson": "3.11.6",  # CVE-2025-67221
    "pyarrow": "23.0.1",  # CVE-2026-25087
    "pytest": "9.0.3",  # CVE-2025-71176
    "requests": "2.33.0",  # CVE-2026-25645
    "setuptools": "78.1.1",  # CVE-2025-47273
}
"""The first version without a hole that is known, so that no lower bound goes below it again."""

TARGETS = [(python, system) for python in ("3.11", "3.12", "3.13") for system in ("linux", "darwin")]


def read(name: str) -> str:
    """Returns a file of requirements/."""
    return (FOLDER / f"{name}.txt").read_text()


def lowest(asked: Requirement) -> Version:
    """Returns the lower bound of a range, or the only version."""
    (bound,) = (each.version for each in asked.specifier if each.operator in (">=", "=="))
    return Version(bound)


def build() -> dict[str, Requirement]:
    """Returns the requirements that build the project."""
    asked = map(Requirement, project()["build-system"]["requires"])
    return {str(canonicalize_name(each.name)): each for each in asked}


@pytest.mark.parametrize("name", MENDED)
def test_ranges_begin_above_known_holes(name: str) -> None:
    assert lowest({**ranges(SETS["dev"]), **build()}[name]) >= Version(MENDED[name])


@pytest.mark.parametrize("name", sorted(ranges(SETS["dev"])))
def test_ranges_have_both_ends(name: str) -> None:
    operators = sorted(each.operator for each in ranges(SETS["dev"])[name].specifier)
    assert operators in (["<", ">="], ["=="])


@pytest.mark.parametrize(("python", "system"), TARGETS)
@pytest.mark.parametrize("name", SETS)
def test_locked_versions_are_within_the_ranges(name: str, python: str, system: str) -> None:
    """A range that is changed without `make lock` would not change what is installed."""
    locked = applicable(read(name), python, system)
    asked = ranges(SETS[name])
    assert asked.keys() <= locked.keys(), "run: make lock"
    for each, requirement in asked.items():
        assert requirement.specifier.contains(locked[each].version), f"{each}: run: make lock"


@pytest.mark.parametrize(("python", "system"), TARGETS)
def test_larger_set_has_the_versions_of_a_smaller_one(python: str, system: str) -> None:
    core, secure, demo, dev, tools = (
        {(package, each.version, each.hashes) for package, each in applicable(read(name), python, system).items()}
        for name in ("core", "secure", "demo", "dev", "build")
    )
    assert core <= demo <= dev and core <= secure <= dev
    names = [package for package, *_ in dev | tools]
    assert len(names) == len(set(names))


def test_build_requirements_are_locked() -> None:
    locked = applicable(read("build"), "3.12", "linux")
    assert locked.keys() == {"pip", *build()}
    assert all(asked.specifier.contains(locked[name].version) for name, asked in build().items())


@pytest.mark.parametrize("name", ["build", *SETS])
def test_every_locked_package_has_hashes(name: str) -> None:
    assert [each.requirement.name for each in pins(read(name)) if not each.hashes] == []


def test_floors_are_the_lowest_versions_of_the_ranges() -> None:
    """An audit of the ranges checks these versions. A bound may leave zeros out."""
    locked = applicable(read("floors"), "3.11", "linux")
    for name, asked in ranges(SETS["dev"]).items():
        length = len(lowest(asked).release)
        assert Version(locked[name].version).release[:length] == lowest(asked).release, f"{name}: run: make lock"


def test_locked_files_name_no_index() -> None:
    for path in FOLDER.iterdir():
        assert not re.search(r"://|--(?!hash=sha256:)", path.read_text()), path.name


@pytest.mark.parametrize(
    "text", ["a==1 \\\n    --hash=md5:00\n", "a==1 \\\n    --hash=sha256:12\n", "--index-url x\n", "a>=1\n", "a\n"]
)
def test_line_that_pins_nothing_is_refused(text: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        [each.version for each in pins(text)]


def test_pin_is_one_version_and_its_hashes() -> None:
    sums = "a" * 64, "b" * 64
    text = f"# x\na==1.0 ; python_version < '3.12' \\\n    --hash=sha256:{sums[0]} \\\n    --hash=sha256:{sums[1]}\n"
    assert pins(text) == [Pin(Requirement("a==1.0 ; python_version < '3.12'"), sums)]
    assert list(applicable(text, "3.11", "linux")) == ["a"] and not applicable(text, "3.12", "linux")


HOLE = {"id": "CVE-1", "fix_versions": ["2.0", "1.9"], "aliases": [], "description": ""}
REPORT: dict[str, Any] = {
    "dependencies": [
        {"name": "a", "version": "1.0", "vulns": [HOLE, {**HOLE, "id": "CVE-2", "fix_versions": []}]},
        {"name": "b", "version": "1.0", "vulns": []},
        {"name": "c", "skip_reason": "not found"},
    ]
}


def test_audit_names_holes_and_unknown_packages() -> None:
    found = verdict(REPORT)
    holes = ("a 1.0: CVE-1, mended in 2.0, 1.9", "a 1.0: CVE-2, mended in no version")
    assert found == Verdict(holes, unknown=("c",), known=2)


def test_hole_fails_an_audit_and_an_unreachable_service_does_not() -> None:
    whole, broken, silent = Verdict((), (), 5), verdict(REPORT), Verdict((), ("a", "b"), 0)
    assert conclusion(whole, whole)[1] == 0
    assert conclusion(whole, broken)[1] == conclusion(broken, None)[1] == 1
    for unreached in (conclusion(None, None), conclusion(silent, None), conclusion(silent, silent)):
        assert unreached == (["Dependencies: NOT AUDITED, for no service that knows of holes could be reached."], 0)
    lines, code = conclusion(whole, None)
    assert code == 0 and "Dependencies, lowest: NOT AUDITED, for the service could not be reached." in lines


def test_maven_refuses_a_file_with_another_checksum() -> None:
    """Its default is a warning, which its quiet mode hides."""
    found = [
        command
        for path in (ROOT / "spark" / "pyspark_tiered" / "jars.py", ROOT / "tests" / "peer" / "kafka.py")
        for command in re.findall(r'\["mvn".*', path.read_text())
    ]
    assert len(found) == 2 and all('"-C"' in command for command in found), found


def test_make_installs_only_locked_packages() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = [line for line in makefile.splitlines() if re.search(r"pip install|\$\(PIP\)", line)]
    assert commands and all("--no-deps" in line or line.strip().startswith("$(PIP)") for line in commands)
    assert all("--require-hashes" in line or line.endswith(" -e .") for line in commands if line.startswith("$(PIP)"))
