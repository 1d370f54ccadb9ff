"""Dependencies of the project: ranges in pyproject.toml, and versions with hashes in requirements/.

python -m tests.dependencies lock      writes requirements/ anew, with the newest versions that the ranges allow
python -m tests.dependencies audit     ends with 1 if a locked version, or the lowest one of a range, has a known
hole
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.sources import ROOT

FOLDER = ROOT / "requirements"
SETS: dict[str, tuple[str, ...]] = {
    "core": (),
    "secure": ("tls", "encryption", "oauth"),
    "registry": ("registry",),
    "regex": ("regex",),
    "otel": ("otel",),
    "demo": ("spark", "sql", "cli", "demo"),
    "dev": ("spark", "sql", "cli", "registry", "iceberg", "regex", "otel", "demo", "dev"),
    "dist": ("dist",),
    "docs": ("docs",),
}
"""By file of requirements/: the extras of pyproject.toml whose packages it has besides the broker's own."""

HEAD = "# Written by `make lock` from pyproject.toml: change that, not this.\n"
AUDIT_SECONDS = 120


def project() -> dict[str, Any]:
    """Returns pyproject.toml as tables."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def ranges(extras: tuple[str, ...]) -> dict[str, Requirement]:
    """Returns the direct requirements of pyproject.toml, by normal name. Extras that name extras of ours are left out:
    `SETS` has them."""
    table = project()["project"]
    lines = [*table["dependencies"], *(line for extra in extras for line in table["optional-dependencies"][extra])]
    asked = [Requirement(line) for line in lines]
    return {str(canonicalize_name(each.name)): each for each in asked if each.name != table["name"]}


@dataclass(frozen=True)
class Pin:
    """One package of a locked file: exactly this version, in a file with one of these SHA-256 sums."""

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def version(self) -> str:
        """The one version that may be installed."""
        (only,) = self.requirement.specifier
        assert only.operator == "==", f"{self.requirement} is not pinned"
        return only.version


def pins(text: str) -> list[Pin]:
    """Returns the packages of a locked file. Every line belongs to one, so that no option (an index, for example) can
    hide in it."""
    found = []
    for entry in re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines():
        words, *hashes = re.split(r"\s--hash=sha256:", entry)
        assert all(re.fullmatch(r"[0-9a-f]{64}\s*", each) for each in hashes), entry
        found.append(Pin(Requirement(words.strip()), tuple(each.strip() for each in hashes)))
    return found


def applicable(text: str, python: str, system: str) -> dict[str, Pin]:
    """Returns the packages of a locked file for one Python ("3.12") and system ("linux"), by normal name."""
    where = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": system}
    where |= {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    there = [each for each in pins(text) if not each.requirement.marker or each.requirement.marker.evaluate(where)]
    return {str(canonicalize_name(each.requirement.name)): each for each in there}


def lock() -> None:
    """Writes every file of requirements/. The larger sets have the versions of the smaller ones."""
    FOLDER.mkdir(exist_ok=True)
    needed = [*project()["build-system"]["requires"], "pip"]
    _compile("build", "-", "--generate-hashes", given="\n".join(needed))
    constraint = ["-c", str(FOLDER / "build.txt")]
    for name in ("dev", "demo", "registry", "regex", "otel", "secure", "core", "dist", "docs"):
        extras = [word for extra in SETS[name] for word in ("--extra", extra)]
        _compile(name, "pyproject.toml", *extras, *constraint, "--generate-hashes")
        constraint = ["-c", str(FOLDER / "dev.txt")]
    _compile("floors", "pyproject.toml", "--extra", "dev", "--resolution", "lowest-direct")


def _compile(name: str, source: str, *options: str, given: str = "") -> None:
    """Writes one file, for every Python and system that the project is for."""
    usual = ["--universal", "--python-version", "3.11", "--upgrade", "--no-header", "--no-annotate", "--quiet"]
    with tempfile.NamedTemporaryFile(suffix=".txt") as out:
        command = [sys.executable, "-m", "uv", "pip", "compile", source, *options, *usual, "--output-file", out.name]
        subprocess.run(command, cwd=ROOT, input=given, text=True, check=True, stdout=subprocess.DEVNULL)
        (FOLDER / f"{name}.txt").write_text(HEAD + Path(out.name).read_text())


@dataclass(frozen=True)
class Verdict:
    """The result of an audit: a line for each hole, and the packages that no service knows."""

    holes: tuple[str, ...]
    unknown: tuple[str, ...]
    known: int


def verdict(report: dict[str, Any]) -> Verdict:
    """Parses the report of pip-audit as JSON."""
    holes, unknown, known = [], [], 0
    for each in report["dependencies"]:
        if "skip_reason" in each:
            unknown.append(each["name"])
            continue
        known += 1
        for hole in each["vulns"]:
            fixed = ", ".join(hole["fix_versions"]) or "no version"
            holes.append(f"{each['name']} {each['version']}: {hole['id']}, mended in {fixed}")
    return Verdict(tuple(holes), tuple(unknown), known)


def run_audit(lines: list[str]) -> Verdict | None:
    """Returns known holes of these packages, `name==version` each. None if no service was reachable."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as asked:
        asked.write("\n".join(lines))
        asked.flush()
        command = [
            sys.executable,
            "-m",
            "pip_audit",
            "--disable-pip",
            "--no-deps",
            "--progress-spinner",
            "off",
            "-f",
            "json",
        ]
        try:
            done = subprocess.run(
                [*command, "-r", asked.name], capture_output=True, text=True, timeout=AUDIT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return None
    return verdict(json.loads(done.stdout)) if done.stdout.startswith("{") else None


def conclusion(locked: Verdict | None, lowest: Verdict | None) -> tuple[list[str], int]:
    """Returns the text of an audit and its exit code: 1 for a hole, 0 with a reason if no service was reachable."""
    both = [("locked", locked), ("lowest", lowest)]
    if not any(found and found.known for _, found in both):
        return ["Dependencies: NOT AUDITED, for no service that knows of holes could be reached."], 0
    lines = []
    for which, found in both:
        if found is None:
            lines.append(f"Dependencies, {which}: NOT AUDITED, for the service could not be reached.")
            continue
        lines += [f"Dependencies, {which}: {hole}" for hole in found.holes]
        lines.append(f"Dependencies, {which}: {len(found.holes)} known holes in {found.known} packages.")
        if found.unknown:
            lines.append(f"Dependencies, {which}: NOT AUDITED: {', '.join(found.unknown)}.")
    return lines, int(any(found and found.holes for _, found in both))


def audit() -> int:
    """Audits all locked packages, and the lowest version of each range in pyproject.toml."""
    texts = {name: (FOLDER / f"{name}.txt").read_text() for name in ("build", "dev", "dist", "docs", "floors")}
    locked = {
        f"{pin.requirement.name}=={pin.version}" for name in texts if name != "floors" for pin in pins(texts[name])
    }
    direct = ranges(SETS["dev"])
    lowest = {name: each for name, each in applicable(texts["floors"], "3.11", "linux").items() if name in direct}
    found = run_audit(sorted(locked))
    reached = found is not None and found.known > 0
    lines, code = conclusion(
        found, run_audit([f"{name}=={each.version}" for name, each in lowest.items()]) if reached else None
    )
    print("\n".join(lines))
    return code


def main(words: list[str]) -> int:
    """Runs one of the two commands."""
    if words == ["lock"]:
        lock()
        return 0
    if words == ["audit"]:
        return audit()
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
