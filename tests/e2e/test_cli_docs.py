"""Test of the examples of docs/CLI.md, run in order: they succeed and print the output on the page."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.e2e.cli_cluster import start_cluster
from tests.e2e.page_examples import check_output, read_examples, write_command
from tests.e2e.serving import SECONDS
from tests.sources import ROOT

PAGE = ROOT / "docs" / "CLI.md"


def test_examples_print_the_output_on_the_page(tmp_path: Path) -> None:
    write_command(tmp_path / "bin")
    with start_cluster("ours", tmp_path) as cluster:
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "TIERED_BROKERS": cluster.address, "XDG_CONFIG_HOME": str(tmp_path)}
        for script, shown in read_examples(PAGE.read_text()):
            assert shown is not None, f"an example without its output: {script}"
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", script],
                capture_output=True,
                text=True,
                timeout=SECONDS * 2,
                env=environment,
            )
            assert (done.returncode, done.stderr) == (0, ""), (script, done)
            check_output(script, done.stdout, shown)
