"""Tests of `.ci/run` with stand-ins for apt-get and make: it installs a browser, or says what is skipped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sources import ROOT

SHELL = "chromium-headless-shell"
TOOLS = ("bash", "env", "timeout", "dirname", "id")


def run(directory: Path, *, apt_fails: bool = False, browser: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a copy of the script that finds these programs only."""
    programs = directory / "bin"
    programs.mkdir()
    for name in TOOLS:
        (programs / name).symlink_to(str(shutil.which(name)))
    stand_ins = {"make": 'echo "make $*"', "apt-get": f'echo "apt-get $*" >> {directory}/apt; exit {int(apt_fails)}'}
    stand_ins |= {"sudo": 'shift; exec "$@"'} | ({browser: "exit 0"} if browser else {})
    for name, text in stand_ins.items():
        (programs / name).write_text(f"#!{programs}/bash\n{text}\n")
        (programs / name).chmod(0o700)
    (directory / ".ci").mkdir()
    script = directory / ".ci" / "run"
    shutil.copy(ROOT / ".ci" / "run", script)
    return subprocess.run(
        [script], capture_output=True, text=True, env={"PATH": str(programs)}, timeout=60, check=False
    )


def is_debian() -> bool:
    release = Path("/etc/os-release")
    return release.exists() and "\nID=debian\n" in f"\n{release.read_text()}\n"


def test_browser_is_installed_where_debian_has_it(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (0, "make test\n")
    asked = (tmp_path / "apt").read_text().splitlines() if (tmp_path / "apt").exists() else []
    if is_debian():
        assert asked == ["apt-get update -qq", f"apt-get install -y -qq --no-install-recommends {SHELL} prometheus"]
        assert done.stderr == ""
    else:
        assert not asked and f"apt-get install {SHELL}" in done.stderr


@pytest.mark.parametrize("browser", ["", "chromium", SHELL])
def test_tests_run_where_no_browser_can_be_installed(tmp_path: Path, browser: str) -> None:
    done = run(tmp_path, apt_fails=True, browser=browser)
    assert (done.returncode, done.stdout) == (0, "make test\n")
    assert (f"apt-get install {SHELL}" in done.stderr) == (browser == "") == (done.stderr != "")
    assert not (browser == SHELL and (tmp_path / "apt").exists())
