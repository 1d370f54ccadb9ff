"""Delta's jars and our log stores: built once by Maven from the POM in this folder, cached by the hash of the sources.

python -m pyspark_tiered.jars            builds if needed, prints the folder
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from tiered.errors import Unavailable

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent
JAVA_RELEASE = 17
BUILD_SECONDS = 900
"""Time limit of a build. A first build fetches 26 MB; with a slow mirror it may take minutes."""

GET_JAVA = (
    "install a JDK 17 or newer (Debian, Ubuntu: apt install openjdk-17-jdk-headless; macOS: brew install openjdk@17)"
)
GET_MAVEN = "install Maven 3.8 or newer (Debian, Ubuntu: apt install maven; macOS: brew install maven)"


def missing_tools(*, build: bool = True) -> str:
    """Returns a sentence that names what this machine lacks and how to get it; empty if it lacks nothing."""
    java = _java_release("java")
    if java is None:
        return f"Spark needs Java and there is none on PATH or in JAVA_HOME: {GET_JAVA}."
    if java < JAVA_RELEASE:
        return f"Spark and Delta need Java {JAVA_RELEASE} and this one is {java}: {GET_JAVA}."
    if not build:
        return ""
    if _java_release("javac") is None:
        return f"The Delta log stores are compiled and there is a Java without its compiler (javac): {GET_JAVA}."
    if shutil.which("mvn") is None:
        return f"Delta's jars are fetched by Maven and there is no mvn on PATH: {GET_MAVEN}."
    return ""


def ensure_jars(profiles: Sequence[str] = ()) -> list[Path]:
    """Returns the jars for Spark's class path, and builds them first if needed.

    Raises `Unavailable` that names the missing tool.
    """
    folder = cache_folder(profiles)
    if not folder.is_dir():
        _build(folder, profiles)
    return sorted(folder.glob("*.jar"))


def cache_folder(profiles: Sequence[str] = ()) -> Path:
    """Returns the folder of the jars of exactly these sources: `$TIERED_JARS` or `~/.cache/tiered/jars`, by hash.

    The folder may not exist.
    """
    root = os.environ.get("TIERED_JARS") or Path.home() / ".cache" / "tiered" / "jars"
    digest = hashlib.sha256()
    for source in [SOURCES / "pom.xml", *sorted(SOURCES.glob("java/**/*.java"))]:
        digest.update(f"{source.relative_to(SOURCES)}\0".encode() + source.read_bytes() + b"\0")
    digest.update(",".join(sorted(profiles)).encode())
    return Path(root) / digest.hexdigest()[:16]


def _build(folder: Path, profiles: Sequence[str]) -> None:
    """Builds in a scratch folder and renames it: two builds at once end with one complete folder."""
    if lack := missing_tools():
        raise Unavailable(lack, final=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log.info("fetching Delta's jars with Maven (once, some 20 seconds) folder=%s", folder)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as scratch:
        shutil.copy(SOURCES / "pom.xml", scratch)
        shutil.copytree(SOURCES / "java", Path(scratch) / "java")
        command = ["mvn", "-q", "-B", "-C", "package", *(f"-P{profile}" for profile in profiles)]
        try:
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=BUILD_SECONDS)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"Maven did not fetch Delta's jars within {BUILD_SECONDS} s") from None
        if done.returncode != 0:
            raise Unavailable(f"Maven could not fetch or build Delta's jars: {_maven_error(done.stdout + done.stderr)}")
        try:
            os.rename(Path(scratch) / "jars", folder)
        except OSError:
            if not folder.is_dir():
                raise


def _maven_error(output: str) -> str:
    errors = [line.removeprefix("[ERROR] ") for line in output.splitlines() if line.startswith("[ERROR] ")]
    return " ".join(errors[:3]) or output[-500:].strip() or "no output"


def _java_release(tool: str) -> int | None:
    """Returns the major release of `java` or `javac`; None if there is none.

    JAVA_HOME comes before PATH, as in Spark.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / tool) if home else tool
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # The first line may list options from the environment instead, with numbers in them.
    found = re.search(r'^(?:\S+ version "|javac )(\d+)(?:\.(\d+))?', done.stdout + done.stderr, re.MULTILINE)
    if done.returncode != 0 or found is None:
        return None
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def main() -> int:
    """Builds, and prints the folder. The exit code is 3 if a tool is missing."""
    parser = ArgumentParser(
        prog="python -m pyspark_tiered.jars", description="Builds the jars, and prints their folder."
    )
    parser.add_argument("profiles", metavar="PROFILE", nargs="*", help="a profile of pom.xml, for example kafka")
    profiles: list[str] = parser.parse_args().profiles
    try:
        ensure_jars(profiles)
    except Unavailable as lack:
        print(lack, file=sys.stderr)
        return 3
    print(cache_folder(profiles))
    return 0


if __name__ == "__main__":
    sys.exit(main())
