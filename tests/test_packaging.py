"""Tests of an install: it has every package and every file that a package reads, and its versions agree."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from tests.sources import PACKAGES, ROOT, imports, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_is_listed() -> None:
    """A package that is not listed works in a clone and is missing from the wheel."""
    found = {
        ".".join((package, *init.parent.relative_to(folder).parts))
        for package, folder in PACKAGES.items()
        for init in folder.rglob("__init__.py")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


DISTRIBUTIONS = {
    "botocore": "boto3",
    "google": "protobuf",
    "jwt": "pyjwt",
    "opentelemetry": "opentelemetry-sdk",
    "py4j": "pyspark",
    "re2": "google-re2",
}
"""The distribution that brings a module of another name."""


def test_every_module_that_is_imported_is_of_a_declared_distribution() -> None:
    """Another package may bring it today, and leave it out tomorrow: pyarrow once brought numpy."""
    extras = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in extras.values() for line in extra)]
    imported = {each.module.partition(".")[0] for path in modules().values() for each in imports(path)}
    others = imported - sys.stdlib_module_names - PACKAGES.keys()
    assert {DISTRIBUTIONS.get(name, name) for name in others} <= {Requirement(line).name for line in lines}


def test_every_folder_of_sources_is_a_package() -> None:
    folders = {path.parent for folder in PACKAGES.values() for path in folder.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_files_that_are_no_python_are_listed_as_data() -> None:
    data = PROJECT["tool"]["setuptools"]["package-data"]
    listed = {path for pattern in data["pyspark_tiered"] for path in PACKAGES["pyspark_tiered"].glob(pattern)}
    others = {path for path in PACKAGES["pyspark_tiered"].rglob("*") if _is_data(path)}
    assert listed == others
    assert all((folder / "py.typed").exists() for folder in PACKAGES.values())


def _is_data(path: Path) -> bool:
    return path.is_file() and path.suffix not in (".py", ".pyc") and path.name != "py.typed"
