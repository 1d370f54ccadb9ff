"""The C extension under AddressSanitizer and UndefinedBehaviorSanitizer, in a folder of its own.

python -m tests.sanitize test [OPTION ...]      its unit tests, with these options of pytest
python -m tests.sanitize fuzz [OPTION ...]      mutated inputs in buffers of exact size (tests/fuzz/records.py)
python -m tests.sanitize probe                  reads one byte too far, which has to end it with 66

Python itself is not instrumented: the sanitizer is loaded before it, and every object is a block of malloc. A report
ends the process.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path

from tests.sources import ROOT

MEASURABLE = "not resident"
"""Chooses the tests that hold under AddressSanitizer: it keeps freed blocks, so the memory of a process shows them."""
REPORTED = 66
"""The exit code of a process that a sanitizer ended."""

SOURCES = ROOT / "tiered" / "records" / "c"
FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fPIC", "-shared"]
CHECKS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
LIMITED = "-DPy_LIMITED_API=0x030B0000"
RUNTIMES = ("libasan.so", "libubsan.so")
CHOSEN = "TIERED_SANITIZED"
"""Names the folder of the extension in the process that runs under the sanitizer."""


def missing() -> str:
    """Returns a description of what this machine lacks; empty if nothing."""
    if sys.platform != "linux":
        return "Linux"
    compiler = shutil.which("gcc")
    if compiler is None:
        return "gcc"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "Python's headers"
    return next((name for name in RUNTIMES if not Path(_runtime(name)).is_absolute()), "")


def _runtime(name: str) -> str:
    """Returns the path of a library of gcc; the bare name if gcc has none."""
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def build() -> Path:
    """Returns the folder of the instrumented extension; builds it unless it is there for exactly these sources."""
    sources = sorted(SOURCES.iterdir())
    digest = hashlib.sha256(
        b"".join(path.read_bytes() for path in sources) + repr((FLAGS, CHECKS, sys.version)).encode()
    )
    folder = ROOT / "build" / "sanitized" / digest.hexdigest()[:16]
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}-{os.getpid()}")
        unfinished.mkdir(parents=True)
        paths = [str(path) for path in sources if path.suffix == ".c"]
        include = f"-I{sysconfig.get_paths()['include']}"
        out = str(unfinished / "_native.abi3.so")
        subprocess.run(["gcc", *FLAGS, *CHECKS, LIMITED, include, *paths, "-o", out], check=True, timeout=300)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            shutil.rmtree(unfinished)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment of a process that loads the extension of `folder`."""
    return {
        **os.environ,
        CHOSEN: str(folder),
        "LD_PRELOAD": " ".join(map(_runtime, RUNTIMES)),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("", "api", "spark")),
        "ASAN_OPTIONS": f"detect_leaks=0:abort_on_error=0:exitcode={REPORTED}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:exitcode={REPORTED}",
        "TIERED_PURE": "0",
    }


def run(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Runs `words` of this module in a process under the sanitizer."""
    command = [sys.executable, "-m", "tests.sanitize", *words]
    return subprocess.run(command, cwd=ROOT, env=environment(build()), text=True, **options)  # type: ignore[call-overload,no-any-return]


def load(folder: str) -> None:
    """Replaces the usual extension by the instrumented one. Raises RuntimeError if that fails."""
    package = import_module("tiered.records")
    package.__path__.insert(0, folder)
    loaded = import_module("tiered.records.native")
    found = sys.modules["tiered.records._native"].__file__ or ""
    if not loaded.NATIVE or Path(found).parent != Path(folder):
        raise RuntimeError(f"{found or 'plain Python'} is not the extension of {folder}")


def main(words: list[str]) -> int:
    """Runs a command: here if the sanitizer is loaded, else in such a process."""
    if not words or words[0] not in ("test", "fuzz", "probe"):
        print(__doc__, file=sys.stderr)
        return 2
    folder = os.environ.get(CHOSEN)
    if folder is None:
        if lack := missing():
            print(f"This machine has no {lack}, which the sanitizers need.", file=sys.stderr)
            return 3
        return run(words).returncode
    load(folder)
    if words[0] == "probe":
        exact = import_module("tests.fuzz.records").copy_exactly
        room = exact(b"x" * 20)
        print(ctypes.string_at(ctypes.addressof(ctypes.c_char.from_buffer(room)), len(room) + 1))
        return 0
    if words[0] == "fuzz":
        return int(import_module("tests.fuzz.__main__").main(["records", *words[1:]]))
    tests = ROOT / "tests" / "unit" / "records"
    return int(import_module("pytest").main(["-p", "no:cacheprovider", str(tests), "-m", MEASURABLE, *words[1:]]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
