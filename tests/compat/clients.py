"""The clients under test: their abilities, their drivers, and what a machine lacks for them."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.compat.client import DriverClient
from tests.compat.login import Login
from tests.peer.kafka import HERE as PEER_POM
from tests.peer.kafka import jars

DRIVERS = Path(__file__).parent / "drivers"
FETCH_SECONDS = 600
ALL = os.environ.get("COMPAT", "") != ""
"""Environment variable COMPAT (ours, secure, peer or all) of `make compat`; without it only ours is tested, with
clients that start quickly."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EVERY_ASSIGNOR = ("range", "round-robin", "sticky", "cooperative-sticky")


class Reachable(Protocol):
    """A broker as a client reaches it."""

    @property
    def address(self) -> str:
        """HOST:PORT of the broker."""

    @property
    def login(self) -> Login | None:
        """The user of the client; None without a login."""


@dataclass(frozen=True)
class ClientKind:
    """A client library in a version."""

    name: str
    command: Callable[[], list[str]]
    features: frozenset[str]
    codecs: tuple[str, ...] = CODECS
    assignors: tuple[str, ...] = EVERY_ASSIGNOR
    java: bool = False
    needs: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    """The abilities whose tests alone the client takes part in; none for all tests of its abilities."""

    def start(self, broker: Reachable) -> DriverClient:
        """Starts a process of this client with the address of the broker, and with its login if it needs one."""
        login = [] if broker.login is None else [broker.login.to_argument()]
        return DriverClient([*self.command(), broker.address, *login])

    def __str__(self) -> str:
        return self.name


def _cache(name: str, *sources: Path) -> Path:
    """Returns a folder outside of the repository for files that are built from these."""
    return cache_folder(name, b"".join(source.read_bytes() for source in sources))


def cache_folder(name: str, contents: bytes) -> Path:
    """Returns a folder outside of the repository for files that depend on these contents."""
    digest = hashlib.sha256(contents).hexdigest()[:16]
    root = Path(os.environ.get("TIERED_COMPAT") or Path.home() / ".cache" / "tiered" / "compat")
    root.mkdir(parents=True, exist_ok=True)
    return root / f"{name}-{digest}"


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Returns `folder`, filled by `make` once; two builds at the same time both end well."""
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = Path(scratch) / "made"
            fresh.mkdir()
            make(fresh)
            try:
                fresh.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    return folder


def _python(driver: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-m", f"tests.compat.drivers.{driver}"]


def _npm(name: str, sources: list[Path]) -> Path:
    """Returns a folder with the packages of `package.json` and its lock, and with the other sources."""

    def install(folder: Path) -> None:
        for file in sources:
            shutil.copy(file, folder)
        command = ["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(command, cwd=folder, timeout=FETCH_SECONDS, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"npm cannot install {name}: {done.stderr.strip()[-200:]}")

    return make_once(_cache(name, *sources), install)


@functools.cache
def _kafkajs() -> list[str]:
    source = DRIVERS / "kafkajs"
    folder = _npm("kafkajs", [source / "package.json", source / "package-lock.json"])
    return ["env", f"NODE_PATH={folder / 'node_modules'}", "node", str(source / "driver.js")]


@functools.cache
def _platformatic() -> list[str]:
    """An ECMAScript module finds packages only beside itself."""
    names = ("package.json", "package-lock.json", "driver.mjs")
    folder = _npm("platformatic", [DRIVERS / "platformatic" / name for name in names])
    return ["node", str(folder / "driver.mjs")]


@functools.cache
def _go(name: str, modules: str = "go") -> list[str]:
    """Returns the command of a driver in Go, with the versions of `modules`.mod and `modules`.sum."""
    source = DRIVERS / name
    files = [source / "driver.go", source / f"{modules}.mod", source / f"{modules}.sum"]

    def build(folder: Path) -> None:
        versions = f"-modfile={modules}.mod"
        command = ["go", "build", "-mod=readonly", versions, "-o", str(folder / "driver"), "."]
        done = subprocess.run(command, cwd=source, timeout=FETCH_SECONDS, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"go cannot build the driver of {name}: {done.stderr.strip()[-200:]}")

    return [str(make_once(_cache(name, *files), build) / "driver")]


def _java(pom: Path) -> list[str]:
    return compile_java(DRIVERS / "java" / "Driver.java", pom, "Driver")


@functools.cache
def compile_java(source: Path, pom: Path, main_class: str) -> list[str]:
    """Returns the command of a Java class that is compiled with the jars of a POM."""
    classpath = f"{jars(pom)}/*"

    def compile_(folder: Path) -> None:
        command = ["javac", "-nowarn", "-cp", classpath, "-d", str(folder), str(source)]
        subprocess.run(command, check=True, timeout=FETCH_SECONDS)

    classes = make_once(_cache("java", source, pom), compile_)
    log = f"-Dlog4j2.configurationFile={PEER_POM / 'log4j2.properties'}"
    return ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", log, "-cp", f"{classes}:{classpath}", main_class]


def _all_assignors_but(assignor: str) -> tuple[str, ...]:
    return tuple(each for each in EVERY_ASSIGNOR if each != assignor)


CONSUMER_GROUPS = "consumer groups"
"""Ability to be a member by KIP-848. Its assignors are those of the broker, with `server-` before their names."""
RECORDS = frozenset({"records"})
CONSUMER = RECORDS | frozenset({"assign", "static", "times", "null headers", "double headers", "watch"})
ADMIN = frozenset({"topics", "groups", "delete records"})
CONFIGS = frozenset({"configs", "describe group", "group offsets"})
TRANSACTIONS = frozenset({"transactions", "fenced generations", "ends by isolation"})
JAVA = CONSUMER | TRANSACTIONS | {"resumed transactions"}

KINDS = (
    ClientKind(
        "confluent",
        _python("confluent"),
        CONSUMER | ADMIN | CONFIGS | TRANSACTIONS | {CONSUMER_GROUPS},
        assignors=_all_assignors_but("sticky"),
    ),
    ClientKind(
        "aiokafka",
        _python("aio"),
        CONSUMER | ADMIN | TRANSACTIONS - {"fenced generations"},
        assignors=_all_assignors_but("cooperative-sticky"),
    ),
    ClientKind("kafka-python", _python("kafka_python"), (CONSUMER | ADMIN | CONFIGS | TRANSACTIONS) - {"null headers"}),
    ClientKind(
        "kafkajs",
        _kafkajs,
        ADMIN | RECORDS | {"times", "double headers", "describe group", "group offsets", "transactions"},
        codecs=("none", "gzip"),
        assignors=("round-robin",),
        needs=("node", "npm"),
    ),
    ClientKind(
        "franz-go",
        lambda: _go("franz"),
        frozenset({"assign", "transactions"}),
        assignors=("round-robin",),
        needs=("go",),
        only=("transactions",),
    ),
    *(
        ClientKind(
            f"sarama-{version}",
            functools.partial(_go, "sarama", modules),
            RECORDS | {"assign", "times", "null headers", "double headers"},
            assignors=(),
            needs=("go",),
            only=("records", "times"),
        )
        for version, modules in (("1.61", "go"), ("1.45.0", "go-1.45.0"))
    ),
    ClientKind(
        "platformatic",
        _platformatic,
        frozenset({"broker's way of transactions"}),
        codecs=("none",),
        assignors=("round-robin",),
        needs=("node", "npm"),
        only=("broker's way of transactions",),
    ),
    ClientKind("java-4.2", lambda: _java(PEER_POM / "pom.xml"), JAVA | {CONSUMER_GROUPS}, java=True),
    ClientKind("java-2.8", lambda: _java(DRIVERS / "java" / "pom.xml"), JAVA, java=True),
    ClientKind("java-3.9", lambda: _java(DRIVERS / "java" / "pom-3.9.xml"), JAVA, java=True),
)


def kinds(*can: str, few: bool = False, slow: tuple[str, ...] = (), often: Collection[str] = ()) -> list[Any]:
    """Returns parameters: the clients with all these abilities. Without `make compat` only those in Python but the
    `slow` ones; with `few` also Java's newest. `make test` runs those of `often`, else the first of them."""
    found: list[Any] = []
    for kind in KINDS:
        quick = kind.name in ("confluent", "aiokafka", "kafka-python") or (few and kind.name == "java-4.2")
        if kind.only and not set(kind.only) & set(can):
            continue
        if set(can) <= kind.features and (ALL or (quick and kind.name not in slow)):
            again = [pytest.mark.also("clients")] if (kind.name not in often if often else found) else []
            found.append(pytest.param(kind, id=kind.name, marks=[*skip_marks(kind), *again]))
    return found


def skip_marks(kind: ClientKind) -> list[pytest.MarkDecorator]:
    """Returns the reasons for which a client may be missing on a machine."""
    missing = [name for name in kind.needs if shutil.which(name) is None]
    why = pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)} on the PATH")
    return [why, *([pytest.mark.java] if kind.java else [])]
