"""Test of the examples of docs/CLI.md, run in order: they succeed and print the output on the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.cli_cluster import start_cluster
from tests.e2e.serving import SECONDS
from tests.sources import ROOT

PAGE = ROOT / "docs" / "CLI.md"


def test_examples_print_the_output_on_the_page(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "tiered"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tiered_api.cli.main "$@"\n')
    command.chmod(0o755)
    examples = re.findall(r"```sh\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == PAGE.read_text().count("```sh"), "an example without its output"
    with start_cluster("ours", tmp_path) as cluster:
        path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "TIERED_BROKERS": cluster.address}
        for script, printed in examples:
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", script],
                capture_output=True,
                text=True,
                timeout=SECONDS * 2,
                env=environment,
            )
            assert (done.returncode, done.stderr) == (0, ""), (script, done)
            said, shown = done.stdout.splitlines(), printed.splitlines()
            assert len(said) == len(shown), (script, done.stdout)
            for got, line in zip(said, shown, strict=True):
                assert re.fullmatch(".*".join(map(re.escape, line.split("..."))), got), (script, got, line)
