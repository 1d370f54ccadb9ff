"""Test of infra/secure: a shell follows its page, command by command, in an empty directory."""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.page_examples import check_page, write_command
from tests.ports import held_port
from tests.sources import ROOT

SECURE = ROOT / "infra" / "secure"

pytestmark = pytest.mark.skipif(None in map(shutil.which, ("curl", "openssl")), reason="needs curl and openssl")


def copy_with_free_ports(source: Path, target: Path, ports: ExitStack) -> None:
    """Copies a folder. Each port of 127.0.0.1 in it becomes one that no other process draws."""
    drawn: dict[str, str] = {}

    def draw(found: re.Match[str]) -> str:
        if found[1] not in drawn:
            drawn[found[1]] = str(ports.enter_context(held_port()).getsockname()[1])
        return f"127.0.0.1:{drawn[found[1]]}"

    shutil.copytree(source, target)
    for path in target.iterdir():
        path.write_text(re.sub(r"127\.0\.0\.1:(\d+)", draw, path.read_text()))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which the commands of the page have run. Each has printed what the page shows."""
    place = tmp_path_factory.mktemp("secured")
    folder = place / "cluster"
    folder.mkdir()
    write_command(place / "bin")
    with ExitStack() as ports:
        copy_with_free_ports(SECURE, place / "secure", ports)
        page = (place / "secure" / "README.md").read_text()
        path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
        check_page(page.replace("/path/to/this/repository/infra/secure", str(place / "secure")), folder, path)
    return folder


def test_commands_of_the_page_print_what_it_shows(directory: Path) -> None:
    assert (directory / "bucket").is_dir()


def test_files_of_the_secured_cluster_are_of_their_owner(directory: Path) -> None:
    """The page sets the mask of the shell; the scripts set their own."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in files} == {0}


def test_bucket_of_the_secured_cluster_has_no_plain_name(directory: Path) -> None:
    objects = [path.read_bytes() for path in (directory / "bucket").rglob("*") if path.is_file()]
    assert len(objects) > 10
    assert not [each for each in objects if b"a.orders" in each or b"alice" in each or b"by password" in each]


def test_logs_of_the_secured_cluster_have_no_password(directory: Path) -> None:
    secrets = [path.read_text().strip() for path in directory.glob("*.password")]
    secrets += [line.split()[2] for line in (directory / "bucket.keys").read_text().splitlines() if " " in line]
    assert len(secrets) == 6
    logs = "".join(path.read_text() for path in directory.glob("broker-?.log"))
    assert "User:alice" in logs and not [each for each in secrets if each in logs]
