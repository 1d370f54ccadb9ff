"""Test of tutorial.md and back-up-and-restore.md in docs/: a shell follows them from an empty folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.page_examples import write_command
from tests.e2e.tutorial import follow_tutorial

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")]


def test_commands_of_the_tutorial_print_what_it_shows(tmp_path: Path) -> None:
    folder = tmp_path / "tutorial"
    folder.mkdir()
    write_command(tmp_path / "bin")
    follow_tutorial(folder, f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
