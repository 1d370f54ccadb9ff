"""Tests of the packages of a release: installed in an empty environment, each serves and reads a record.

Nothing of this clone is in reach there, and neither are a compiler, git or make: the PATH has one folder.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.tutorial import follow_tutorial
from tests.ports import free_port
from tests.sources import ROOT

DIST = Path(os.environ.get("DIST", "dist")).absolute()
SECONDS = 300.0
CORE_BYTES_MAX = 80_000_000
"""Bytes of an installed broker, without pip and without compiled modules. botocore has 28 MB of them and zstandard 23.
The wheels that pip fetches for it have 31 MB."""
IMAGE_BYTES_MAX = 40_000_000
"""The same in the image, which leaves out descriptions of other services and symbols for debuggers."""
CLIENTS = "import boto3; [boto3.client(each, region_name='x') for each in ('s3', 'sts', 'sso', 'sso-oidc', 'signin')]"


class Environment:
    """A new virtual environment with one package in it."""

    def __init__(self, folder: Path, package: Path) -> None:
        self.folder = folder
        self.bin = folder / "env" / "bin"
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True, timeout=SECONDS)
        kept = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "HTTP", "http", "SSL_"))}
        self.variables = {**kept, "PATH": str(self.bin), "HOME": str(folder), "CC": "no-compiler-here"}
        self.run("pip", "install", "-q", "--no-compile", "--disable-pip-version-check", str(package))
        (site,) = (self.folder / "env").glob("lib/python3*/site-packages")
        self.bytes = size_of(site)

    def run(self, *words: str, given: str = "") -> str:
        """Runs a command of the environment outside of this clone. Returns its output."""
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]], input=given, capture_output=True, text=True, timeout=SECONDS,
            check=False, cwd=self.folder, env=self.variables,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def size_of(site: Path) -> int:
    """Returns the bytes of what was installed, without pip and without compiled modules."""
    parts = [part for part in site.iterdir() if not part.name.startswith(("pip", "setuptools", "_distutils"))]
    files = [path for part in parts for path in (part.rglob("*") if part.is_dir() else [part])]
    return sum(path.stat().st_size for path in files if path.is_file() and path.suffix != ".pyc")


def packages() -> list[Path]:
    """The wheel for this machine, and the sdist."""
    (wheel,) = DIST.glob(f"*_{platform.machine()}.whl")
    (sdist,) = DIST.glob("*.tar.gz")
    return [wheel, sdist]


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    yield Environment(tmp_path_factory.mktemp("package"), packages()[request.param == "sdist"])


def is_wheel(request: pytest.FixtureRequest) -> bool:
    return bool(request.node.callspec.params["installed"] == "wheel")


def test_installed_broker_takes_and_serves_a_record(installed: Environment, request: pytest.FixtureRequest) -> None:
    """Without the C extension the broker says so once."""
    log = installed.folder / "serve.log"
    command = [
        str(installed.bin / "tiered"),
        "serve",
        "--data-dir",
        "data",
        "--http",
        "127.0.0.1:0",
        "--kafka",
        "127.0.0.1:0",
    ]
    with log.open("w") as errors:
        broker = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=installed.folder, env=installed.variables
        )
    assert broker.stdout is not None
    with broker, broker.stdout as output:
        try:
            line = output.readline()
            assert line, log.read_text()
            url, kafka = line.split()[3], line.partition(" kafka=")[2].split()[0]
            installed.variables["TIERED_BROKERS"] = kafka
            installed.run("tiered", "topic", "create", "hello")
            installed.run("tiered", "topic", "produce", "hello", "-f", "%k %v\\n", given="a 1\n")
            record = json.loads(installed.run("tiered", "topic", "consume", "hello", "-n", "1"))
            assert (record["key"], record["value"], record["offset"]) == ("a", "1", 0)
            for path in ("/console/", "/openapi.json"):
                with urllib.request.urlopen(url + path, timeout=SECONDS) as reply:
                    assert reply.status == 200 and reply.read()
        finally:
            broker.terminate()
        assert broker.wait(SECONDS) == 0
    assert log.read_text().count("in plain Python") == (0 if is_wheel(request) else 1)


def test_wheel_has_the_c_extension_and_an_sdist_works_without(
    installed: Environment, request: pytest.FixtureRequest
) -> None:
    code = "from tiered.records import native; print(native.NATIVE, native.crc32c(b'123456789'))"
    assert installed.run("python", "-c", code) == f"{is_wheel(request)} {0xE3069283}\n"


def test_fixtures_come_with_the_package(installed: Environment) -> None:
    """A suite of somebody else needs pytest only."""
    installed.run("pip", "install", "-q", "--disable-pip-version-check", "pytest")
    suite = installed.folder / "test_theirs.py"
    suite.write_text("def test_it(tiered_broker):\n    tiered_broker.create_topic('t')\n")
    assert "1 passed" in installed.run("pytest", "-q", str(suite))


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_tutorial_needs_the_wheel_and_its_extra_alone(tmp_path: Path) -> None:
    """The extra `sql` brings all that loads, proofs and queries of the tutorial import."""
    environment = Environment(tmp_path, Path(f"{packages()[0]}[sql]"))
    folder = tmp_path / "tutorial"
    folder.mkdir()
    follow_tutorial(folder, f"{environment.bin}:/usr/bin:/bin")


def test_install_of_the_broker_is_light(installed: Environment) -> None:
    assert installed.bytes <= CORE_BYTES_MAX


def test_steps_of_the_image_install_a_broker(tmp_path: Path) -> None:
    """The steps of the Dockerfile run in a folder, where no container engine is: its health check finds the broker."""
    source, target, env = tmp_path / "src", tmp_path / "install", tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", env], check=True, timeout=SECONDS)
    variables = {"PATH": f"{env / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path)}
    text = (ROOT / "infra/compose/Dockerfile").read_text().replace("\\\n", "")
    source.mkdir()
    for line in text.split("\nFROM ")[1].splitlines():
        verb, _, rest = line.partition(" ")
        if verb == "COPY":
            *froms, to = rest.split()
            for each in froms:
                subprocess.run(["cp", "-r", ROOT / each, source / to], check=True, timeout=SECONDS)
        elif verb == "RUN":
            command = rest.replace("--prefix /install", f"--prefix {target}")
            subprocess.run(["sh", "-c", command], check=True, timeout=SECONDS, cwd=source, env=variables)
    (site,) = target.glob("lib/python3*/site-packages")
    assert size_of(site) <= IMAGE_BYTES_MAX
    variables |= {"PYTHONPATH": str(site), "HOSTNAME": "127.0.0.1"}
    subprocess.run([env / "bin/python", "-c", CLIENTS], check=True, timeout=SECONDS, env=variables)
    serve = [str(env / "bin/python"), str(target / "bin/tiered"), "serve", "--data-dir", str(tmp_path / "data")]
    assert (entry := re.search(r'^ENTRYPOINT \["(.*)"\]$', text, re.MULTILINE)) and entry[1] == "tiered"
    (check,) = re.findall(r'CMD \["python", "-c", ("[^"]*")\]', text)
    number = free_port()
    code = json.loads(check).replace("8082", str(number))
    broker = subprocess.Popen(
        [*serve, "--http", f"127.0.0.1:{number}", "--kafka", "127.0.0.1:0"],
        stdout=subprocess.PIPE, text=True, env=variables, cwd=tmp_path,
    )  # fmt: skip
    assert broker.stdout is not None
    with broker, broker.stdout as output:
        assert output.readline()
        healthy = subprocess.run([env / "bin/python", "-c", code], timeout=SECONDS, env=variables, check=False)
        broker.terminate()
    unwell = subprocess.run([env / "bin/python", "-c", code], timeout=SECONDS, env=variables, check=False)
    assert (healthy.returncode, unwell.returncode) == (0, 1)


def test_other_machines_have_a_wheel_too() -> None:
    assert {path.name.rpartition("_17_")[2] for path in DIST.glob("*.whl")} == {"x86_64.whl", "aarch64.whl"}
