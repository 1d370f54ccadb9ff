"""The packages of a release, in dist/: an sdist, and from it a wheel for each of `TARGETS`.

    .venv/bin/python infra/wheels/make_dist.py      (or: make dist)
    .venv/bin/python infra/wheels/make_dist.py --commit COMMIT --into FOLDER

The second command builds the wheel of an earlier commit, from the history of this clone, for this machine.

The sdist is built from the files of this folder. Each wheel is built from the unpacked sdist, so a file that the sdist
lacks is missing here and not at a user. zig is the compiler: it knows the headers of every C library, so one machine
builds for all. The C extension is linked against glibc 2.17 and the limited API of Python 3.11: one wheel of a system
serves each later version of both (PEP 600, PEP 384).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
GLIBC = "2.17"
"""The oldest glibc that the wheels run on: that of CentOS 7 and of manylinux2014."""
TARGETS = ("x86_64", "aarch64")
"""Machines with a wheel, all Linux. Others install the sdist, with a compiler or without the C extension."""
EXTENSION = "tiered/records/_native.abi3.so"
BUILD_SECONDS = 600


def run(*words: str, cwd: Path = ROOT, **environment: str) -> str:
    """Runs a command. Returns its output; ends this program with it if the command fails."""
    given = dict(os.environ, **environment)
    done = subprocess.run(
        words, cwd=cwd, env=given, text=True, timeout=BUILD_SECONDS, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(words)}: exit code {done.returncode}")
    return done.stdout


def build(kind: str, source: Path, folder: Path, *options: str, **environment: str) -> Path:
    """Builds one package ("sdist" or "wheel") with the setuptools of requirements/build.txt. Returns its file."""
    folder.mkdir(parents=True)
    command = (sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(folder), *options)
    output = run(*command, ".", cwd=source, **environment)
    (built,) = folder.iterdir()
    if kind == "wheel":
        _check_extension(built, output)
    return built


def write_compiler(folder: Path, machine: str) -> Path:
    """Writes a command that compiles and links C for a machine. Returns its path."""
    script = folder / f"cc-{machine}"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC} "$@"\n')
    script.chmod(0o755)
    return script


def build_wheel(source: Path, folder: Path, machine: str) -> Path:
    """Builds the wheel of a machine, and has auditwheel confirm its tag. Returns its file."""
    compiler = str(write_compiler(folder, machine))
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    shutil.rmtree(source / "build", ignore_errors=True)
    wheel = build(
        "wheel", source, folder / machine, f"-C--build-option=--plat-name={tag}",
        CC=compiler, LDSHARED=f"{compiler} -shared", LDFLAGS="-s", _PYTHON_HOST_PLATFORM=f"linux-{machine}",
    )  # fmt: skip
    report = run(sys.executable, "-m", "auditwheel", "show", str(wheel))
    oldest = re.search(rf'"manylinux_(\d+_\d+)_{machine}"', report)
    if oldest is None or _version(oldest[1].replace("_", ".")) > _version(GLIBC):
        sys.exit(f"{report}\n{wheel.name} does not run where its name says")
    return wheel


def build_commit(commit: str, folder: Path) -> Path:
    """Builds the wheel of a commit for this machine alone, by its own compiler, from the files that git has of the
    commit. Needs none of the tools of a release. Returns its file."""
    with tempfile.TemporaryDirectory() as name:
        run("git", "archive", "-o", f"{name}/source.tar", commit)
        with tarfile.open(f"{name}/source.tar") as packed:
            packed.extractall(f"{name}/source", filter="data")
        pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", f"{name}/wheel")
        output = run(*pip, f"{name}/source")
        (wheel,) = Path(name, "wheel").iterdir()
        _check_extension(wheel, output)
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, folder))


def _check_extension(wheel: Path, output: str) -> None:
    """Ends this program if a wheel lacks the extension: setuptools goes on without an optional one."""
    if EXTENSION not in zipfile.ZipFile(wheel).namelist():
        sys.exit(f"{output}\n{wheel.name} has no {EXTENSION}: the compiler failed, see above")


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def main() -> None:
    """Builds all packages anew and prints their sizes and sums, or the wheel of a commit and prints its path."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--commit")
    options.add_argument("--into", type=Path, default=DIST)
    given = options.parse_args()
    if given.commit is not None:
        print(build_commit(given.commit, given.into))
        return
    build_packages()


def build_packages() -> None:
    """Builds all packages anew and prints their sizes and sums."""
    # Files in the packages get the time of the last commit, so that the same tree gives the same wheel.
    when = run("git", "log", "-1", "--format=%ct").strip()
    os.environ["SOURCE_DATE_EPOCH"] = when
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdist = build("sdist", ROOT, folder / "sdist")
        with tarfile.open(sdist) as packed:
            packed.extractall(folder / "source", filter="data")
        (source,) = (folder / "source").iterdir()
        built = [sdist, *(build_wheel(source, folder, machine) for machine in TARGETS)]
        run(sys.executable, "-m", "twine", "check", "--strict", *map(str, built))
        DIST.mkdir()
        for package in built:
            shutil.copy(package, DIST)
            digest = hashlib.sha256(package.read_bytes()).hexdigest()
            print(f"dist/{package.name}  {package.stat().st_size / 1e6:.1f} MB  sha256 {digest}")


if __name__ == "__main__":
    main()
