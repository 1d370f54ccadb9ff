"""The program of an earlier commit, from the history of this clone, for clusters whose brokers are of two versions."""

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
PARTS = ("tiered", "api", "spark", "setup.py", "pyproject.toml", "README.md", "LICENSE")
SECONDS = 300.0


def extract_program(commit: str, folder: Path) -> Program:
    """Writes the sources of a commit into an empty folder, and builds its extension if a compiler is there."""
    found = subprocess.run(["git", "archive", commit, *PARTS], cwd=ROOT, capture_output=True, timeout=SECONDS)
    assert found.returncode == 0, (
        f"the history of this clone lacks commit {commit[:12]}, whose program the test starts: `git fetch --unshallow`"
        f" brings it ({found.stderr.decode().strip()})"
    )
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=folder, capture_output=True, timeout=SECONDS)  # without a compiler Python does the work
    return Program(folder, options=(), segment_bytes="segment.bytes")
