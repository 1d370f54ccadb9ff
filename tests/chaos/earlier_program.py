"""The programs of earlier commits, from the history of this clone, for clusters whose brokers are of two versions."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.chaos.cluster import Program
from tests.sources import ROOT

BEFORE_LEVELS = "9b6421e7b629416f0a416ac99af0c34233586972"
"""The last program before `tiered.metadata.version`: it counts as level 0."""
LAST_RELEASE = "cb4c7d12490a80440d7a40c172755f2c4993dffe"
"""The program of the last release, of level 1. The commit that makes a release names itself here afterwards."""
PARTS = ("tiered", "api", "spark", "setup.py", "pyproject.toml", "README.md", "LICENSE")
SECONDS = 300.0


def extract_program(commit: str, folder: Path) -> Program:
    """Writes the sources of a commit into an empty folder, and builds its extension if a compiler is there."""
    found = subprocess.run(["git", "archive", commit, *PARTS], cwd=ROOT, capture_output=True, timeout=SECONDS)
    assert found.returncode == 0, _explain_missing(commit, found.stderr)
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=folder, capture_output=True, timeout=SECONDS)  # without a compiler Python does the work
    return Program(folder, options=(), segment_bytes="segment.bytes")


def install_program(commit: str, folder: Path) -> Program:
    """Builds the wheel of a commit, and installs it in an environment of its own, with the versions
    of other packages that the commit pins."""
    pinned = subprocess.run(["git", "show", f"{commit}:requirements/core.txt"], cwd=ROOT, capture_output=True)
    assert pinned.returncode == 0, _explain_missing(commit, pinned.stderr)
    folder.mkdir()
    (folder / "core.txt").write_bytes(pinned.stdout)
    make = [sys.executable, "infra/wheels/make_dist.py", "--commit", commit, "--into", str(folder / "wheel")]
    built = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert built.returncode == 0, f"{built.stdout}{built.stderr}"
    commands = folder / "env" / "bin"
    install = [str(commands / "pip"), "install", "-q", "--disable-pip-version-check", "--no-deps"]
    for words in (
        [sys.executable, "-m", "venv", str(folder / "env")],
        [*install, "--require-hashes", "-r", str(folder / "core.txt")],
        [*install, built.stdout.split()[-1]],
    ):
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return Program(command=(str(commands / "tiered"),))


def _explain_missing(commit: str, why: bytes) -> str:
    return (
        f"the history of this clone lacks commit {commit[:12]}, whose program the test starts: `git fetch --unshallow`"
        f" brings it ({why.decode().strip()})"
    )
