"""Tests of the console's files: what they load, what they may not do, and where the vendored ones come from."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path
from posixpath import dirname, join, normpath

import pytest

from tiered_api.http.console.pages import POLICY, load_files

FILES = load_files()
OWN_SCRIPTS = {name: each.body.decode() for name, each in FILES.items() if name.endswith(".js") and "/" not in name}
VENDORED = json.loads(FILES["vendor/versions.json"].body)
ASSETS_MAX = 300_000


def test_policy_allows_nothing_from_elsewhere_and_nothing_inline() -> None:
    assert "unsafe" not in POLICY and "http" not in POLICY and "default-src 'none'" in POLICY
    page = FILES["index.html"].body.decode()
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", page)


def test_each_script_imports_files_that_are_there() -> None:
    page = FILES["index.html"].body.decode()
    loaded = set(re.findall(r'(?:src|href)="/console/static/([^"]+)"', page))
    for name, text in OWN_SCRIPTS.items():
        loaded |= {normpath(join(dirname(name), each)) for each in re.findall(r'(?:from |import\()"([^"]+)"', text)}
    assert loaded <= FILES.keys()
    assert OWN_SCRIPTS.keys() <= loaded, "a script that nothing loads"


def test_scripts_make_no_markup_from_text() -> None:
    for name, text in OWN_SCRIPTS.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function", text), name


def test_assets_are_small_together() -> None:
    assert sum(len(each.body) for each in FILES.values()) <= ASSETS_MAX


def test_vendored_files_have_their_checksums_and_licences() -> None:
    named = {f"vendor/{each['file']}" for each in VENDORED}
    licences = {f"vendor/LICENSE-{package}.txt" for each in VENDORED for package in each["licences"]}
    assert {name for name in FILES if name.startswith("vendor/")} == {*named, *licences, "vendor/versions.json"}
    for each in VENDORED:
        assert sha256(FILES[f"vendor/{each['file']}"].body).hexdigest() == each["sha256"]


@pytest.mark.also("tests/unit/http/test_console_pages.py::test_vendored_files_have_their_checksums_and_licences")
@pytest.mark.parametrize("each", VENDORED, ids=[each["file"] for each in VENDORED])
def test_vendored_file_is_that_of_the_registry(tmp_path: Path, each: dict[str, str]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not here: apt-get install npm")
    packed = subprocess.run(
        [npm, "pack", f"{each['package']}@{each['version']}", "--silent"],
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
    )
    if packed.returncode:
        pytest.skip("the npm registry is not reached")
    [archive] = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as opened:
        found = opened.extractfile(f"package/{each['path']}")
        assert found is not None and found.read() == FILES[f"vendor/{each['file']}"].body
